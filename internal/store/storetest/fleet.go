package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// fleetCases are for stores that several replicas have open at a time.
var fleetCases = []testCase{
	{"a second store sees the first one's acts", secondSees},
	{"a jti is used once by two stores", secondJTI},
	{"two stores share a limit", secondLimit},
	{"two stores share a cap", secondCap},
	{"one token at two stores", secondToken},
	{"a changed registry is known after the next sign", secondRegistry},
	{"a kill at one is a stale epoch at the other", secondKill},
	{"a name at two stores at once", secondName},
	{"two stores share what was told of activity", secondActivity},
}

// second opens another store over the same data; its harness shares the rest.
func (h *harness) second() *harness {
	h.Helper()
	s := h.backend.OpenSecond(h.T)
	h.Cleanup(func() { s.Close() })
	other := *h
	other.Store = s
	other.jtis = 1 << 20 // apart from the first one's
	return &other
}

func secondSees(h *harness) {
	two := h.second()
	h.enroll("thumb")
	_, err := two.Authorize(h.ctx, two.call("thumb"))
	h.ok(err)
	_, err = h.Invalidate(h.ctx, issuer, "thumb", "stolen", act("invalidate"))
	h.ok(err)
	_, err = two.Authorize(h.ctx, two.call("thumb"))
	h.wantRefused(err, "invalidated")
	_, err = two.Enroll(h.ctx, two.enrolment("thumb"))
	h.wantRefused(err, "invalidated")

	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	_, err = two.Authorize(h.ctx, two.bearer("secret"))
	h.ok(err)
	_, err = h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
		c.Hash = hash("second secret")
		return nil
	}, act("rotate credential"))
	h.ok(err)
	_, err = two.Authorize(h.ctx, two.bearer("secret"))
	h.wantRefused(err, "unknown")
	_, err = two.Authorize(h.ctx, two.bearer("second secret"))
	h.ok(err)
	h.revoke("id")
	_, err = two.Authorize(h.ctx, two.bearer("second secret"))
	h.wantRefused(err, "revoked")
	if n := len(two.wholeAudit()); n != 4 {
		h.Fatalf("the second store's audit log has %d entries, want 4", n)
	}
}

func secondJTI(h *harness) { h.raceForJTIs(60, h, h.second()) }

func secondLimit(h *harness) {
	two := h.second()
	h.enroll("thumb")
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	for _, next := range []func(*harness) signer.Authorization{
		func(at *harness) signer.Authorization { return at.call("thumb") },
		func(at *harness) signer.Authorization { return at.bearer("secret") },
	} {
		for i := range 11 {
			at := []*harness{h, two}[i%2]
			a := next(at)
			a.Limit = signer.Limit{Rate: 0.01, Burst: 10}
			_, err := at.Authorize(h.ctx, a)
			var l *signer.LimitedError
			if limited := errors.As(err, &l); limited != (i == 10) || err != nil && !limited {
				h.Fatalf("call %d of a burst of 10 at two stores: %v", i+1, err)
			}
		}
	}
}

func secondCap(h *harness) {
	const limit, n = 5, 24
	two := h.second()
	enrolments := make([]signer.Enrolment, n)
	for i := range enrolments {
		enrolments[i] = []*harness{h, two}[i%2].enrolment(fmt.Sprint("thumb", i))
		enrolments[i].Cap = limit
	}
	var made atomic.Int32
	var wg sync.WaitGroup
	for i, e := range enrolments {
		at := []*harness{h, two}[i%2]
		wg.Go(func() {
			if _, err := at.Enroll(h.ctx, e); err == nil {
				made.Add(1)
			} else if !errors.Is(err, signer.ErrFull) {
				h.Errorf("enrol: %v", err)
			}
		})
	}
	wg.Wait()
	devices, _, err := h.Counts(h.ctx, issuer)
	h.ok(err)
	if devices > limit || devices != uint64(made.Load()) || devices == 0 {
		h.Fatalf("under a cap of %d there are %d devices, of which %d were acknowledged", limit, devices, made.Load())
	}
}

func secondToken(h *harness) {
	two := h.second()
	h.putToken("a", time.Hour)
	h.ok(two.enrollWith("one", "a"))
	h.wantRefused(h.enrollWith("two", "a"), "token_spent")
	h.ok(h.enrollWith("one", "a"))
	h.putToken("b", time.Hour)
	_, err := two.RevokeEnrollmentToken(h.ctx, issuer, "b", h.now(), act("revoke token"))
	h.ok(err)
	h.wantRefused(h.enrollWith("two", "b"), "token_revoked")
}

func secondRegistry(h *harness) {
	two := h.second()
	h.enroll("thumb")
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	for i := range 4 {
		before := two.AudiencesRevision()
		h.ok(h.SetAudience(h.ctx, signer.Audience{Issuer: issuer, Origin: fmt.Sprint("https://", i), Audience: fmt.Sprint(i)}, nil, act("set audience")))
		a := two.call("thumb")
		if i%2 == 1 {
			a = two.bearer("secret")
		}
		_, err := two.Authorize(h.ctx, a)
		h.ok(err)
		if two.AudiencesRevision() == before {
			h.Fatal("a sign after a change of the registry did not tell the second store of it")
		}
		list, err := two.Audiences(h.ctx, issuer)
		h.ok(err)
		if len(list) != i+1 {
			h.Fatalf("the second store's registry is %+v", list)
		}
	}
	before := two.AudiencesRevision()
	h.ok(h.RemoveAudience(h.ctx, issuer, "https://0", act("remove audience")))
	_, err := two.Authorize(h.ctx, two.call("thumb"))
	h.ok(err)
	if two.AudiencesRevision() == before {
		h.Fatal("a sign after a removal did not tell the second store of it")
	}
	still := two.AudiencesRevision()
	_, err = two.Authorize(h.ctx, two.call("thumb"))
	h.ok(err)
	if two.AudiencesRevision() != still {
		h.Fatal("the revision moved though nothing changed")
	}
}

func secondKill(h *harness) {
	two := h.second()
	h.enroll("thumb")
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	call, bearer, enrolment := two.call("thumb"), two.bearer("secret"), two.enrolment("another")
	e, _, err := h.Kill(h.ctx, killswitch.Entry{ID: "kill", Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "r", Actor: "a"}, 0, act("kill"))
	h.ok(err)
	h.ok(h.Enforce(h.ctx, e.Epoch))
	for _, a := range []signer.Authorization{call, bearer} {
		_, err = two.Authorize(h.ctx, a)
		h.wantIs(err, signer.ErrStaleEpoch)
	}
	_, err = two.Enroll(h.ctx, enrolment)
	h.wantIs(err, signer.ErrStaleEpoch)
	for _, a := range []*signer.Authorization{&call, &bearer} {
		a.Epoch = two.epoch()
		_, err = two.Authorize(h.ctx, *a) // nothing was used up
		h.ok(err)
	}
}

func secondName(h *harness) {
	two := h.second()
	const n = 12
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		at := []*harness{h, two}[i%2]
		wg.Go(func() {
			err := at.PutCredential(h.ctx, credential(fmt.Sprint("id", i), "name", fmt.Sprint("secret ", i)), act("create credential"))
			if err == nil {
				made.Add(1)
			} else if !errors.Is(err, signer.ErrExists) {
				h.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		h.Fatalf("%d active credentials have one name", made.Load())
	}
	list, _, err := two.Credentials(h.ctx, issuer, signer.Page{})
	h.ok(err)
	if len(list) != 1 {
		h.Fatalf("the list has %+v", list)
	}
}
