package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

var signerCases = []testCase{
	{"enrol once, for good", enrolOnce},
	{"enrol at the same time", enrolAtOnce},
	{"cap on devices", enrolCap},
	{"enrolment tokens", enrolTokens},
	{"one token, two devices at once", enrolTokenRace},
	{"invalidated devices", invalidate},
	{"devices that never signed", neverSigned},
	{"a jti is used once", jtiOnce},
	{"a jti is used once by a hundred calls", jtiRace},
	{"a jti and enrolment", jtiEnrolment},
	{"last signed", lastSigned},
	{"stale epoch changes nothing", staleEpoch},
	{"rate limit", rateLimit},
	{"a caller that has left", callerLeft},
	{"credentials", credentials},
	{"credential names and hashes", credentialConflicts},
	{"credential rotation at once", credentialRace},
	{"audiences", audiences},
	{"pages", pages},
	{"audit chain", auditChain},
}

func (h *harness) wantRefused(err error, why string) {
	h.Helper()
	var r *signer.RefusedError
	if !errors.As(err, &r) || r.Why != why {
		h.Fatalf("got %v, want the refusal %q", err, why)
	}
}

func (h *harness) wantIs(err, target error) {
	h.Helper()
	if !errors.Is(err, target) {
		h.Fatalf("got error %v, want %v", err, target)
	}
}

func enrolOnce(h *harness) {
	first := h.enroll("thumb")
	if first.Subject != "pa_thumb" || first.Thumbprint != "thumb" || len(first.Point) != 64 || first.EnrolledAt.IsZero() {
		h.Fatalf("stored %+v", first)
	}
	h.backend.Advance(time.Hour)
	e := h.enrolment("thumb")
	e.Device.Subject = "pa_another"
	again, err := h.Enroll(h.ctx, e)
	h.ok(err)
	if !reflect.DeepEqual(again, first) {
		h.Fatalf("the second enrolment gave %+v, want the first record %+v", again, first)
	}
	h.reopen()
	got, err := h.Device(h.ctx, issuer, "thumb")
	h.ok(err)
	if !reflect.DeepEqual(got, first) {
		h.Fatalf("after a restart %+v, want %+v", got, first)
	}
	if devices, _, err := h.Counts(h.ctx, issuer); err != nil || devices != 1 {
		h.Fatalf("counts %d devices (%v), want 1", devices, err)
	}
	_, err = h.Device(h.ctx, other, "thumb")
	h.wantIs(err, signer.ErrNotFound)
	_, err = h.Device(h.ctx, issuer, "thum")
	h.wantIs(err, signer.ErrNotFound)
}

func enrolAtOnce(h *harness) {
	const n = 50
	enrolments := make([]signer.Enrolment, n)
	for i := range enrolments {
		enrolments[i] = h.enrolment("thumb")
		enrolments[i].Device.Subject = fmt.Sprintf("pa_%d", i)
	}
	got := make([]signer.Device, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			if got[i], err = h.Enroll(h.ctx, enrolments[i]); err != nil {
				h.Errorf("enrol: %v", err)
			}
		})
	}
	wg.Wait()
	for _, d := range got {
		if d.Subject != got[0].Subject {
			h.Fatalf("one key got the subjects %s and %s", got[0].Subject, d.Subject)
		}
	}
	if devices, _, err := h.Counts(h.ctx, issuer); err != nil || devices != 1 {
		h.Fatalf("counts %d devices (%v), want 1", devices, err)
	}
}

func enrolCap(h *harness) {
	for i := range 3 {
		e := h.enrolment(fmt.Sprint("thumb", i))
		e.Cap = 3
		_, err := h.Enroll(h.ctx, e)
		h.ok(err)
	}
	e := h.enrolment("one more")
	e.Cap = 3
	_, err := h.Enroll(h.ctx, e)
	h.wantIs(err, signer.ErrFull)
	_, err = h.Device(h.ctx, issuer, "one more")
	h.wantIs(err, signer.ErrNotFound)

	known := h.enrolment("thumb1")
	known.Cap = 3
	_, err = h.Enroll(h.ctx, known) // is not one more
	h.ok(err)
	elsewhere := h.enrolment("thumb of the other")
	elsewhere.Device.Issuer, elsewhere.Cap = other, 3
	_, err = h.Enroll(h.ctx, elsewhere)
	h.ok(err)
	_, err = h.Invalidate(h.ctx, issuer, "thumb0", "lost", act("invalidate"))
	h.ok(err)
	e.JTI = h.freshJTI()
	_, err = h.Enroll(h.ctx, e) // an invalidated device makes room
	h.ok(err)
}

