package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/signer"
)

// hands is a clock that a test moves.
type hands struct{ t time.Time }

func (h *hands) now() time.Time { return h.t }

func (h *hands) advance(d time.Duration) { h.t = h.t.Add(d) }

func newHands() *hands { return &hands{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

// toldActivities is what a store was told.
type toldActivities struct {
	data map[string][]byte
	err  error
}

func (s *toldActivities) PutActivity(_ context.Context, run string, data []byte) error {
	if s.err != nil {
		return s.err
	}
	if s.data == nil {
		s.data = make(map[string][]byte)
	}
	s.data[run] = data
	return nil
}

func (s *toldActivities) Activities(context.Context) (list []signer.ActivityRecord, _ time.Time, _ error) {
	for run, data := range s.data {
		list = append(list, signer.ActivityRecord{Run: run, Data: data})
	}
	return list, time.Time{}, nil
}

// sums are the minutes of all runs together, as the store was told.
func (s *toldActivities) sums(t interface{ Fatal(...any) }) map[int64]signer.ActivityCounts {
	sums := make(map[int64]signer.ActivityCounts)
	list, _, _ := s.Activities(context.Background())
	for _, r := range list {
		a, err := signer.DecodeActivity(r)
		if err != nil {
			t.Fatal(err)
		}
		for m, c := range a.Minutes {
			sums[m] = sums[m].Add(c)
		}
	}
	return sums
}

func TestActivityCountsSigns(t *testing.T) {
	a := newActivity("r1", newHands().now)
	for result, n := range map[string]int{
		"ok": 1, "unavailable": 2, "other": 3, "a new word": 4,
		"invalid_request": 10, "unauthorized": 10, "disabled": 10, "not_found": 10, "audience_not_registered": 10, "rate_limited": 10,
	} {
		for range n {
			a.count(methodSign, result)
			for _, method := range []string{methodStatus, methodEnroll, methodJWKS, methodDiscovery, methodOther} {
				a.count(method, result)
			}
		}
	}
	if got, want := a.read().Recent, (signer.ActivityCounts{Signed: 1, Refused: 60, Failed: 9}); got != want {
		t.Fatalf("counted %+v, want %+v", got, want)
	}
	(*activity)(nil).count(methodSign, "ok") // as where nothing is kept
}

// A replica whose clock is off, or who does not know the store's yet, gives what it
// counted to the store's minutes, and says since when it counts by the store's clock.
func TestActivityGoesByTheStoresClock(t *testing.T) {
	clock := newHands()
	store := clock.t.Add(-17*time.Minute - 30*time.Second)
	a := newActivity("r1", clock.now)
	clock.advance(2 * time.Second)
	a.tell(store.Add(2 * time.Second))
	if since := a.read().Since; !since.Equal(store) {
		t.Fatalf("it counts since %v by the store's clock, want %v", since, store)
	}
	a.count(methodSign, "ok")
	clock.advance(40 * time.Second) // the minute is another one by the store's clock only
	a.count(methodSign, "ok")
	told := a.read()
	minute := signer.ActivityMinuteOf(store.Add(42 * time.Second))
	if len(told.Minutes) != 1 || told.Minutes[minute].Signed != 2 {
		t.Fatalf("minutes are %v, want 2 in %d: what came since the last sample belongs to the minute of the sample", told.Minutes, minute)
	}
	a.tell(store.Add(42 * time.Second))
	if since := a.read().Since; !since.Equal(store) {
		t.Fatalf("it counts since %v after the next permit, want %v", since, store)
	}
}

func TestActivityRates(t *testing.T) {
	clock := newHands()
	a := newActivity("r1", clock.now)
	for range 40 { // two in each second
		a.count(methodSign, "ok")
		a.count(methodSign, "unavailable")
		clock.advance(500 * time.Millisecond)
		a.count(methodSign, "ok")
		clock.advance(500 * time.Millisecond)
		a.read() // also more often than it is sampled
		a.read()
	}
	told := a.read()
	if told.Span != 10*time.Second || told.Recent != (signer.ActivityCounts{Signed: 20, Failed: 10}) {
		t.Fatalf("of the last %v it tells %+v", told.Span, told.Recent)
	}
	clock.advance(30 * time.Second)
	a.read()
	clock.advance(10 * time.Second)
	if told = a.read(); told.Recent != (signer.ActivityCounts{}) {
		t.Fatalf("after 40 s without a request it tells %+v of the last %v", told.Recent, told.Span)
	}
}

// What the store did not take is told the next time, and what came again replaces
// what was there.
func TestActivityIsToldAgain(t *testing.T) {
	clock, store := newHands(), &toldActivities{err: errors.New("away")}
	a := newActivity("r1", clock.now)
	a.count(methodSign, "ok")
	if err := a.record(t.Context(), store); err == nil {
		t.Fatal("a store that is away took it")
	}
	clock.advance(time.Minute)
	a.count(methodSign, "disabled")
	store.err = nil
	for range 3 {
		if err := a.record(t.Context(), store); err != nil {
			t.Fatal(err)
		}
	}
	minute := signer.ActivityMinuteOf(clock.t)
	want := map[int64]signer.ActivityCounts{minute - 1: {Signed: 1}, minute: {Refused: 1}}
	if got := store.sums(t); !maps.Equal(got, want) {
		t.Fatalf("the store was told %v, want %v", got, want)
	}
	a.end(t.Context(), store)
	list, _, _ := store.Activities(t.Context())
	if last, err := signer.DecodeActivity(list[0]); err != nil || !last.Ended || len(list) != 1 {
		t.Fatalf("after its end the store has %+v: %v", list, err)
	}
}

// Whatever happens to replicas and clocks, every request that was counted is in the
// sums once, in the minute that it was by the store's clock, for two hours.
func TestActivitySumsProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock, store := newHands(), &toldActivities{}
		offset := time.Duration(rapid.Int64Range(-20, 20).Draw(rt, "offset")) * time.Second // of the store's clock
		storeNow := func() time.Time { return clock.t.Add(offset) }
		want := make(map[int64]signer.ActivityCounts)
		started := 0
		start := func() *activity {
			started++
			a := newActivity(fmt.Sprint("r", started%2), clock.now) // names come again
			a.tell(storeNow())
			return a
		}
		replicas := []*activity{start(), start(), start()}
		record := func(a *activity) {
			if err := a.record(context.Background(), store); err != nil {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"sign": func(rt *rapid.T) {
				a := replicas[rapid.IntRange(0, 2).Draw(rt, "replica")]
				var c signer.ActivityCounts
				for range rapid.IntRange(1, 5).Draw(rt, "n") {
					switch rapid.SampledFrom([]string{"ok", "disabled", "unavailable"}).Draw(rt, "result") {
					case "ok":
						a.count(methodSign, "ok")
						c.Signed++
					case "disabled":
						a.count(methodSign, "disabled")
						c.Refused++
					default:
						a.count(methodSign, "unavailable")
						c.Failed++
					}
				}
				a.read()
				minute := signer.ActivityMinuteOf(storeNow())
				want[minute] = want[minute].Add(c)
			},
			"time": func(rt *rapid.T) {
				clock.advance(time.Duration(rapid.Int64Range(1, 300).Draw(rt, "seconds")) * time.Second)
			},
			"permit": func(rt *rapid.T) { replicas[rapid.IntRange(0, 2).Draw(rt, "replica")].tell(storeNow()) },
			"the store's clock steps": func(rt *rapid.T) {
				offset += time.Duration(rapid.Int64Range(-600, 600).Draw(rt, "seconds")) * time.Second
				for _, a := range replicas {
					a.tell(storeNow())
				}
			},
			"record": func(rt *rapid.T) { record(replicas[rapid.IntRange(0, 2).Draw(rt, "replica")]) },
			"restart": func(rt *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(rt, "replica")
				if rapid.Bool().Draw(rt, "in peace") {
					replicas[i].end(context.Background(), store)
				} else {
					record(replicas[i]) // what came after its last word is lost with it
				}
				replicas[i] = start()
			},
			"": func(rt *rapid.T) {
				for _, a := range replicas {
					record(a)
				}
				got := store.sums(rt)
				oldest := signer.ActivityMinuteOf(storeNow().Add(-time.Hour)) // clocks that went back do not bring back what was forgotten
				for m := oldest; m <= oldest+3*60; m++ {
					if got[m] != want[m] {
						rt.Fatalf("minute %d is told as %+v, and was %+v", m, got[m], want[m])
					}
				}
			},
		})
	})
}

func TestActivityCostsNothing(t *testing.T) {
	a := newActivity("r1", time.Now)
	if n := testing.AllocsPerRun(100, func() { a.count(methodSign, "ok") }); n != 0 {
		t.Fatalf("counting allocates %v times", n)
	}
}

func BenchmarkActivityCount(b *testing.B) {
	a := newActivity("r1", time.Now)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a.count(methodSign, "ok")
		}
	})
}
