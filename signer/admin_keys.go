package signer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/rotation"
)

// ListKeys implements signerv1.AdminServiceServer.
func (a *Admin) ListKeys(ctx context.Context, req *signerv1.ListKeysRequest) (*signerv1.ListKeysResponse, error) {
	issuers := a.cfg.Issuers
	if req.Issuer != "" {
		i, err := a.issuer(req.Issuer)
		if err != nil {
			return nil, err
		}
		issuers = []Issuer{i}
	}
	replicas, err := a.replicas(ctx)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.ListKeysResponse{}
	for _, i := range issuers {
		schedule, revision, now := i.Keys.Schedule(), i.Keys.Revision(), a.cfg.Now()
		published := map[string]bool{}
		for _, k := range schedule.Published(now) {
			published[k.KID] = true
		}
		for _, k := range schedule.Keys {
			m := &signerv1.Key{
				Issuer: i.URL, Kid: k.KID, Algorithm: string(k.Algorithm), State: string(schedule.StateOf(k.KID, now)),
				PublishAt: adminStamp(k.PublishedAt()), SignAt: adminStamp(k.SignAt), RemoveAt: adminStamp(k.RemoveAt), RevokedAt: adminStamp(k.RevokedAt),
				Replicas: uint32(len(replicas)),
			}
			if t, ok := schedule.RetireAt(k.KID); ok {
				m.RetireAt = adminStamp(t)
			}
			for _, r := range replicas {
				if published[k.KID] && (r.Replica == a.cfg.Replica || replicaServes(r, i.URL, revision, now.Sub(k.PublishedAt()))) {
					m.ServedBy = append(m.ServedBy, r.Replica)
				}
			}
			resp.Keys = append(resp.Keys, m)
		}
	}
	return resp, nil
}

// replicaServes tells whether another replica is known to serve a key that was
// published so long ago: it said that it has the newest schedule, or it is ready, so
// that its schedule is from after the key joined.
func replicaServes(r killswitch.Replica, issuer string, newest uint64, published time.Duration) bool {
	has := r.Revisions[issuer]
	return has > 0 && (has >= newest || r.Ready && published > rotation.Defaults().Staleness)
}

// GetKeySet implements signerv1.AdminServiceServer.
func (a *Admin) GetKeySet(_ context.Context, req *signerv1.GetKeySetRequest) (*signerv1.GetKeySetResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	doc, err := i.Keys.KeySet()
	if err != nil {
		return nil, adminRotationError(i, err)
	}
	return &signerv1.GetKeySetResponse{Issuer: i.URL, Jwks: string(doc.Body), JwksUri: adminJWKSURI(i.URL)}, nil
}

// adminJWKSURI is where an issuer's key set is.
func adminJWKSURI(issuer string) string { return issuer + "/.well-known/jwks.json" }

// RotateKey implements signerv1.AdminServiceServer.
func (a *Admin) RotateKey(ctx context.Context, req *signerv1.RotateKeyRequest) (*signerv1.RotateKeyResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	ask := rotation.Request{Algorithm: jose.SignatureAlgorithm(req.Algorithm), Emergency: req.Emergency, Compromised: req.CompromisedKid}
	switch {
	case req.Algorithm != "" && ask.Algorithm != jose.ES256 && ask.Algorithm != jose.RS256:
		return nil, adminInvalid("algorithm", "%q is unknown: ES256, RS256, or empty to keep it", adminShorten(req.Algorithm, 32))
	case req.Emergency && req.CompromisedKid == "":
		return nil, adminInvalid("compromised_kid", "is required with emergency: name the key to revoke")
	case !req.Emergency && req.CompromisedKid != "":
		return nil, adminInvalid("compromised_kid", "goes only with emergency")
	}
	if err := adminText("reason", req.Reason, adminMaxReason, false); err != nil {
		return nil, err
	}
	if req.DryRun {
		plan, err := i.Keys.Plan(ctx, ask)
		if err != nil {
			return nil, adminRotationError(i, err)
		}
		return rotateResponse(i, plan), nil
	}
	plan, err := a.rotate(ctx, i, "rotate", req.Reason, ask)
	if err != nil {
		return nil, err
	}
	return rotateResponse(i, plan), nil
}

