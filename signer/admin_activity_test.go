package signer

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

var activityNoon = time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)

// record is what a store has of an activity that was told so long ago.
func recordOf(t interface{ Fatal(...any) }, a Activity, ago time.Duration) ActivityRecord {
	data, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return ActivityRecord{Run: a.Run, At: activityNoon.Add(-ago), Data: data}
}

// answer is GetActivity's for these records, one of which may be the asked replica's.
func answerOf(minutes int, own *Activity, live []string, records ...ActivityRecord) *signerv1.GetActivityResponse {
	a := &Admin{cfg: AdminConfig{Log: slog.New(slog.DiscardHandler)}}
	if own != nil {
		a.cfg.Activity = func() Activity { return *own }
	}
	var replicas []killswitch.Replica
	for _, name := range live {
		replicas = append(replicas, killswitch.Replica{Beat: killswitch.Beat{Replica: name}})
	}
	return a.fleetActivity(activityNoon, minutes, records, replicas)
}

func TestActivityOfAFleet(t *testing.T) {
	last := ActivityMinuteOf(activityNoon)
	one := Activity{
		Replica: "one", Run: "1", Since: activityNoon.Add(-time.Hour), Span: 10 * time.Second, Recent: ActivityCounts{Signed: 25, Refused: 5, Failed: 1},
		Minutes: map[int64]ActivityCounts{last: {Signed: 7}, last - 2: {Signed: 1, Refused: 2, Failed: 3}, last - 3: {Signed: 1000}},
	}
	before := Activity{Replica: "one", Run: "0", Since: activityNoon.Add(-2 * time.Hour), Minutes: map[int64]ActivityCounts{last - 2: {Signed: 10}, last + 2: {Signed: 1000}}}
	ended := Activity{Replica: "ended", Run: "2", Ended: true, Minutes: map[int64]ActivityCounts{last - 1: {Refused: 4}}}
	silent := Activity{Replica: "silent", Run: "3", Minutes: map[int64]ActivityCounts{last - 1: {Failed: 5}}}
	own := Activity{Replica: "own", Run: "4", Span: 100 * time.Millisecond, Recent: ActivityCounts{Signed: 3}, Minutes: map[int64]ActivityCounts{last: {Signed: 100}}}
	ownBefore := own
	ownBefore.Minutes = map[int64]ActivityCounts{last: {Signed: 90}}

	resp := answerOf(3, &own, []string{"one", "own", "silent", "mute"},
		recordOf(t, before, 2*time.Second), recordOf(t, one, 2*time.Second), recordOf(t, ended, time.Second), recordOf(t, silent, time.Minute),
		recordOf(t, ownBefore, time.Second), ActivityRecord{Run: "x", Data: []byte(`{"format":2,"minReader":2,"replica":"new"}`)},
		ActivityRecord{Run: "y", Data: []byte(`{"format":1,"minReader":1,"minutes":[1],"signed":[]}`)}, ActivityRecord{Run: "z", Data: []byte("damaged")})

	want := []ActivityCounts{{Signed: 11, Refused: 2, Failed: 3}, {Refused: 4, Failed: 5}, {Signed: 107}}
	for i, m := range resp.Minutes {
		if got := (ActivityCounts{m.Signed, m.Refused, m.Failed}); i >= len(want) || got != want[i] || !m.Start.AsTime().Equal(activityNoon.Truncate(time.Minute).Add(time.Duration(i-2)*time.Minute)) {
			t.Errorf("minute %d, from %v, is %+v", i, m.Start.AsTime(), got)
		}
	}
	if len(resp.Minutes) != len(want) || !resp.Time.AsTime().Equal(activityNoon) {
		t.Fatalf("%d minutes at %v", len(resp.Minutes), resp.Time.AsTime())
	}
	if len(resp.Replicas) != 2 {
		t.Fatalf("replicas are %v, want one and own", resp.Replicas)
	}
	r := resp.Replicas[0]
	if r.Replica != "one" || r.SignedRate != 2.5 || r.RefusedRate != 0.5 || r.FailedRate != 0.1 || !r.Since.AsTime().Equal(one.Since) || !r.Reported.AsTime().Equal(activityNoon.Add(-2*time.Second)) {
		t.Errorf("the first replica is %v", r)
	}
	if r := resp.Replicas[1]; r.Replica != "own" || r.SignedRate != 3 || !r.Reported.AsTime().Equal(activityNoon) {
		t.Errorf("the one that was asked is %v", r)
	}
	if len(resp.Silent) != 1 || resp.Silent[0].Replica != "silent" || !resp.Silent[0].Reported.AsTime().Equal(activityNoon.Add(-time.Minute)) {
		t.Errorf("silent are %v", resp.Silent)
	}
	missing := strings.Join(resp.Missing, "\n")
	if !strings.Contains(missing, "silent, mute") || !strings.Contains(missing, "cannot read, of 3 runs") || strings.Contains(missing, "own") {
		t.Errorf("missing is %q", missing)
	}
}

