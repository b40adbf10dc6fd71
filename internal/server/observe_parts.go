package server

import (
	"context"
	"errors"
	"iter"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// The operations of the store, by which its calls are measured.
const (
	storeAuthorize = "authorize"
	storeDevice    = "device"
	storeEnroll    = "enroll"
	storeBeat      = "beat"
	storeSwitch    = "switch"
	storeSchedule  = "schedule"
	storeAudiences = "audiences"
	storeAudit     = "audit"
	storeRecords   = "records"
	storeActivity  = "activity"
	storePing      = "ping"
)

// observedStore measures the calls of a store, and makes each a span of the request
// that it is for. That is done from outside: what counts is how long a caller waits,
// and a call may share its way to the server with others.
type observedStore struct {
	records
	m *metrics
}

// storeCall is a call under way.
type storeCall struct {
	m         *metrics
	operation string
	began     time.Time
	span      trace.Span // nil: not traced
}

func (o *observedStore) begin(ctx context.Context, operation string) (context.Context, storeCall) {
	ctx, span := o.m.tracing.child(ctx, "store", operation)
	return ctx, storeCall{o.m, operation, time.Now(), span}
}

func (c storeCall) end(ctx context.Context, err error) {
	result := storeResult(ctx, err)
	if errors.Is(err, bolt.ErrBusy) || errors.Is(err, redis.ErrBusy) {
		c.m.Limited(limitQueue)
	}
	c.m.store.WithLabelValues(c.operation, result).Observe(time.Since(c.began).Seconds())
	endSpan(c.span, result)
}

// storeResult names how a call ended.
func storeResult(ctx context.Context, err error) string {
	if err == nil {
		return "ok"
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return "cancelled"
	}
	for _, no := range []error{signer.ErrStaleEpoch, signer.ErrNotFound, signer.ErrExists, signer.ErrFull, killswitch.ErrChanged} {
		if errors.Is(err, no) {
			return "refused"
		}
	}
	var refused *signer.RefusedError
	var limited *signer.LimitedError
	if errors.As(err, &refused) || errors.As(err, &limited) {
		return "refused"
	}
	return "unavailable"
}

// observe1 and observe0 measure a call that returns a value, or none.
func observe1[T any](ctx context.Context, o *observedStore, operation string, call func(context.Context) (T, error)) (T, error) {
	ctx, c := o.begin(ctx, operation)
	v, err := call(ctx)
	c.end(ctx, err)
	return v, err
}

func observe0(ctx context.Context, o *observedStore, operation string, call func(context.Context) error) error {
	ctx, c := o.begin(ctx, operation)
	err := call(ctx)
	c.end(ctx, err)
	return err
}

// Authorize implements signer.Store.
func (o *observedStore) Authorize(ctx context.Context, a signer.Authorization) (signer.Authorized, error) {
	ctx, c := o.begin(ctx, storeAuthorize)
	who, err := o.records.Authorize(ctx, a)
	c.end(ctx, err)
	return who, err
}

// Device implements signer.Store.
func (o *observedStore) Device(ctx context.Context, issuer, thumbprint string) (signer.Device, error) {
	return observe1(ctx, o, storeDevice, func(ctx context.Context) (signer.Device, error) { return o.records.Device(ctx, issuer, thumbprint) })
}

// Enroll implements signer.Store.
func (o *observedStore) Enroll(ctx context.Context, e signer.Enrolment) (signer.Device, error) {
	return observe1(ctx, o, storeEnroll, func(ctx context.Context) (signer.Device, error) { return o.records.Enroll(ctx, e) })
}

// Invalidate implements signer.Store.
func (o *observedStore) Invalidate(ctx context.Context, issuer, thumbprint, reason string, a audit.Entry) (signer.Device, error) {
	return observe1(ctx, o, storeRecords, func(ctx context.Context) (signer.Device, error) {
		return o.records.Invalidate(ctx, issuer, thumbprint, reason, a)
	})
}

// PutCredential implements signer.Store.
func (o *observedStore) PutCredential(ctx context.Context, c signer.Credential, a audit.Entry) error {
	return observe0(ctx, o, storeRecords, func(ctx context.Context) error { return o.records.PutCredential(ctx, c, a) })
}

// UpdateCredential implements signer.Store.
func (o *observedStore) UpdateCredential(ctx context.Context, issuer, id string, change func(*signer.Credential) error, a audit.Entry) (signer.Credential, error) {
	return observe1(ctx, o, storeRecords, func(ctx context.Context) (signer.Credential, error) {
		return o.records.UpdateCredential(ctx, issuer, id, change, a)
	})
}

// PutEnrollmentToken implements signer.Store.
func (o *observedStore) PutEnrollmentToken(ctx context.Context, t signer.EnrollmentToken, a audit.Entry) error {
	return observe0(ctx, o, storeRecords, func(ctx context.Context) error { return o.records.PutEnrollmentToken(ctx, t, a) })
}

// Audiences implements signer.Store.
func (o *observedStore) Audiences(ctx context.Context, issuer string) ([]signer.Audience, error) {
	return observe1(ctx, o, storeAudiences, func(ctx context.Context) ([]signer.Audience, error) { return o.records.Audiences(ctx, issuer) })
}

// SetAudience implements signer.Store.
func (o *observedStore) SetAudience(ctx context.Context, a signer.Audience, check func([]signer.Audience) error, e audit.Entry) error {
	return observe0(ctx, o, storeAudiences, func(ctx context.Context) error { return o.records.SetAudience(ctx, a, check, e) })
}

// RemoveAudience implements signer.Store.
func (o *observedStore) RemoveAudience(ctx context.Context, issuer, origin string, e audit.Entry) error {
	return observe0(ctx, o, storeAudiences, func(ctx context.Context) error { return o.records.RemoveAudience(ctx, issuer, origin, e) })
}

// AppendAudit implements signer.Store.
func (o *observedStore) AppendAudit(ctx context.Context, e audit.Entry) error {
	return observe0(ctx, o, storeAudit, func(ctx context.Context) error { return o.records.AppendAudit(ctx, e) })
}

// Audit implements signer.Store.
func (o *observedStore) Audit(ctx context.Context, seq uint64, size int) ([]audit.Entry, error) {
	return observe1(ctx, o, storeAudit, func(ctx context.Context) ([]audit.Entry, error) { return o.records.Audit(ctx, seq, size) })
}

// Now implements signer.Store.
func (o *observedStore) Now(ctx context.Context) (time.Time, error) {
	return observe1(ctx, o, storePing, o.records.Now)
}

// Beat implements killswitch.Store.
func (o *observedStore) Beat(ctx context.Context, b killswitch.Beat) (killswitch.Grant, error) {
	return observe1(ctx, o, storeBeat, func(ctx context.Context) (killswitch.Grant, error) { return o.records.Beat(ctx, b) })
}

// State implements killswitch.Store.
func (o *observedStore) State(ctx context.Context) (killswitch.State, error) {
	return observe1(ctx, o, storeSwitch, o.records.State)
}

// Kill implements killswitch.Store.
func (o *observedStore) Kill(ctx context.Context, e killswitch.Entry, floor uint64, a audit.Entry) (killswitch.Entry, []killswitch.Replica, error) {
	ctx, c := o.begin(ctx, storeSwitch)
	e, replicas, err := o.records.Kill(ctx, e, floor, a)
	c.end(ctx, err)
	return e, replicas, err
}

// Resume implements killswitch.Store.
func (o *observedStore) Resume(ctx context.Context, r killswitch.Resume, seen, floor uint64, a audit.Entry) (killswitch.Resume, error) {
	return observe1(ctx, o, storeSwitch, func(ctx context.Context) (killswitch.Resume, error) { return o.records.Resume(ctx, r, seen, floor, a) })
}

// Merge implements killswitch.Store.
func (o *observedStore) Merge(ctx context.Context, other killswitch.State) (killswitch.State, error) {
	return observe1(ctx, o, storeSwitch, func(ctx context.Context) (killswitch.State, error) { return o.records.Merge(ctx, other) })
}

// Enforce implements killswitch.Store.
func (o *observedStore) Enforce(ctx context.Context, epoch uint64) error {
	return observe0(ctx, o, storeSwitch, func(ctx context.Context) error { return o.records.Enforce(ctx, epoch) })
}

// Mirror implements rotation.Mirror.
func (o *observedStore) Mirror(ctx context.Context, issuer string, revision uint64, doc []byte) error {
	return observe0(ctx, o, storeSchedule, func(ctx context.Context) error { return o.records.Mirror(ctx, issuer, revision, doc) })
}

// Mirrored implements rotation.Mirror.
func (o *observedStore) Mirrored(ctx context.Context, issuer string) (uint64, []byte, error) {
	ctx, c := o.begin(ctx, storeSchedule)
	revision, doc, err := o.records.Mirrored(ctx, issuer)
	c.end(ctx, err)
	return revision, doc, err
}

// PutActivity implements signer.ActivityStore.
func (o *observedStore) PutActivity(ctx context.Context, run string, data []byte) error {
	return observe0(ctx, o, storeActivity, func(ctx context.Context) error { return o.records.PutActivity(ctx, run, data) })
}

// observedKeyring measures how long tokens wait for their signatures.
type observedKeyring struct {
	keyring
	m *metrics
}

// Sign implements custody.Keyring.
func (k *observedKeyring) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	ctx, span := k.m.tracing.child(ctx, "custody", "sign")
	began := time.Now()
	signature, err := k.keyring.Sign(ctx, name, digest)
	k.m.signature.Observe(time.Since(began).Seconds())
	endSpan(span, callResult(ctx, err))
	return signature, err
}