// rotate changes a schedule and writes that to the audit log. Once the schedule is
// changed the operator's leaving stops nothing.
func (a *Admin) rotate(ctx context.Context, i Issuer, action, reason string, ask rotation.Request) (rotation.Plan, error) {
	ctx = context.WithoutCancel(ctx)
	plan, err := i.Keys.Rotate(ctx, ask)
	if err != nil {
		return plan, adminRotationError(i, err)
	}
	e := a.entry(ctx, action, i.URL, plan.KID, reason)
	e.Detail["algorithm"] = string(plan.Algorithm)
	if ask.Emergency {
		e.Detail["emergency"] = "true"
	}
	var revoked []string
	for _, x := range plan.Events {
		if x.Kind == rotation.EventRevoke && !slices.Contains(revoked, x.KID) {
			revoked = append(revoked, x.KID)
		}
	}
	if len(revoked) > 0 {
		e.Detail["revoked"] = strings.Join(revoked, " ")
	}
	if err := a.stands(ctx, a.cfg.Store.AppendAudit(ctx, e)); err != nil {
		_ = a.failure(ctx, action, err)
		return plan, adminRefuse(codes.Unavailable, "AUDIT_NOT_WRITTEN", map[string]string{"kid": plan.KID},
			"the schedule was changed (new key %s), but the audit log could not be written: do not repeat the rotation", plan.KID)
	}
	return plan, nil
}

// withdrawIssuer revokes all keys of an issuer and says until when a verifier can
// accept their tokens.
func (a *Admin) withdrawIssuer(ctx context.Context, i Issuer, reason string) (time.Time, error) {
	plan, err := a.rotate(ctx, i, "keys.withdraw", reason, rotation.Request{Withdraw: true})
	if err != nil {
		return time.Time{}, err
	}
	var until time.Time
	for _, e := range plan.Events {
		if e.Kind == rotation.EventAcceptedUntil {
			until = adminLatest(until, e.Time)
		}
	}
	return until, nil
}

// rotateResponse is a plan as messages carry it.
func rotateResponse(i Issuer, plan rotation.Plan) *signerv1.RotateKeyResponse {
	resp := &signerv1.RotateKeyResponse{
		Issuer: i.URL, Kid: plan.KID, Algorithm: string(plan.Algorithm), Revision: plan.Revision, Notes: plan.Notes,
	}
	for _, e := range plan.Events {
		resp.Timeline = append(resp.Timeline, &signerv1.TimelineEvent{Time: adminStamp(e.Time), Kid: e.KID, Event: string(e.Kind), Detail: e.Detail})
	}
	return resp
}

// adminRotationError puts a refusal of the schedule into words.
func adminRotationError(i Issuer, err error) error {
	var early *rotation.TooEarlyError
	var frozen *rotation.FrozenError
	switch {
	case errors.As(err, &early):
		return adminRefuse(codes.FailedPrecondition, "TOO_EARLY", map[string]string{"at": early.At.UTC().Format(time.RFC3339), "kid": early.KID},
			"too early: key %s is still on its way, and verifiers need its lead; repeat at %s or later", early.KID, adminClock(early.At))
	case errors.As(err, &frozen):
		return adminRefuse(codes.FailedPrecondition, "FROZEN", map[string]string{"at": frozen.At.UTC().Format(time.RFC3339), "kid": frozen.KID},
			"the time at which key %s signs is frozen, for replicas rely on it: wait until it signs, or revoke it with --emergency", frozen.KID)
	case errors.Is(err, rotation.ErrUnknownKey):
		return adminNotFound("compromised_kid: issuer %s has no such key: see pactctl keys", i.URL)
	case errors.Is(err, rotation.ErrRevoked):
		return adminRefuse(codes.FailedPrecondition, "ALREADY_REVOKED", nil, "compromised_kid: this key is revoked already: see pactctl keys")
	case errors.Is(err, rotation.ErrInvalidRequest):
		return adminRefuse(codes.InvalidArgument, "INVALID_REQUEST", nil, "%s", err)
	case errors.Is(err, rotation.ErrNewerFormat):
		return adminRefuse(codes.FailedPrecondition, "NEWER_VERSION", nil, "the schedule of %s was written by a newer version: ask a replica of that version", i.URL)
	case errors.Is(err, rotation.ErrNotFresh):
		return adminRefuse(codes.Unavailable, "NOT_FRESH", nil, "this replica cannot confirm that its key schedule of %s is the newest: try again", i.URL)
	}
	return err
}

// keyStatus fills in what the schedule says of an issuer.
func (a *Admin) keyStatus(i Issuer, s *signerv1.IssuerStatus) {
	schedule, now := i.Keys.Schedule(), a.cfg.Now()
	if k, ok := schedule.Signing(now); ok {
		s.SigningKid, s.Algorithm = k.KID, string(k.Algorithm)
	}
	if k, ok := schedule.Next(now); ok {
		s.NextSignAt = adminStamp(k.SignAt)
	}
}

// adminClock is a time in a text for people. Members and metadata have RFC 3339.
func adminClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// adminMessage is an error's text on one line.
func adminMessage(err error) string {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", "; ")), " ")
}
