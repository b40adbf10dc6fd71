package killswitch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// A change that becomes effective is told once, however many wait for it, with how long
// it took by the store's clock; not by who comes when it is long over.
func TestBarrierIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		var (
			told  []string
			tooks []time.Duration
		)
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater(), OnBarrier: func(took time.Duration, reported bool) {
			told, tooks = append(told, fmt.Sprint(took, " ", reported)), append(tooks, took)
		}})
		wait := func(epoch uint64) {
			t.Helper()
			if b, err := s.Wait(t.Context(), epoch, nil); err != nil || !b.Effective {
				t.Fatalf("barrier %+v, %v", b, err)
			}
		}
		m.replicas["silent"] = Replica{Beat: Beat{Replica: "silent"}, Seen: m.now()}
		first := mustKill(t, s, Scope{Kind: All})
		wait(first.Entry.Epoch)
		wait(first.Entry.Epoch)
		if fmt.Sprint(told) != "[3.15s false]" {
			t.Fatalf("told %v", told)
		}
		delete(m.replicas, "silent")
		newReplica(m, d, "r").run(t)
		synctest.Wait()
		second := mustKill(t, s, Scope{Device, "https://pa.example.com", "d"})
		began := time.Now()
		wait(second.Entry.Epoch)
		if len(told) != 2 || told[1] != fmt.Sprint(tooks[1], " true") || tooks[1] > time.Since(began) {
			t.Fatalf("told %v", told)
		}
		third := mustKill(t, s, Scope{Device, "https://pa.example.com", "e"})
		time.Sleep(time.Minute)
		wait(third.Entry.Epoch)
		if len(told) != 2 {
			t.Fatalf("told %v of one that nobody waited for in time", told)
		}
	})
}

// Entries are counted by kind, also those that cover the same, and one of a kind that
// nobody knows stops everything.
func TestLive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		r := newReplica(m, d, "r")
		if len(r.Live()) > 0 {
			t.Error("entries before anything is known")
		}
		for range 2 {
			mustKill(t, s, Scope{Device, "https://pa.example.com", "d"})
		}
		mustKill(t, s, Scope{Kind: Issuer, Issuer: "https://pa.example.com"})
		m.state.Entries = append(m.state.Entries, Entry{ID: "new", Scope: Scope{Kind: "planet"}, Epoch: 3})
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if live := r.Live(); fmt.Sprint(live) != "map[all:1 device:2 issuer:1]" {
			t.Errorf("it enforces %v", live)
		}
	})
}