// A record from a time that the store's clock went back from says nothing of now.
func TestActivityFromTheFuture(t *testing.T) {
	gone := Activity{Replica: "r", Run: "1", Recent: ActivityCounts{Signed: 9}, Span: time.Second}
	runs := Activity{Replica: "r", Run: "2", Recent: ActivityCounts{Signed: 2}, Span: time.Second}
	resp := answerOf(1, nil, []string{"r"}, recordOf(t, gone, -time.Hour), recordOf(t, runs, time.Second))
	if len(resp.Replicas) != 1 || resp.Replicas[0].SignedRate != 2 || len(resp.Missing) != 0 {
		t.Fatalf("got %v, missing %v", resp.Replicas, resp.Missing)
	}
}

func TestActivityWindow(t *testing.T) {
	for _, c := range []struct {
		asked *durationpb.Duration
		want  int
	}{
		{nil, 60}, {durationpb.New(time.Minute), 1}, {durationpb.New(2 * time.Hour), 120},
		{durationpb.New(0), 0}, {durationpb.New(-time.Minute), 0}, {durationpb.New(90 * time.Second), 0},
		{durationpb.New(121 * time.Minute), 0}, {&durationpb.Duration{Seconds: 60, Nanos: -1}, 0}, {&durationpb.Duration{Seconds: 1 << 62}, 0},
	} {
		got, err := activityWindowOf(c.asked)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%v: %d minutes, %v", c.asked, got, err)
		}
		if err != nil && (adminReason(t, err) != "INVALID_REQUEST" || !strings.Contains(err.Error(), "window: ")) {
			t.Errorf("%v: %v", c.asked, err)
		}
	}
}

// What is decoded is what was encoded, and a sum counts each minute of each run once.
func TestActivityRecordsProperty(t *testing.T) {
	last := ActivityMinuteOf(activityNoon)
	counts := rapid.Custom(func(t *rapid.T) ActivityCounts {
		n := rapid.Uint64Range(0, 1<<40)
		return ActivityCounts{n.Draw(t, "signed"), n.Draw(t, "refused"), n.Draw(t, "failed")}
	})
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 120).Draw(t, "window")
		want := make([]ActivityCounts, window)
		var records []ActivityRecord
		for i := range rapid.IntRange(0, 6).Draw(t, "runs") {
			a := Activity{
				Replica: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "replica"), Run: string(rune('A' + i)), Since: activityNoon.Truncate(time.Second),
				Ended: rapid.Bool().Draw(t, "ended"), Recent: counts.Draw(t, "recent"), Span: time.Duration(rapid.IntRange(0, 20).Draw(t, "span")) * time.Second,
				Minutes: rapid.MapOf(rapid.Int64Range(last-125, last), counts).Draw(t, "minutes"),
			}
			r := recordOf(t, a, 0)
			back, err := DecodeActivity(r)
			if err != nil || !maps.Equal(back.Minutes, a.Minutes) {
				t.Fatalf("encoded %+v, decoded %+v: %v", a, back, err)
			}
			back.Minutes, a.Minutes = nil, back.Minutes
			minutes := a.Minutes
			a.Minutes = nil
			if back.Replica != a.Replica || back.Run != a.Run || !back.Since.Equal(a.Since) || back.Ended != a.Ended || back.Recent != a.Recent || back.Span != a.Span {
				t.Fatalf("encoded %+v, decoded %+v", a, back)
			}
			for m, c := range minutes {
				if i := int(m-last) + window - 1; i >= 0 {
					want[i] = want[i].Add(c)
				}
			}
			records = append(records, r)
		}
		for i, m := range answerOf(window, nil, nil, records...).Minutes {
			if got := (ActivityCounts{m.Signed, m.Refused, m.Failed}); got != want[i] {
				t.Fatalf("minute %d of %d is %+v, want %+v", i, window, got, want[i])
			}
		}
	})
}

// What somebody else put into the store is read without harm.
func FuzzActivity(f *testing.F) {
	data, _ := Activity{Replica: "r", Minutes: map[int64]ActivityCounts{7: {Signed: 1}, 9: {Failed: 2}}}.Encode()
	f.Add(data)
	f.Add([]byte(`{"format":1,"minReader":1,"replica":"r","since":"0000-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"format":1,"minReader":1,"replica":"r","since":"9999-12-31T23:59:59-23:00"}`))
	f.Add([]byte(`{"format":1,"minutes":[9223372036854775807,9223372036854775807],"signed":[1,1],"refused":[1,1],"failed":[1,1],"span":1e300}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		resp := answerOf(60, nil, nil, ActivityRecord{Run: "r", At: activityNoon, Data: data})
		if len(resp.Minutes) != 60 {
			t.Fatalf("%d minutes", len(resp.Minutes))
		}
		if _, err := protojson.Marshal(resp); err != nil { // an operator on REST gets no answer then
			t.Fatal(err)
		}
		if again, err := DecodeActivity(ActivityRecord{Data: data}); err == nil {
			once, _ := again.Encode()
			back, err := DecodeActivity(ActivityRecord{Data: once})
			twice, _ := back.Encode()
			if err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%s became %s: %v", once, twice, err)
			}
		}
	})
}
