package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

var transferCases = []testCase{
	{"everything comes back", transferAll},
	{"what was imported works", transferWorks},
	{"not into a store with records", transferRefused},
	{"interrupted, and done again", transferInterrupted},
	{"an export that ends", transferStopped},
	{"many records", transferMany},
}

// records exports a store, each record as its JSON, sorted but for the audit log,
// whose order counts.
func (h *harness) records(s Store) []string {
	h.Helper()
	var list, log []string
	var switched killswitch.State
	h.ok(s.Export(h.ctx, func(r signer.Record) error {
		switch {
		case r.Switch != nil:
			switched = killswitch.Merge(switched, *r.Switch)
		case r.Audit != nil:
			log = append(log, h.json(r))
		default:
			list = append(list, h.json(r))
		}
		return nil
	}))
	slices.Sort(list)
	return append(append(list, h.json(signer.Record{Switch: &switched})), log...)
}

func (h *harness) json(v any) string {
	h.Helper()
	b, err := json.Marshal(v)
	h.ok(err)
	return string(b)
}

// export is what a store holds.
func (h *harness) export(s Store) []signer.Record {
	h.Helper()
	var list []signer.Record
	h.ok(s.Export(h.ctx, func(r signer.Record) error {
		b, err := json.Marshal(r) // what the store shares with it may change later
		if err != nil {
			return err
		}
		var c signer.Record
		err = json.Unmarshal(b, &c)
		list = append(list, c)
		return err
	}))
	return list
}

// source yields the records, then err.
func source(list []signer.Record, err error) func() (signer.Record, error) {
	return func() (signer.Record, error) {
		if len(list) == 0 {
			return signer.Record{}, err
		}
		r := list[0]
		list = list[1:]
		return r, nil
	}
}

// fresh is another backend's store, that records may be imported into.
func (h *harness) fresh() (Backend, Store) {
	h.Helper()
	b := h.newBackend(h.T)
	open := b.Fresh
	if open == nil {
		open = b.Open
	}
	s := open(h.T)
	h.Cleanup(func() { s.Close() })
	return b, s
}

// adopt lets a store serve that records were imported into.
func (h *harness) adopt(b Backend, s Store) {
	h.Helper()
	if b.Adopt != nil {
		b.Adopt(h.T, s)
	}
}

// move imports what the store holds into another one, which becomes the harness's.
func (h *harness) move() {
	h.Helper()
	list, now := h.export(h.Store), h.now()
	b, s := h.fresh()
	h.ok(s.Import(h.ctx, source(list, io.EOF)))
	h.adopt(b, s)
	h.backend, h.Store = b, s
	if ahead := now.Sub(h.now()); ahead > 0 {
		b.Advance(ahead)
	}
}

func wantSame(h *harness, got, want []string) {
	h.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			h.Fatalf("record %d is missing: %s", i, want[i])
		case i >= len(want):
			h.Fatalf("record %d is one too many: %s", i, got[i])
		case got[i] != want[i]:
			h.Fatalf("record %d came back as\n%s\nand was\n%s", i, got[i], want[i])
		}
	}
}

