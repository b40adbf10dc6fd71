package killswitch

import (
	"maps"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// A custody that forgot the switch, or came back from an older copy, is told again: by
// itself within the pause between two looks, and soon if somebody found out.
func TestCustodyIsToldAgain(t *testing.T) {
	for name, lose := range map[string]func(d *documents, before map[string]document){
		"emptied": func(d *documents, _ map[string]document) { d.held = nil },
		"older":   func(d *documents, before map[string]document) { d.held = maps.Clone(before) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, d := newMemory(), new(documents)
				s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
				r := newReplica(m, d, "r")
				r.run(t)
				first := mustKill(t, s, Scope{Kind: Device, Issuer: "i", Value: "first"})
				time.Sleep(time.Minute)
				d.mu.Lock()
				before := map[string]document{"kill-switch": d.held["kill-switch"]}
				d.mu.Unlock()
				second := mustKill(t, s, Scope{Kind: Device, Issuer: "i", Value: "second"})
				time.Sleep(time.Minute)
				whole := State{Entries: []Entry{first.Entry, second.Entry}}
				for _, after := range []time.Duration{Defaults().Compare + 2*Defaults().Poll, 2 * Defaults().Poll} {
					d.mu.Lock()
					lose(d, before)
					d.mu.Unlock()
					if after < Defaults().Compare {
						r.RecordAgain()
					}
					time.Sleep(after)
					if high := d.high(t); !high.has(whole) || high.Epoch < second.Entry.Epoch {
						t.Errorf("after %v custody has %+v", after, high)
					}
				}
				if m.whole().Epoch != second.Entry.Epoch {
					t.Errorf("the store went to epoch %d", m.whole().Epoch)
				}
			})
		})
	}
}
