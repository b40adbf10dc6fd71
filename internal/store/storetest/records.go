package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

func credentials(h *harness) {
	c := credential("id", "name", "secret")
	c.CreatedAt = h.now()
	c.ExpiresAt = h.now().Add(24 * time.Hour)
	h.ok(h.PutCredential(h.ctx, c, act("create credential")))
	who, err := h.Authorize(h.ctx, h.bearer("secret"))
	h.ok(err)
	if want := (signer.Authorized{Kind: signer.CredentialCaller, ID: "id", Subject: "pa_id"}); who != want {
		h.Fatalf("authorized %+v, want %+v", who, want)
	}
	_, err = h.Authorize(h.ctx, h.bearer("wrong"))
	h.wantRefused(err, "unknown")
	elsewhere := h.bearer("secret")
	elsewhere.Issuer = other
	_, err = h.Authorize(h.ctx, elsewhere)
	h.wantRefused(err, "unknown")

	// Rotate.
	rotated, err := h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
		c.Hash, c.RotatedAt = hash("second secret"), h.now()
		return nil
	}, act("rotate credential"))
	h.ok(err)
	_, err = h.Authorize(h.ctx, h.bearer("secret"))
	h.wantRefused(err, "unknown")
	h.reopen()
	_, err = h.Authorize(h.ctx, h.bearer("secret"))
	h.wantRefused(err, "unknown")
	who, err = h.Authorize(h.ctx, h.bearer("second secret"))
	h.ok(err)
	if who.Subject != "pa_id" {
		h.Fatalf("rotation changed the subject to %s", who.Subject)
	}
	stored, err := h.Credential(h.ctx, issuer, "id")
	h.ok(err)
	if stored.Hash != rotated.Hash || !stored.RotatedAt.Equal(rotated.RotatedAt) || stored.Principal != c.Principal {
		h.Fatalf("stored %+v, want %+v", stored, rotated)
	}

	// A change may refuse, and may not touch the identity.
	refusal := errors.New("no")
	_, err = h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
		c.Hash = hash("third secret")
		return refusal
	}, act("rotate credential"))
	h.wantIs(err, refusal)
	_, err = h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
		c.Principal = "somebody else"
		return nil
	}, act("rotate credential"))
	if err == nil {
		h.Fatal("a credential got another principal")
	}
	_, err = h.Authorize(h.ctx, h.bearer("second secret"))
	h.ok(err)
	_, err = h.UpdateCredential(h.ctx, issuer, "nobody", func(*signer.Credential) error { return nil }, act("rotate credential"))
	h.wantIs(err, signer.ErrNotFound)
	_, err = h.Credential(h.ctx, issuer, "nobody")
	h.wantIs(err, signer.ErrNotFound)

	// Expire.
	for held := false; !held; { // again, if the machine was busy and the credential has expired
		expires := h.now().Add(24 * time.Hour)
		_, err = h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
			c.ExpiresAt = expires
			return nil
		}, act("rotate credential"))
		h.ok(err)
		h.backend.Advance(expires.Add(-time.Second).Sub(h.now()))
		_, err = h.Authorize(h.ctx, h.bearer("second secret"))
		if held = h.now().Before(expires); held {
			h.ok(err)
		}
	}
	h.backend.Advance(time.Second)
	_, err = h.Authorize(h.ctx, h.bearer("second secret"))
	h.wantRefused(err, "expired")

	// Revoke.
	h.ok(h.PutCredential(h.ctx, credential("id2", "name2", "secret2"), act("create credential")))
	if _, n, err := h.Counts(h.ctx, issuer); err != nil || n != 2 {
		h.Fatalf("counts %d credentials (%v), want 2", n, err)
	}
	h.revoke("id2")
	_, err = h.Authorize(h.ctx, h.bearer("secret2"))
	h.wantRefused(err, "revoked")
	h.reopen()
	_, err = h.Authorize(h.ctx, h.bearer("secret2"))
	h.wantRefused(err, "revoked")
	if _, n, err := h.Counts(h.ctx, issuer); err != nil || n != 1 {
		h.Fatalf("counts %d credentials (%v), want 1", n, err)
	}
}

func (h *harness) revoke(id string) {
	h.Helper()
	_, err := h.UpdateCredential(h.ctx, issuer, id, func(c *signer.Credential) error {
		c.RevokedAt, c.Reason = h.now(), "testing"
		return nil
	}, act("revoke credential"))
	h.ok(err)
}