func (h *harness) putToken(id string, valid time.Duration) {
	h.Helper()
	now := h.now()
	h.ok(h.PutEnrollmentToken(h.ctx, signer.EnrollmentToken{
		Issuer: issuer, ID: id, Hash: hash("token " + id), CreatedAt: now, ExpiresAt: now.Add(valid),
	}, act("create token")))
}

func (h *harness) enrollWith(thumbprint, token string) error {
	e := h.enrolment(thumbprint)
	e.NeedToken = true
	if token != "" {
		e.Token = hash("token " + token)
	}
	_, err := h.Enroll(h.ctx, e)
	return err
}

func enrolTokens(h *harness) {
	h.putToken("a", time.Hour)
	h.putToken("b", time.Hour)
	h.putToken("c", time.Hour)
	h.wantRefused(h.enrollWith("one", ""), "token_missing")
	h.wantRefused(h.enrollWith("one", "never made"), "token_unknown")
	h.ok(h.enrollWith("one", "a"))
	h.ok(h.enrollWith("one", "a"))
	h.wantRefused(h.enrollWith("two", "a"), "token_spent")
	_, err := h.RevokeEnrollmentToken(h.ctx, issuer, "b", h.now(), act("revoke token"))
	h.ok(err)
	h.wantRefused(h.enrollWith("two", "b"), "token_revoked")
	e := h.enrolment("two")
	e.Device.Issuer, e.NeedToken, e.Token = other, true, hash("token c")
	_, err = h.Enroll(h.ctx, e)
	h.wantRefused(err, "token_unknown")

	h.reopen()
	h.wantRefused(h.enrollWith("two", "a"), "token_spent")
	h.backend.Advance(time.Hour)
	h.wantRefused(h.enrollWith("two", "c"), "token_expired")
	h.ok(h.enrollWith("one", "a")) // its device is already there
	_, err = h.Device(h.ctx, issuer, "two")
	h.wantIs(err, signer.ErrNotFound)

	tokens, _, err := h.EnrollmentTokens(h.ctx, issuer, signer.Page{})
	h.ok(err)
	if len(tokens) != 3 || tokens[0].Thumbprint != "one" || tokens[1].RevokedAt.IsZero() || tokens[2].Thumbprint != "" {
		h.Fatalf("tokens are %+v", tokens)
	}
	first := tokens[1].RevokedAt
	again, err := h.RevokeEnrollmentToken(h.ctx, issuer, "b", h.now(), act("revoke token"))
	h.ok(err)
	if !again.RevokedAt.Equal(first) {
		h.Fatalf("a second revocation moved its time from %v to %v", first, again.RevokedAt)
	}
	_, err = h.RevokeEnrollmentToken(h.ctx, issuer, "never made", h.now(), act("revoke token"))
	h.wantIs(err, signer.ErrNotFound)
}

func enrolTokenRace(h *harness) {
	h.putToken("a", time.Hour)
	const n = 20
	enrolments := make([]signer.Enrolment, n)
	for i := range enrolments {
		enrolments[i] = h.enrolment(fmt.Sprint("thumb", i))
		enrolments[i].NeedToken, enrolments[i].Token = true, hash("token a")
	}
	var accepted atomic.Int32
	var wg sync.WaitGroup
	for _, e := range enrolments {
		wg.Go(func() {
			_, err := h.Enroll(h.ctx, e)
			var r *signer.RefusedError
			switch {
			case err == nil:
				accepted.Add(1)
			case !errors.As(err, &r) || r.Why != "token_spent":
				h.Errorf("enrol: %v", err)
			}
		})
	}
	wg.Wait()
	if n := accepted.Load(); n != 1 {
		h.Fatalf("one token enrolled %d devices", n)
	}
}

