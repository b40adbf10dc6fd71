package rotation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const issuer = "https://pa.example.com"

func key(n int) NewKey {
	return NewKey{KID: fmt.Sprintf("k%d", n), Algorithm: jose.ES256, Ref: fmt.Sprintf("ref-%d", n), Seq: uint64(n)}
}

func must(t *testing.T) func(Schedule, error) Schedule {
	return func(s Schedule, err error) Schedule {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// running is a schedule whose key k1 signs since t0.
func running(p Params) Schedule {
	s := First(issuer, p, t0, key(1)).Confirm(p, t0)
	s.Revision = 2
	return s
}

// states renders the states of all keys at a time.
func states(s Schedule, t time.Time) string {
	var b strings.Builder
	for _, k := range s.Keys {
		fmt.Fprintf(&b, "%s=%s ", k.KID, s.StateOf(k.KID, t))
	}
	return strings.TrimSpace(b.String())
}

func published(s Schedule, t time.Time) string {
	var kids []string
	for _, k := range s.Published(t) {
		kids = append(kids, k.KID)
	}
	return strings.Join(kids, " ")
}

func signing(s Schedule, t time.Time) string {
	k, ok := s.Signing(t)
	if !ok {
		return "none"
	}
	return k.KID
}

type at struct {
	after                      time.Duration // since t0
	states, published, signing string
}

func expect(t *testing.T, s Schedule, steps ...at) {
	t.Helper()
	if err := s.check(issuer); err != nil {
		t.Errorf("the schedule does not hold: %v", err)
	}
	for _, a := range steps {
		now := t0.Add(a.after)
		if got := states(s, now); got != a.states {
			t.Errorf("at +%v: %s, want %s", a.after, got, a.states)
		}
		if got := published(s, now); got != a.published {
			t.Errorf("at +%v: published %s, want %s", a.after, got, a.published)
		}
		if got := signing(s, now); got != a.signing {
			t.Errorf("at +%v: %s signs, want %s", a.after, got, a.signing)
		}
	}
}

func TestFirstKeyWaitsForTheFleet(t *testing.T) {
	p := Defaults()
	s := First(issuer, p, t0, key(1))
	expect(t, s, at{0, "k1=published", "k1", "none"}, at{time.Hour, "k1=published", "k1", "none"})
	s = s.Confirm(p, t0.Add(7*time.Second))
	expect(t, s,
		at{0, "k1=published", "k1", "none"},
		at{7 * time.Second, "k1=signing", "k1", "k1"},
		at{1000 * time.Hour, "k1=signing", "k1", "k1"})
}

func TestConfirmByAClockThatIsBehind(t *testing.T) {
	p := Defaults()
	s, err := running(p).Emergency(p, t0.Add(time.Second), "k1", key(2))
	s = must(t)(s, err).Confirm(p, t0.Add(-2*time.Second))
	expect(t, s, at{-time.Second, "k1=revoked k2=published", "k2", "none"}, at{0, "k1=revoked k2=signing", "k2", "k2"})
}

func TestRotate(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0.Add(time.Hour), key(2)))
	expect(t, s,
		at{time.Hour - 1, "k1=signing k2=pending", "k1", "k1"},
		at{time.Hour, "k1=signing k2=published", "k1 k2", "k1"},
		at{2*time.Hour - 1, "k1=signing k2=published", "k1 k2", "k1"},
		at{2 * time.Hour, "k1=retiring k2=signing", "k1 k2", "k2"},
		at{3*time.Hour - 1, "k1=retiring k2=signing", "k1 k2", "k2"},
		at{3 * time.Hour, "k1=removed k2=signing", "k2", "k2"})
	if retire, ok := s.RetireAt("k1"); !ok || !retire.Equal(t0.Add(2*time.Hour)) {
		t.Errorf("k1 retires at %v, %v", retire, ok)
	}
	if retire, ok := s.RetireAt("k2"); ok {
		t.Errorf("k2 retires at %v", retire)
	}
	if s.StateOf("nobody", t0) != Removed {
		t.Error("an unknown key is not removed")
	}
}