// fill makes records of every kind and in every state.
func (h *harness) fill() {
	h.Helper()
	for _, thumb := range []string{"signed", "unsigned", "lost", "second"} {
		h.enroll(thumb)
	}
	elsewhere := h.enrolment("signed")
	elsewhere.Device.Issuer, elsewhere.Device.Subject = other, "pa_elsewhere"
	_, err := h.Enroll(h.ctx, elsewhere)
	h.ok(err)
	_, err = h.Authorize(h.ctx, h.call("signed"))
	h.ok(err)
	for thumb, reason := range map[string]string{"lost": "lost phone", "never seen": "list of a vendor"} {
		_, err = h.Invalidate(h.ctx, issuer, thumb, reason, act("device.invalidate"))
		h.ok(err)
	}

	for id, secret := range map[string]string{"plain": "secret", "rotated": "old secret", "revoked": "revoked secret", "brief": "brief secret"} {
		c := credential(id, "name of "+id, secret)
		c.CreatedAt = h.now()
		if id == "brief" {
			c.Name, c.ExpiresAt = "name twice", h.now().Add(time.Minute)
		}
		h.ok(h.PutCredential(h.ctx, c, act("credential.create")))
	}
	_, err = h.UpdateCredential(h.ctx, issuer, "rotated", func(c *signer.Credential) error {
		c.Hash, c.RotatedAt, c.ExpiresAt = hash("new secret"), h.now(), h.now().Add(time.Hour)
		return nil
	}, act("credential.rotate"))
	h.ok(err)
	h.revoke("revoked")
	foreign := credential("plain", "name of plain", "secret")
	foreign.Issuer, foreign.CreatedAt = other, h.now()
	h.ok(h.PutCredential(h.ctx, foreign, act("credential.create")))

	for _, id := range []string{"unused", "used", "ended"} {
		h.putToken(id, time.Hour)
	}
	bound := h.enrolment("bound")
	bound.Token, bound.NeedToken = hash("token used"), true
	_, err = h.Enroll(h.ctx, bound)
	h.ok(err)
	_, err = h.RevokeEnrollmentToken(h.ctx, issuer, "ended", h.now(), act("enrollment_token.revoke"))
	h.ok(err)

	for _, a := range []signer.Audience{
		{Issuer: issuer, Origin: "https://p.example.com", Audience: "pact:p", SetAt: h.now(), SetBy: "tester"},
		{Issuer: issuer, Origin: "https://q.example.com", Audience: "pact:q <&> ü", SetAt: h.now(), SetBy: "tester"},
		{Issuer: other, Origin: "https://p.example.com", Audience: "pact:p", SetAt: h.now(), SetBy: "tester"},
	} {
		h.ok(h.SetAudience(h.ctx, a, nil, act("audience.set")))
	}

	scope := killswitch.Scope{Kind: killswitch.Device, Issuer: issuer, Value: "stolen"}
	_, _, err = h.Kill(h.ctx, entry("lifted", everything), 7, act("kill"))
	h.ok(err)
	_, _, err = h.Kill(h.ctx, entry("in force", scope), 0, act("kill"))
	h.ok(err)
	_, err = h.Resume(h.ctx, killswitch.Resume{ID: "r", Entries: []string{"lifted"}, Reason: "over", Actor: "tester"}, h.epoch(), 0, act("resume"))
	h.ok(err)

	mirror, ok := h.Store.(rotation.Mirror)
	if !ok {
		h.Fatal("the store does not implement rotation.Mirror")
	}
	h.ok(mirror.Mirror(h.ctx, issuer, 41, []byte(`{"keys":[]}`)))
	h.ok(mirror.Mirror(h.ctx, other, 3, []byte{0, 255, '\n'}))

	h.backend.Advance(2 * time.Minute) // the brief credential is over, and its name free
	again := credential("again", "name twice", "secret of again")
	again.CreatedAt = h.now()
	h.ok(h.PutCredential(h.ctx, again, act("credential.create")))
	e := act("with detail")
	e.Detail = map[string]string{"b": "2", "a": "1 <&> \u2028"}
	h.ok(h.AppendAudit(h.ctx, e))
}

// What is exported, imported elsewhere and exported again is the same, byte by
// byte, and so is what the methods answer.
func transferAll(h *harness) {
	h.fill()
	want := h.records(h.Store)
	from := h.answers()
	h.move()
	wantSame(h, h.records(h.Store), want)
	wantSame(h, h.answers(), from)
	h.reopen()
	wantSame(h, h.records(h.Store), want)
	wantSame(h, h.answers(), from)
}

// answers is what the store's methods say of its records.
func (h *harness) answers() []string {
	h.Helper()
	var list []string
	say := func(v any, err error) {
		h.Helper()
		h.ok(err)
		list = append(list, h.json(v))
	}
	page := signer.Page{Size: 1000}
	for _, i := range []string{issuer, other} {
		devices, _, err := h.Devices(h.ctx, i, page)
		say(devices, err)
		credentials, _, err := h.Credentials(h.ctx, i, page)
		say(credentials, err)
		tokens, _, err := h.EnrollmentTokens(h.ctx, i, page)
		say(tokens, err)
		say(h.Audiences(h.ctx, i))
		d, c, err := h.Counts(h.ctx, i)
		say([]uint64{d, c}, err)
		revision, doc, err := h.Store.(rotation.Mirror).Mirrored(h.ctx, i)
		say(signer.MirroredSchedule{Issuer: i, Revision: revision, Document: doc}, err)
	}
	state, err := h.State(h.ctx)
	say(killswitch.Merge(state, killswitch.State{}), err)
	say(h.Audit(h.ctx, 0, 1000))
	return list
}