func invalidate(h *harness) {
	h.enroll("thumb")
	_, err := h.Authorize(h.ctx, h.call("thumb"))
	h.ok(err)
	first, err := h.Invalidate(h.ctx, issuer, "thumb", "stolen", act("invalidate"))
	h.ok(err)
	_, err = h.Authorize(h.ctx, h.call("thumb"))
	h.wantRefused(err, "invalidated")
	_, err = h.Enroll(h.ctx, h.enrolment("thumb"))
	h.wantRefused(err, "invalidated")

	h.backend.Advance(time.Minute)
	again, err := h.Invalidate(h.ctx, issuer, "thumb", "another reason", act("invalidate"))
	h.ok(err)
	if again.Reason != "stolen" || !again.InvalidatedAt.Equal(first.InvalidatedAt) || again.InvalidatedAt.IsZero() {
		h.Fatalf("a second invalidation changed %+v to %+v", first, again)
	}
	if again.Subject != "pa_thumb" || len(again.Point) != 64 {
		h.Fatalf("invalidation lost the record: %+v", again)
	}

	_, err = h.Invalidate(h.ctx, issuer, "never seen", "precaution", act("invalidate"))
	h.ok(err)
	h.reopen()
	_, err = h.Enroll(h.ctx, h.enrolment("never seen"))
	h.wantRefused(err, "invalidated")
	_, err = h.Authorize(h.ctx, h.call("never seen"))
	h.wantRefused(err, "invalidated")
	_, err = h.Authorize(h.ctx, h.call("thumb"))
	h.wantRefused(err, "invalidated")
	if devices, _, err := h.Counts(h.ctx, issuer); err != nil || devices != 0 {
		h.Fatalf("counts %d devices in force (%v), want 0", devices, err)
	}
}

func neverSigned(h *harness) {
	const day = 24 * time.Hour
	h.enroll("signs")
	h.enroll("never signs")
	h.enroll("invalidated")
	_, err := h.Authorize(h.ctx, h.call("signs"))
	h.ok(err)
	asks := h.call("never signs")
	asks.Sign = false
	_, err = h.Authorize(h.ctx, asks)
	h.ok(err)
	_, err = h.Invalidate(h.ctx, issuer, "invalidated", "stolen", act("invalidate"))
	h.ok(err)

	h.backend.Advance(29 * day)
	h.enroll("later")
	_, err = h.Device(h.ctx, issuer, "never signs")
	h.ok(err)
	h.backend.Advance(2 * day)
	h.enroll("much later") // stores may forget when they write
	_, err = h.Device(h.ctx, issuer, "never signs")
	h.wantIs(err, signer.ErrNotFound)
	for _, thumbprint := range []string{"signs", "invalidated", "later", "much later"} {
		_, err = h.Device(h.ctx, issuer, thumbprint)
		h.ok(err)
	}
	if devices, _, err := h.Counts(h.ctx, issuer); err != nil || devices != 3 {
		h.Fatalf("counts %d devices in force (%v), want 3", devices, err)
	}
	h.enroll("never signs")
	_, err = h.Authorize(h.ctx, h.call("never signs"))
	h.ok(err)
}

func jtiOnce(h *harness) {
	h.enroll("one")
	h.enroll("two")
	e := h.enrolment("one")
	e.Device.Issuer = other
	_, err := h.Enroll(h.ctx, e)
	h.ok(err)

	a := h.call("one")
	who, err := h.Authorize(h.ctx, a)
	h.ok(err)
	if want := (signer.Authorized{Kind: signer.DeviceCaller, ID: "one", Subject: "pa_one"}); who != want {
		h.Fatalf("authorized %+v, want %+v", who, want)
	}
	_, err = h.Authorize(h.ctx, a)
	h.wantRefused(err, "replayed")
	byTwo, elsewhere := a, a
	byTwo.Thumbprint = "two"
	_, err = h.Authorize(h.ctx, byTwo)
	h.ok(err)
	elsewhere.Issuer = other
	_, err = h.Authorize(h.ctx, elsewhere)
	h.ok(err)

	h.reopen()
	_, err = h.Authorize(h.ctx, a)
	h.wantRefused(err, "replayed")
	for held := false; !held; { // again, if the machine was busy and the window has passed
		a = h.call("one")
		seen := h.now()
		_, err = h.Authorize(h.ctx, a)
		h.ok(err)
		h.backend.Advance(seen.Add(239 * time.Second).Sub(h.now()))
		h.reopen()
		_, err = h.Authorize(h.ctx, a)
		if held = h.now().Before(seen.Add(240 * time.Second)); held {
			h.wantRefused(err, "replayed")
		}
	}
	h.backend.Advance(2 * time.Second)
	_, err = h.Authorize(h.ctx, a)
	h.ok(err) // the window has passed
	_, err = h.Authorize(h.ctx, a)
	h.wantRefused(err, "replayed")

	_, err = h.Authorize(h.ctx, h.call("never enrolled"))
	h.wantRefused(err, "unknown")
}