func TestRotateAgain(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0, key(2)))
	var early *TooEarlyError
	for _, after := range []time.Duration{0, time.Minute, time.Hour - 1} {
		if _, err := s.Rotate(p, t0.Add(after), key(3)); !errors.As(err, &early) || early.KID != "k2" || !early.At.Equal(t0.Add(time.Hour)) {
			t.Fatalf("at +%v: %v", after, err)
		}
	}
	// What the refusal named will do.
	s = must(t)(s.Rotate(p, early.At, key(3)))
	expect(t, s,
		at{time.Hour, "k1=retiring k2=signing k3=published", "k1 k2 k3", "k2"},
		at{2 * time.Hour, "k1=removed k2=retiring k3=signing", "k2 k3", "k3"})

	waiting := First(issuer, p, t0, key(1))
	if _, err := waiting.Rotate(p, t0, key(2)); !errors.As(err, &early) || early.KID != "k1" || early.At.Before(t0) {
		t.Errorf("while the first key waits: %v", err)
	}
}

func TestNeverMoreThanEightKeys(t *testing.T) {
	p := Defaults()
	p.Lead, p.Overlap = 10*time.Minute, 24*time.Hour
	s, now := running(p), t0
	for n := 2; n <= 8; n++ {
		s = must(t)(s.Rotate(p, now, key(n)))
		now = now.Add(p.Lead)
	}
	var early *TooEarlyError
	if _, err := s.Rotate(p, now, key(9)); !errors.As(err, &early) || early.KID != "k1" || !early.At.Equal(t0.Add(p.Lead+p.Overlap)) {
		t.Fatalf("the ninth: %v", err)
	}
	s = must(t)(s.Rotate(p, early.At, key(9)))
	if n := len(s.Published(early.At)); n != MaxKeys {
		t.Errorf("%d keys published", n)
	}
}

func TestEmergency(t *testing.T) {
	p := Defaults()
	rotated := must(t)(running(p).Rotate(p, t0, key(2))) // k2 signs at +1h, k1 leaves at +2h
	min := func(n int) time.Duration { return time.Duration(n) * time.Minute }

	t.Run("signing key", func(t *testing.T) {
		s := must(t)(running(p).Emergency(p, t0.Add(min(1)), "k1", key(2)))
		expect(t, s, at{min(1), "k1=revoked k2=published", "k2", "none"}, at{min(900), "k1=revoked k2=published", "k2", "none"})
		s = s.Confirm(p, t0.Add(min(2)))
		expect(t, s, at{min(2) - 1, "k1=revoked k2=published", "k2", "none"}, at{min(2), "k1=revoked k2=signing", "k2", "k2"})
	})
	t.Run("signing key with the next one on its way", func(t *testing.T) {
		s := must(t)(rotated.Emergency(p, t0.Add(min(1)), "k1", key(3)))
		expect(t, s, at{min(1), "k1=revoked k2=published k3=published", "k2 k3", "none"})
		confirmed := s.Confirm(p, t0.Add(min(2)))
		expect(t, confirmed,
			at{min(2), "k1=revoked k2=published k3=signing", "k2 k3", "k3"},
			at{min(60), "k1=revoked k2=signing k3=retiring", "k2 k3", "k2"},
			at{min(120), "k1=revoked k2=signing k3=removed", "k2", "k2"})
		// The next key's time comes before the fleet has confirmed: nothing is
		// missing then, so the fresh one keeps its lead.
		late := s.Confirm(p, t0.Add(min(60)))
		expect(t, late,
			at{min(60), "k1=revoked k2=signing k3=published", "k2 k3", "k2"},
			at{min(62), "k1=revoked k2=retiring k3=signing", "k2 k3", "k3"})
	})
	t.Run("next key", func(t *testing.T) {
		s := must(t)(rotated.Emergency(p, t0.Add(min(10)), "k2", key(3)))
		expect(t, s,
			at{min(10), "k1=signing k2=revoked k3=published", "k1 k3", "k1"},
			at{min(60), "k1=signing k2=revoked k3=published", "k1 k3", "k1"},
			at{min(70), "k1=retiring k2=revoked k3=signing", "k1 k3", "k3"},
			at{min(130), "k1=removed k2=revoked k3=signing", "k3", "k3"})
	})
	t.Run("retiring key", func(t *testing.T) {
		s := must(t)(rotated.Emergency(p, t0.Add(min(70)), "k1", key(3)))
		expect(t, s, at{min(70), "k1=revoked k2=signing", "k2", "k2"})
	})
	t.Run("signing key while its predecessor retires", func(t *testing.T) {
		s := must(t)(rotated.Emergency(p, t0.Add(min(70)), "k2", key(3)))
		// A key that has retired never signs again.
		expect(t, s, at{min(70), "k1=retiring k2=revoked k3=published", "k1 k3", "none"},
			at{min(120), "k1=removed k2=revoked k3=published", "k3", "none"})
	})
	t.Run("fresh key of an emergency", func(t *testing.T) {
		s := must(t)(running(p).Emergency(p, t0.Add(min(1)), "k1", key(2)))
		s = must(t)(s.Emergency(p, t0.Add(min(2)), "k2", key(3)))
		expect(t, s.Confirm(p, t0.Add(min(3))), at{min(3), "k1=revoked k2=revoked k3=signing", "k3", "k3"})
	})
	t.Run("retiring key while a fresh one waits", func(t *testing.T) {
		s := must(t)(rotated.Emergency(p, t0.Add(min(70)), "k2", key(3)))
		s = must(t)(s.Emergency(p, t0.Add(min(71)), "k1", key(4)))
		expect(t, s, at{min(71), "k1=revoked k2=revoked k3=published", "k3", "none"})
	})
	t.Run("refused", func(t *testing.T) {
		if _, err := rotated.Emergency(p, t0, "nobody", key(3)); !errors.Is(err, ErrUnknownKey) {
			t.Error(err)
		}
		s := must(t)(rotated.Emergency(p, t0, "k1", key(3)))
		if _, err := s.Emergency(p, t0, "k1", key(4)); !errors.Is(err, ErrRevoked) {
			t.Error(err)
		}
	})
}