// A store that records were moved to goes on as the first one would have.
func transferWorks(h *harness) {
	h.fill()
	revision := h.AudiencesRevision()
	h.move()

	who, err := h.Authorize(h.ctx, h.call("signed"))
	h.ok(err)
	if who.Subject != "pa_signed" {
		h.Errorf("the device has the subject %s", who.Subject)
	}
	for thumb, why := range map[string]string{"lost": "invalidated", "never seen": "invalidated", "nobody": "unknown"} {
		_, err = h.Authorize(h.ctx, h.call(thumb))
		h.wantRefused(err, why)
		if why == "invalidated" {
			_, err = h.Enroll(h.ctx, h.enrolment(thumb))
			h.wantRefused(err, why)
		}
	}
	for secret, why := range map[string]string{
		"secret": "", "new secret": "", "secret of again": "",
		"old secret": "unknown", "revoked secret": "revoked", "brief secret": "expired",
	} {
		_, err := h.Authorize(h.ctx, h.bearer(secret))
		if why == "" {
			h.ok(err)
		} else {
			h.wantRefused(err, why)
		}
	}
	for _, name := range []string{"name of plain", "name twice"} {
		h.wantIs(h.PutCredential(h.ctx, credential("one more", name, "secret of one more"), act("credential.create")), signer.ErrExists)
	}
	h.wantIs(h.PutCredential(h.ctx, credential("one more", "its name", "secret of again"), act("credential.create")), signer.ErrExists)
	h.ok(h.PutCredential(h.ctx, credential("one more", "name of revoked", "secret of one more"), act("credential.create")))

	for token, why := range map[string]string{"used": "token_spent", "ended": "token_revoked", "unused": ""} {
		e := h.enrolment("new with " + token)
		e.Token, e.NeedToken = hash("token "+token), true
		_, err := h.Enroll(h.ctx, e)
		if why == "" {
			h.ok(err)
		} else {
			h.wantRefused(err, why)
		}
	}
	full := h.enrolment("over the cap")
	full.Cap = 5 // signed, unsigned, second, bound, new with unused
	_, err = h.Enroll(h.ctx, full)
	h.wantIs(err, signer.ErrFull)

	taken := signer.Audience{Issuer: issuer, Origin: "https://r.example.com", Audience: "pact:p", SetAt: h.now(), SetBy: "tester"}
	h.wantIs(h.SetAudience(h.ctx, taken, nil, act("audience.set")), signer.ErrExists)
	if h.AudiencesRevision() == 0 && revision != 0 {
		h.Error("the registry's revision does not tell that there is one")
	}

	// The epoch is the first one's, and rises from there.
	stale := h.call("signed")
	stale.Epoch--
	_, err = h.Authorize(h.ctx, stale)
	h.wantIs(err, signer.ErrStaleEpoch)
	before := h.epoch()
	e, _, err := h.Kill(h.ctx, entry("later", everything), 0, act("kill"))
	h.ok(err)
	if e.Epoch != before+1 {
		h.Errorf("after epoch %d comes %d", before, e.Epoch)
	}

	// The audit log goes on as one chain.
	var v audit.Verifier
	log, err := h.Audit(h.ctx, 0, 1000)
	h.ok(err)
	for _, e := range log {
		h.ok(v.Add(e))
	}

	// A device that has not signed keeps its time to do so, and no more.
	h.backend.Advance(31 * 24 * time.Hour)
	_, _ = h.Authorize(h.ctx, h.call("signed")) // whatever they say: what is over is forgotten
	_, _, _ = h.Counts(h.ctx, issuer)
	_, err = h.Device(h.ctx, issuer, "signed")
	h.ok(err)
	_, err = h.Device(h.ctx, issuer, "lost")
	h.ok(err)
	_, err = h.Authorize(h.ctx, h.call("unsigned"))
	h.wantRefused(err, "unknown")
}

// Records are not mixed with others.
func transferRefused(h *harness) {
	h.fill()
	list := h.export(h.Store)
	for name, put := range map[string]func(h *harness){
		"a device":     func(h *harness) { h.enroll("there already") },
		"a credential": func(h *harness) { h.ok(h.PutCredential(h.ctx, credential("c", "n", "s"), act("credential.create"))) },
		"a token":      func(h *harness) { h.putToken("t", time.Hour) },
		"an audience": func(h *harness) {
			h.ok(h.SetAudience(h.ctx, signer.Audience{Issuer: issuer, Origin: "https://x.example.com", Audience: "pact:x"}, nil, act("audience.set")))
		},
		"an invalidation": func(h *harness) {
			_, err := h.Invalidate(h.ctx, issuer, "somebody", "lost", act("device.invalidate"))
			h.ok(err)
		},
		"a kill": func(h *harness) {
			_, _, err := h.Kill(h.ctx, entry("k", everything), 0, act("kill"))
			h.ok(err)
		},
		"an audit entry": func(h *harness) { h.ok(h.AppendAudit(h.ctx, act("something"))) },
	} {
		h.Run(name, func(t *testing.T) {
			h := &harness{T: t, backend: h.newBackend(t), newBackend: h.newBackend, ctx: t.Context()}
			h.Store = h.backend.Open(t)
			t.Cleanup(func() { h.Store.Close() })
			put(h)
			before := h.records(h.Store)
			h.wantIs(h.Store.Import(h.ctx, source(list, io.EOF)), signer.ErrNotEmpty)
			wantSame(h, h.records(h.Store), before)
		})
	}
}