// callResult names how a call of custody or of the service ended, for a span.
func callResult(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(ctx.Err(), context.Canceled):
		return "cancelled"
	}
	return "failed"
}

var _ signer.Observer = (*metrics)(nil)

// Call implements signer.Observer: the service's part of a request is a span.
func (m *metrics) Call(ctx context.Context, operation, issuer string) (context.Context, func(error)) {
	ctx, span := m.tracing.child(ctx, "signer", operation)
	if span == nil {
		return ctx, untraced
	}
	span.SetAttributes(attribute.String("pact.issuer", issuer))
	return ctx, func(err error) { endSpan(span, resultOfError(err)) }
}

func untraced(error) {}

// Issued implements signer.Observer.
func (m *metrics) Issued(issuer string, caller signer.CallerKind) {
	m.issued.WithLabelValues(issuer, string(caller)).Inc()
}

// Limited implements signer.Observer.
func (m *metrics) Limited(limit signer.LimitKind) { m.limits[limit].Inc() }

// Replayed implements signer.Observer.
func (m *metrics) Replayed() { m.replays.Inc() }

// vaultObserver measures requests to Vault.
type vaultObserver struct{ m *metrics }

// Call implements vault.Observer.
func (o vaultObserver) Call(ctx context.Context, operation string) (context.Context, func(string)) {
	ctx, span := o.m.tracing.child(ctx, "vault", operation)
	began := time.Now()
	return ctx, func(result string) {
		o.m.vault.WithLabelValues(operation, result).Observe(time.Since(began).Seconds())
		endSpan(span, result)
	}
}

// Batch implements vault.Observer. The span is of the first request that is traced; the
// others in the batch are linked.
func (o vaultObserver) Batch(ctx context.Context, size int, callers iter.Seq[context.Context]) (context.Context, func()) {
	o.m.batch.Observe(float64(size))
	ctx, span := o.m.tracing.batch(ctx, size, callers)
	if span == nil {
		return ctx, func() {}
	}
	return ctx, func() { span.End() }
}

// Full implements vault.Observer.
func (o vaultObserver) Full() { o.m.Limited(limitQueue) }