func credentialConflicts(h *harness) {
	h.ok(h.PutCredential(h.ctx, credential("a", "name", "secret a"), act("create credential")))
	h.wantIs(h.PutCredential(h.ctx, credential("b", "name", "secret b"), act("create credential")), signer.ErrExists)
	h.wantIs(h.PutCredential(h.ctx, credential("b", "name b", "secret a"), act("create credential")), signer.ErrExists)
	h.wantIs(h.PutCredential(h.ctx, credential("a", "name a", "secret b"), act("create credential")), signer.ErrExists)
	_, err := h.Authorize(h.ctx, h.bearer("secret b"))
	h.wantRefused(err, "unknown")

	h.ok(h.PutCredential(h.ctx, credential("b", "name b", "secret b"), act("create credential")))
	_, err = h.UpdateCredential(h.ctx, issuer, "b", func(c *signer.Credential) error {
		c.Hash = hash("secret a")
		return nil
	}, act("rotate credential"))
	h.wantIs(err, signer.ErrExists)
	_, err = h.Authorize(h.ctx, h.bearer("secret b"))
	h.ok(err)

	h.revoke("a")
	c := credential("c", "name", "secret c")
	c.ExpiresAt = h.now().Add(time.Hour)
	h.ok(h.PutCredential(h.ctx, c, act("create credential"))) // the name is free again
	h.backend.Advance(2 * time.Hour)
	h.ok(h.PutCredential(h.ctx, credential("d", "name", "secret d"), act("create credential")))
	elsewhere := credential("d", "name", "secret d")
	elsewhere.Issuer = other
	h.ok(h.PutCredential(h.ctx, elsewhere, act("create credential")))
}

func credentialRace(h *harness) {
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create credential")))
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := h.UpdateCredential(h.ctx, issuer, "id", func(c *signer.Credential) error {
				c.Hash = hash(fmt.Sprint("secret ", i))
				return nil
			}, act("rotate credential"))
			if err != nil {
				h.Errorf("rotate: %v", err)
			}
		})
	}
	wg.Wait()
	accepted := 0
	for i := range n {
		if _, err := h.Authorize(h.ctx, h.bearer(fmt.Sprint("secret ", i))); err == nil {
			accepted++
		}
	}
	if accepted != 1 {
		h.Fatalf("after %d rotations %d secrets are accepted", n, accepted)
	}
}

func audiences(h *harness) {
	set := func(origin, audience string, check func([]signer.Audience) error) error {
		return h.SetAudience(h.ctx, signer.Audience{
			Issuer: issuer, Origin: origin, Audience: audience, SetAt: h.now(), SetBy: "tester",
		}, check, act("set audience"))
	}
	want := func(pairs ...string) {
		h.Helper()
		list, err := h.Audiences(h.ctx, issuer)
		h.ok(err)
		var got []string
		for _, a := range list {
			got = append(got, a.Origin, a.Audience)
		}
		if !slices.Equal(got, pairs) {
			h.Fatalf("the registry is %v, want %v", got, pairs)
		}
	}
	h.ok(set("https://b.example", "aud-b", nil))
	h.ok(set("https://a.example", "aud-a", nil))
	want("https://a.example", "aud-a", "https://b.example", "aud-b")
	h.wantIs(set("https://c.example", "aud-a", nil), signer.ErrExists)
	h.wantIs(set("https://b.example", "aud-a", nil), signer.ErrExists)
	h.ok(set("https://a.example", "aud-a2", nil))
	h.ok(set("https://c.example", "aud-a", nil))
	want("https://a.example", "aud-a2", "https://b.example", "aud-b", "https://c.example", "aud-a")

	full := errors.New("full")
	err := set("https://aa.example", "aud-aa", func(list []signer.Audience) error {
		var origins []string
		for _, a := range list {
			origins = append(origins, a.Origin)
		}
		if !slices.Equal(origins, []string{"https://a.example", "https://aa.example", "https://b.example", "https://c.example"}) {
			h.Errorf("check saw %v", origins)
		}
		return full
	})
	h.wantIs(err, full)
	err = set("https://a.example", "aud-a3", func(list []signer.Audience) error {
		if len(list) != 3 || list[0].Audience != "aud-a3" {
			h.Errorf("check saw %+v", list)
		}
		return full
	})
	h.wantIs(err, full)
	want("https://a.example", "aud-a2", "https://b.example", "aud-b", "https://c.example", "aud-a")

	h.ok(h.SetAudience(h.ctx, signer.Audience{Issuer: other, Origin: "https://a.example", Audience: "aud-b"}, nil, act("set audience")))
	h.ok(h.RemoveAudience(h.ctx, issuer, "https://a.example", act("remove audience")))
	h.wantIs(h.RemoveAudience(h.ctx, issuer, "https://a.example", act("remove audience")), signer.ErrNotFound)
	h.reopen()
	want("https://b.example", "aud-b", "https://c.example", "aud-a")
}