func TestWithdraw(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0, key(2)))
	s = must(t)(s.Rotate(p, t0.Add(time.Hour), key(3)))
	now := 90 * time.Minute
	s = must(t)(s.Withdraw(p, t0.Add(now), key(4)))
	expect(t, s, at{now, "k1=revoked k2=revoked k3=revoked k4=published", "k4", "none"})
	expect(t, s.Confirm(p, t0.Add(now)),
		at{now, "k1=revoked k2=revoked k3=revoked k4=signing", "k4", "k4"},
		at{100 * time.Hour, "k1=revoked k2=revoked k3=revoked k4=signing", "k4", "k4"})
}

func TestPostpone(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0, key(2)))
	freeze := t0.Add(time.Hour - p.Freeze())
	until := t0.Add(80 * time.Minute)
	later := must(t)(s.Postpone(p, freeze.Add(-1), "k2", until))
	expect(t, later,
		at{time.Hour, "k1=signing k2=published", "k1 k2", "k1"},
		at{80 * time.Minute, "k1=retiring k2=signing", "k1 k2", "k2"},
		at{140*time.Minute - 1, "k1=retiring k2=signing", "k1 k2", "k2"},
		at{140 * time.Minute, "k1=removed k2=signing", "k2", "k2"})
	var frozen *FrozenError
	if _, err := s.Postpone(p, freeze, "k2", until); !errors.As(err, &frozen) || !frozen.At.Equal(freeze) {
		t.Errorf("at the freeze: %v", err)
	}
	if _, err := s.Postpone(p, t0, "k2", t0.Add(time.Hour)); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("to the same time: %v", err)
	}
	for _, kid := range []string{"k1", "nobody"} {
		if _, err := s.Postpone(p, t0, kid, until); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s: %v", kid, err)
		}
	}
	// An emergency is not bound by the freeze.
	if got := must(t)(s.Emergency(p, freeze.Add(1), "k2", key(3))); signing(got, t0.Add(time.Hour)) != "k1" {
		t.Error("an emergency in the freeze did not stop the next key")
	}
}