func jtiRace(h *harness) { h.raceForJTIs(100, h) }

// raceForJTIs has n calls at once use one jti, at several stores over the same data in
// turn: one is accepted.
func (h *harness) raceForJTIs(n int32, at ...*harness) {
	h.Helper()
	h.enroll("thumb")
	for range 5 {
		a := h.call("thumb")
		var accepted, replayed atomic.Int32
		var wg sync.WaitGroup
		for i := range int(n) {
			wg.Go(func() {
				_, err := at[i%len(at)].Authorize(h.ctx, a)
				var r *signer.RefusedError
				switch {
				case err == nil:
					accepted.Add(1)
				case errors.As(err, &r) && r.Why == "replayed":
					replayed.Add(1)
				default:
					h.Errorf("authorize: %v", err)
				}
			})
		}
		wg.Wait()
		if a, r := accepted.Load(), replayed.Load(); a != 1 || r != n-1 {
			h.Fatalf("of %d calls with one jti %d were accepted and %d refused", n, a, r)
		}
	}
}

func jtiEnrolment(h *harness) {
	e := h.enrolment("thumb")
	_, err := h.Enroll(h.ctx, e)
	h.ok(err)
	_, err = h.Enroll(h.ctx, e)
	h.wantRefused(err, "replayed")
	a := h.call("thumb")
	a.JTI = e.JTI
	_, err = h.Authorize(h.ctx, a)
	h.wantRefused(err, "replayed")
	h.reopen()
	_, err = h.Enroll(h.ctx, e)
	h.wantRefused(err, "replayed")
}

func lastSigned(h *harness) {
	h.enroll("thumb")
	asks := h.call("thumb")
	asks.Sign = false
	_, err := h.Authorize(h.ctx, asks)
	h.ok(err)
	d, err := h.Device(h.ctx, issuer, "thumb")
	h.ok(err)
	if !d.LastSignedAt.IsZero() {
		h.Fatalf("a call that does not sign set LastSignedAt to %v", d.LastSignedAt)
	}
	for range 4 {
		_, err = h.Authorize(h.ctx, h.call("thumb"))
		h.ok(err)
		d, err = h.Device(h.ctx, issuer, "thumb")
		h.ok(err)
		if late := h.now().Sub(d.LastSignedAt); late < -time.Minute || late > time.Minute {
			h.Fatalf("LastSignedAt is %v off", late)
		}
		h.backend.Advance(45 * time.Second)
	}
	h.reopen()
	again, err := h.Device(h.ctx, issuer, "thumb")
	h.ok(err)
	if !again.LastSignedAt.Equal(d.LastSignedAt) {
		h.Fatalf("after a restart LastSignedAt is %v, was %v", again.LastSignedAt, d.LastSignedAt)
	}
}