func pages(h *harness) {
	const n = 7
	var ids []string
	for i := range n {
		id := fmt.Sprint("id", i)
		ids = append(ids, id)
		h.enroll(id)
		h.ok(h.PutCredential(h.ctx, credential(id, "name "+id, "secret "+id), act("create credential")))
		h.putToken(id, time.Hour)
		for _, iss := range []string{issuer + "/", "https://pa.example.co", other} { // neighbours
			e := h.enrolment(id)
			e.Device.Issuer = iss
			_, err := h.Enroll(h.ctx, e)
			h.ok(err)
		}
	}
	for what, list := range map[string]func(p signer.Page) ([]string, string, error){
		"devices": func(p signer.Page) ([]string, string, error) {
			l, next, err := h.Devices(h.ctx, issuer, p)
			return mapped(l, func(d signer.Device) string { return d.Thumbprint }), next, err
		},
		"credentials": func(p signer.Page) ([]string, string, error) {
			l, next, err := h.Credentials(h.ctx, issuer, p)
			return mapped(l, func(c signer.Credential) string { return c.ID }), next, err
		},
		"tokens": func(p signer.Page) ([]string, string, error) {
			l, next, err := h.EnrollmentTokens(h.ctx, issuer, p)
			return mapped(l, func(t signer.EnrollmentToken) string { return t.ID }), next, err
		},
	} {
		for _, size := range []int{1, 3, n - 1, n, n + 1} {
			var got []string
			after := ""
			for calls := 0; ; calls++ {
				if calls > n {
					h.Fatalf("%s by %d: no end", what, size)
				}
				l, next, err := list(signer.Page{Size: size, After: after})
				h.ok(err)
				if len(l) > size {
					h.Fatalf("%s by %d: a page of %d", what, size, len(l))
				}
				got = append(got, l...)
				if after = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, ids) {
				h.Fatalf("%s by %d: got %v, want %v", what, size, got, ids)
			}
		}
		if l, next, err := list(signer.Page{}); err != nil || !slices.Equal(l, ids) || next != "" {
			h.Fatalf("%s without a size: %v, %q, %v", what, l, next, err)
		}
		if l, next, err := list(signer.Page{After: "zzz"}); err != nil || len(l) != 0 || next != "" {
			h.Fatalf("%s after the last: %v, %q, %v", what, l, next, err)
		}
	}
}

func mapped[T any](list []T, f func(T) string) []string {
	var out []string
	for _, x := range list {
		out = append(out, f(x))
	}
	return out
}

// wholeAudit reads the log in small pages and verifies it.
func (h *harness) wholeAudit() []audit.Entry {
	h.Helper()
	var all []audit.Entry
	var v audit.Verifier
	for {
		list, err := h.Audit(h.ctx, v.Entries, 3)
		h.ok(err)
		if len(list) > 3 {
			h.Fatalf("asked for 3 audit entries, got %d", len(list))
		}
		if len(list) == 0 {
			return all
		}
		for _, e := range list {
			h.ok(v.Add(e))
		}
		all = append(all, list...)
	}
}

func auditChain(h *harness) {
	if got := h.wholeAudit(); len(got) != 0 {
		h.Fatalf("a new store has %d audit entries", len(got))
	}
	entry := act("first")
	entry.Detail = map[string]string{"b": "2", "a": "1"}
	entry.Target, entry.Time = "target", h.now().Add(-time.Minute)
	h.ok(h.AppendAudit(h.ctx, entry))
	h.enroll("thumb")
	_, err := h.Invalidate(h.ctx, issuer, "thumb", "r", act("invalidate"))
	h.ok(err)
	h.ok(h.PutCredential(h.ctx, credential("id", "name", "secret"), act("create")))
	// What is refused leaves no entry.
	if err := h.PutCredential(h.ctx, credential("id2", "name", "secret2"), act("refused")); err == nil {
		h.Fatal("two credentials of one name")
	}
	no := errors.New("no")
	h.wantIs(h.SetAudience(h.ctx, signer.Audience{Issuer: issuer, Origin: "o", Audience: "a"},
		func([]signer.Audience) error { return no }, act("refused")), no)
	h.reopen()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := h.AppendAudit(h.ctx, act("many")); err != nil {
				h.Errorf("append: %v", err)
			}
		})
		wg.Go(func() {
			if err := h.SetAudience(h.ctx, signer.Audience{Issuer: issuer, Origin: "o", Audience: "a"}, nil, act("set")); err != nil {
				h.Errorf("set: %v", err)
			}
		})
	}
	wg.Wait()
	all := h.wholeAudit()
	if len(all) != 43 {
		h.Fatalf("the log has %d entries, want 43", len(all))
	}
	first := all[0]
	if first.Action != "first" || !reflect.DeepEqual(first.Detail, entry.Detail) || first.Target != "target" ||
		!first.Time.Equal(entry.Time.Truncate(time.Millisecond)) {
		h.Fatalf("the first entry is %+v", first)
	}
	for _, e := range all {
		if e.Action == "refused" || e.Time.IsZero() {
			h.Fatalf("the log has %+v", e)
		}
	}
}