func TestRotateAt(t *testing.T) {
	p := Defaults()
	if _, ok := First(issuer, p, t0, key(1)).RotateAt(p, t0); ok {
		t.Error("due while the first key waits")
	}
	due, ok := running(p).RotateAt(p, t0)
	if !ok || !due.Equal(t0.Add(p.Period-p.Lead)) {
		t.Fatalf("due at %v, %v", due, ok)
	}
	s := must(t)(running(p).Rotate(p, due, key(2)))
	if at := s.Keys[1].SignAt; !at.Equal(t0.Add(p.Period)) {
		t.Errorf("signs at %v, not when the period has passed", at)
	}
	if _, ok := s.RotateAt(p, due); ok {
		t.Error("due while a key is on its way")
	}
	if next, ok := s.RotateAt(p, t0.Add(p.Period)); !ok || !next.Equal(t0.Add(2*p.Period-p.Lead)) {
		t.Errorf("next due at %v, %v", next, ok)
	}
	p.Period = 0
	if _, ok := running(p).RotateAt(p, t0); ok {
		t.Error("due without a period")
	}
}

func TestPrune(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0, key(2)))
	gone := t0.Add(p.Lead + p.Overlap)
	if _, changed := s.Prune(p, gone.Add(p.Keep-1)); changed {
		t.Error("dropped too early")
	}
	pruned, changed := s.Prune(p, gone.Add(p.Keep))
	if !changed || states(pruned, gone.Add(p.Keep)) != "k2=signing" {
		t.Errorf("left %s", states(pruned, gone.Add(p.Keep)))
	}
	// The revoked key that signed last must be remembered: without it the one
	// before would sign again.
	s = must(t)(s.Emergency(p, t0.Add(90*time.Minute), "k2", key(3)))
	pruned, _ = s.Prune(p, t0.Add(1000*time.Hour))
	expect(t, pruned, at{1000 * time.Hour, "k2=revoked k3=published", "k3", "none"})
}

func TestTransitionsLeaveTheirInputAlone(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0, key(2)))
	before, err := s.render()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.Emergency(p, t0, "k1", key(3))
	_, _ = s.Withdraw(p, t0, key(3))
	_, _ = s.Postpone(p, t0, "k2", t0.Add(9*time.Hour))
	_, _ = s.Rotate(p, t0.Add(2*time.Hour), key(3))
	_, _ = s.Prune(p, t0.Add(1000*time.Hour))
	_ = First(issuer, p, t0, key(1)).Confirm(p, t0)
	if after, err := s.render(); err != nil || string(after) != string(before) {
		t.Errorf("changed from %s to %s", before, after)
	}
}

func TestDocumentRoundTrip(t *testing.T) {
	p := Defaults()
	s := must(t)(running(p).Rotate(p, t0.Add(123456789), key(2)))
	s = must(t)(s.Emergency(p, t0.Add(time.Minute), "k1", key(3)))
	data, err := s.render()
	if err != nil {
		t.Fatal(err)
	}
	back, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(back.Keys, s.Keys) || back.Issuer != s.Issuer || back.Seq != s.Seq {
		t.Errorf("came back as %+v, was %+v", back, s)
	}
}