func staleEpoch(h *harness) {
	h.enroll("thumb")
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	call, bearer, enrolment := h.call("thumb"), h.bearer("secret"), h.enrolment("another")
	_, err := h.Authorize(h.ctx, bearer)
	h.ok(err)
	e, _, err := h.Kill(h.ctx, killswitch.Entry{ID: "kill", Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "r", Actor: "a"}, 0, act("kill"))
	h.ok(err)
	h.ok(h.Enforce(h.ctx, e.Epoch))

	for _, a := range []signer.Authorization{call, bearer} {
		_, err = h.Authorize(h.ctx, a)
		h.wantIs(err, signer.ErrStaleEpoch)
	}
	_, err = h.Enroll(h.ctx, enrolment)
	h.wantIs(err, signer.ErrStaleEpoch)
	_, err = h.Device(h.ctx, issuer, "another")
	h.wantIs(err, signer.ErrNotFound)
	d, err := h.Device(h.ctx, issuer, "thumb")
	h.ok(err)
	if !d.LastSignedAt.IsZero() {
		h.Fatal("a call on a stale epoch set LastSignedAt")
	}
	call.Epoch, bearer.Epoch, enrolment.Epoch = h.epoch(), h.epoch(), h.epoch()
	_, err = h.Authorize(h.ctx, call) // its jti was not used up
	h.ok(err)
	_, err = h.Authorize(h.ctx, bearer)
	h.ok(err)
	_, err = h.Enroll(h.ctx, enrolment)
	h.ok(err)

	// A caller that is ahead knows what a store that keeps one epoch does not; one
	// that keeps an epoch for each part learns from it.
	ahead := h.call("thumb")
	ahead.Epoch++
	if _, err = h.Authorize(h.ctx, ahead); err == nil {
		_, err = h.Authorize(h.ctx, h.call("thumb"))
	}
	h.wantIs(err, signer.ErrStaleEpoch)
}

func rateLimit(h *harness) {
	h.enroll("thumb")
	h.enroll("calm")
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	const each = 64 * time.Second // so long that a real clock that goes on meanwhile fills no bucket
	limit := signer.Limit{Rate: 1. / 64, Burst: 120}
	for _, next := range []func() signer.Authorization{
		func() signer.Authorization { return h.call("thumb") },
		func() signer.Authorization { return h.bearer("secret") },
	} {
		call := func() (signer.Authorized, error) {
			a := next()
			a.Limit = limit
			return h.Authorize(h.ctx, a)
		}
		for i := range 120 {
			if _, err := call(); err != nil {
				h.Fatalf("call %d of the burst: %v", i+1, err)
			}
		}
		for range 3 {
			who, err := call()
			var l *signer.LimitedError
			if !errors.As(err, &l) || who.Subject == "" {
				h.Fatalf("got %+v, %v, want who it is and that it is limited", who, err)
			}
			if l.RetryAfter <= 0 || l.RetryAfter > each {
				h.Fatalf("RetryAfter is %v at one in %v", l.RetryAfter, each)
			}
			const early = each * 2 / 5
			if l.RetryAfter > early {
				h.backend.Advance(l.RetryAfter - early)
				if _, err := call(); !errors.As(err, &l) {
					h.Fatalf("%v before RetryAfter: %v, want it limited", early, err)
				}
				h.backend.Advance(early)
			} else {
				h.backend.Advance(l.RetryAfter)
			}
			_, err = call()
			h.ok(err)
		}
		h.backend.Advance(20 * each)
		for i := range 20 {
			if _, err := call(); err != nil {
				h.Fatalf("call %d of 20 after the time of 20: %v", i+1, err)
			}
		}
		_, err := call()
		var l *signer.LimitedError
		if !errors.As(err, &l) {
			h.Fatalf("call 21 after the time of 20: %v", err)
		}
	}
	calm := h.call("calm")
	calm.Limit = limit
	_, err := h.Authorize(h.ctx, calm) // nobody else's limit
	h.ok(err)
	unlimited := h.call("thumb")
	_, err = h.Authorize(h.ctx, unlimited) // the zero limit
	h.ok(err)
}

func callerLeft(h *harness) {
	h.enroll("thumb")
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	a := h.call("thumb")
	_, err := h.Authorize(ctx, a)
	h.wantIs(err, context.Canceled)
	_, err = h.Authorize(h.ctx, a) // nothing was done for it
	h.ok(err)
	_, err = h.Enroll(ctx, h.enrolment("another"))
	h.wantIs(err, context.Canceled)
	_, err = h.Device(h.ctx, issuer, "another")
	h.wantIs(err, signer.ErrNotFound)
}