// What an import that did not end has written is not there, and does not hinder the
// next one, with other records too.
func transferInterrupted(h *harness) {
	h.fill()
	list := h.export(h.Store)
	want := h.records(h.Store)
	b, s := h.fresh()
	invisible := func(when string) {
		h.Helper()
		d, err := s.Device(h.ctx, issuer, "signed")
		if err == nil {
			h.Fatalf("%s there is a device: %+v", when, d)
		}
		who, err := s.Authorize(h.ctx, h.bearer("secret"))
		if err == nil {
			h.Fatalf("%s somebody is accepted: %+v", when, who)
		}
	}
	broken := errors.New("the file cannot be read any more")
	for _, n := range []int{0, 1, len(list) / 2, len(list)} {
		h.wantIs(s.Import(h.ctx, source(list[:n], broken)), broken)
		invisible(fmt.Sprintf("after %d records", n))
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	left := source(list, io.EOF)
	n := 0
	err := s.Import(ctx, func() (signer.Record, error) {
		if n++; n == len(list)/2 {
			cancel()
		}
		return left()
	})
	h.wantIs(err, context.Canceled)
	invisible("after an interrupt")

	// Of records that the first ones had and the last ones have not, nothing is left.
	one := source([]signer.Record{{Device: &signer.Device{Issuer: issuer, Thumbprint: "of another file", Subject: "pa_x", Point: make([]byte, 64), EnrolledAt: h.now()}}}, broken)
	h.wantIs(s.Import(h.ctx, one), broken)
	h.ok(s.Import(h.ctx, source(list, io.EOF)))
	h.adopt(b, s)
	h.backend, h.Store = b, s
	wantSame(h, h.records(s), want)
	_, err = s.Device(h.ctx, issuer, "of another file")
	h.wantIs(err, signer.ErrNotFound)
}

// An export ends with its reader.
func transferStopped(h *harness) {
	h.fill()
	enough := errors.New("enough")
	n := 0
	err := h.Store.Export(h.ctx, func(signer.Record) error {
		if n++; n == 5 {
			return enough
		}
		return nil
	})
	h.wantIs(err, enough)
	if n != 5 {
		h.Errorf("%d records were yielded", n)
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	err = h.Store.Export(ctx, func(signer.Record) error { cancel(); return nil })
	h.wantIs(err, context.Canceled)
}

// A store with more records than any page or batch holds comes back whole.
func transferMany(h *harness) {
	const devices, entries = 2500, 1200
	list := make([]signer.Record, 0, devices+entries)
	for i := range devices {
		d := signer.Device{
			Issuer: issuer, Thumbprint: fmt.Sprintf("thumb %04d", i), Subject: fmt.Sprintf("pa_%d", i),
			Point: bytes.Repeat([]byte{byte(i)}, 64), EnrolledAt: h.now().Truncate(time.Second),
		}
		if i%2 == 0 {
			d.LastSignedAt = d.EnrolledAt.Add(time.Second)
		}
		list = append(list, signer.Record{Device: &d})
	}
	var last audit.Entry
	for range entries {
		e := act("many")
		e.Time = h.now()
		last = audit.Chain(last.Seq, last.Hash, e)
		entry := last
		list = append(list, signer.Record{Audit: &entry})
	}
	b, s := h.fresh()
	h.ok(s.Import(h.ctx, source(list, io.EOF)))
	h.adopt(b, s)
	h.backend, h.Store = b, s

	got := h.export(s)
	var enrolled, log []signer.Record // of everything else there is at most a switch at rest
	for _, r := range got {
		switch {
		case r.Device != nil:
			enrolled = append(enrolled, r)
		case r.Audit != nil:
			log = append(log, r)
		}
	}
	slices.SortFunc(enrolled, func(a, b signer.Record) int { return cmp.Compare(a.Device.Thumbprint, b.Device.Thumbprint) })
	texts := func(list []signer.Record) (out []string) {
		for _, r := range list {
			out = append(out, h.json(r))
		}
		return out
	}
	wantSame(h, texts(append(enrolled, log...)), texts(list))

	seen := 0
	for p := (signer.Page{Size: 999}); ; {
		page, next, err := s.Devices(h.ctx, issuer, p)
		h.ok(err)
		seen += len(page)
		if p.After = next; next == "" {
			break
		}
	}
	if n, _, err := s.Counts(h.ctx, issuer); err != nil || n != devices || seen != devices {
		h.Errorf("counts %d devices (%v), and lists %d", n, err, seen)
	}
}
