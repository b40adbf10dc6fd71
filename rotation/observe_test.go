package rotation

import (
	"errors"
	"testing"
	"time"
)

// When another key is due, and that the next one waits for longer than its lead.
func TestDueAndPostponed(t *testing.T) {
	fleet := &missing{}
	r := newRig(t)
	r.fleet = fleet
	r.start()
	p := r.params
	due := func(want time.Duration) {
		t.Helper()
		if at, ok := r.Schedule().DueAt(p, r.now); !ok || !at.Equal(t0.Add(want)) {
			t.Errorf("due at +%v, %v; want +%v", at.Sub(t0), ok, want)
		}
	}
	due(p.Period)
	byHand := p
	byHand.Period = 0
	if _, ok := r.Schedule().DueAt(byHand, r.now); ok {
		t.Error("due without a period")
	}
	if r.Schedule().Postponed(p, r.now) {
		t.Error("postponed, and nothing is planned")
	}
	if _, err := r.Rotate(t.Context(), Request{}); err != nil {
		t.Fatal(err)
	}
	fleet.names = []string{"other"}
	r.at(p.Lead - p.Freeze() - p.FreezeMargin)
	fleet.names = nil
	r.at(p.Lead - 1)
	if r.Schedule().Postponed(p, r.now) {
		t.Error("postponed before the lead has passed")
	}
	r.now = t0.Add(p.Lead)
	if !r.Schedule().Postponed(p, r.now) {
		t.Error("not postponed, and it does not sign after its lead")
	}
	due(p.Period)
	r.at(p.Lead + p.Freeze())
	if r.Schedule().Postponed(p, r.now) {
		t.Error("postponed, and it signs")
	}
	due(p.Lead + p.Freeze() + p.Period)
}

// A controller tells when the store confirmed its schedule last, and that what was due
// could not be done.
func TestConfirmedAndFailing(t *testing.T) {
	r := newRig(t).boot()
	if _, ok := r.Confirmed(); ok {
		t.Error("confirmed before it began")
	}
	r.start()
	r.now = t0.Add(7 * time.Second)
	if at, ok := r.Confirmed(); !ok || !at.Equal(t0) {
		t.Errorf("confirmed at %v, %v", at, ok)
	}
	r.Observe(r.Revision() + 1) // not what it has
	if at, _ := r.Confirmed(); !at.Equal(t0) {
		t.Errorf("confirmed at %v by another revision", at)
	}
	r.Observe(r.Revision())
	if at, _ := r.Confirmed(); !at.Equal(r.now) {
		t.Errorf("confirmed at %v", at)
	}
	if r.Failing() {
		t.Error("it fails, and nothing is wrong")
	}
	r.keyring.fail = errors.New("sealed")
	if _, err := r.Advance(t.Context()); err == nil || !r.Failing() {
		t.Errorf("custody is sealed, and it is not failing: %v", err)
	}
	r.keyring.fail = nil
	if _, err := r.Advance(t.Context()); err != nil || r.Failing() {
		t.Errorf("failing still: %v", err)
	}
}