func TestParseRefuses(t *testing.T) {
	data, err := running(Defaults()).render()
	if err != nil {
		t.Fatal(err)
	}
	good := string(data)
	change := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("no %s in %s", from, good)
		}
		return strings.Replace(good, from, to, 1)
	}
	for name, c := range map[string]struct {
		doc  string
		want error
	}{
		"no json":         {"x", ErrDocument},
		"no format":       {`{"issuer":"x"}`, ErrDocument},
		"newer reader":    {change(`"minReader": 1`, `"minReader": 2`), ErrNewerFormat},
		"unknown member":  {change(`"seq"`, `"new": 1, "seq"`), ErrDocument},
		"repeated member": {change(`"seq"`, `"seq": 1, "seq"`), ErrDocument},
	} {
		if _, err := parse([]byte(c.doc)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A newer format that this reader may use is used, and never written.
	newer, err := parse([]byte(strings.Replace(change(`"format": 1`, `"format": 2`), `"seq"`, `"new": 1, "seq"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newer.render(); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("written: %v", err)
	}
}

func TestCheckRefuses(t *testing.T) {
	p := Defaults()
	good := must(t)(running(p).Rotate(p, t0, key(2)))
	for name, spoil := range map[string]func(*Schedule){
		"other issuer":              func(s *Schedule) { s.Issuer = "https://other.example.com" },
		"no keys":                   func(s *Schedule) { s.Keys = nil },
		"no kid":                    func(s *Schedule) { s.Keys[0].KID = "" },
		"no ref":                    func(s *Schedule) { s.Keys[0].Ref = "" },
		"never published":           func(s *Schedule) { s.Keys[0].PublishAt = time.Time{} },
		"HS256":                     func(s *Schedule) { s.Keys[0].Algorithm = jose.HS256 },
		"kid twice":                 func(s *Schedule) { s.Keys[1].KID = s.Keys[0].KID },
		"ref twice":                 func(s *Schedule) { s.Keys[1].Ref = s.Keys[0].Ref },
		"signs unpublished":         func(s *Schedule) { s.Keys[1].PublishAt = s.Keys[1].SignAt.Add(1) },
		"leaves early":              func(s *Schedule) { s.Keys[0].RemoveAt = s.Keys[1].SignAt.Add(-1) },
		"stays for ever":            func(s *Schedule) { s.Keys[0].RemoveAt = time.Time{} },
		"leaves without successor":  func(s *Schedule) { s.Keys[1].RemoveAt = s.Keys[1].SignAt.Add(time.Hour) },
		"all revoked, set is empty": func(s *Schedule) { s.Keys[0].RevokedAt, s.Keys[1].RevokedAt = t0, t0 },
	} {
		s := good
		s.Keys = slices.Clone(s.Keys)
		spoil(&s)
		if err := s.check(issuer); !errors.Is(err, ErrDocument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParams(t *testing.T) {
	p := Defaults()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := p.MinLead(); got != (300+60+5+30)*time.Second {
		t.Errorf("MinLead %v", got)
	}
	if got := p.MinOverlap(); got != (120+30+2*5+5+60)*time.Second {
		t.Errorf("MinOverlap %v", got)
	}
	if got := p.Freeze(); got != (60+2*5+10)*time.Second {
		t.Errorf("Freeze %v", got)
	}
	for field, c := range map[string]struct {
		spoil func(*Params)
		min   time.Duration
	}{
		"Lead":     {func(p *Params) { p.Lead = p.MinLead() - 1 }, p.MinLead()},
		"Overlap":  {func(p *Params) { p.Overlap = p.MinOverlap() - 1 }, p.MinOverlap()},
		"Period":   {func(p *Params) { p.Period = p.Lead - 1 }, p.Lead},
		"TokenTTL": {func(p *Params) { p.TokenTTL = 0 }, 1},
		"Skew":     {func(p *Params) { p.Skew = -1 }, 0},
	} {
		bad := p
		c.spoil(&bad)
		var e *ParamError
		if err := bad.Validate(); !errors.As(err, &e) || e.Field != field || e.Min != c.min || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	bad := p
	bad.Algorithm = "PS256"
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "Algorithm") {
		t.Error(err)
	}
	ok := p
	ok.Lead, ok.Overlap, ok.Period = p.MinLead(), p.MinOverlap(), 0
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 1, 2, 60, 600} {
		scaled := p.Scaled(n)
		if err := scaled.Validate(); err != nil {
			t.Errorf("scaled by %d: %v", n, err)
		}
		if want := p.Lead / time.Duration(max(n, 1)); scaled.Lead != want {
			t.Errorf("scaled by %d: Lead %v", n, scaled.Lead)
		}
		if n >= 60 && (scaled.Staleness != time.Second || scaled.SignDeadline != time.Second) {
			t.Errorf("scaled by %d: Staleness %v, SignDeadline %v", n, scaled.Staleness, scaled.SignDeadline)
		}
	}
}

func FuzzParseSchedule(f *testing.F) {
	p := Defaults()
	s, err := running(p).Rotate(p, t0, key(2))
	if err != nil {
		f.Fatal(err)
	}
	data, err := s.render()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":1,"minReader":1,"issuer":"https://pa.example.com","keys":[{"kid":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parse(data)
		if err != nil || s.check(issuer) != nil {
			return
		}
		// From the last time on there is a key set, and at most one key signs.
		times := s.transitions()
		if len(times) == 0 {
			t.Fatal("nothing is ever published")
		}
		last := times[len(times)-1]
		if len(s.Published(last)) == 0 {
			t.Fatal("the key set ends empty")
		}
		n := 0
		for _, k := range s.Keys {
			if s.StateOf(k.KID, last) == Signing {
				n++
			}
		}
		if n > 1 {
			t.Fatalf("%d keys sign", n)
		}
	})
}
