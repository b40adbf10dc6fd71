package storetest

import (
	"fmt"
	"time"

	"github.com/pactsigner/pactsigner/signer"
)

var activityCases = []testCase{
	{"activity is kept by run, the last word of each", activityKept},
	{"activity outlives the process", activityReopened},
	{"activity is forgotten two hours after it was told last", activityForgotten},
	{"an export leaves activity out", activityNotExported},
}

// secondActivity is for stores that several replicas have open at a time.
func secondActivity(h *harness) {
	two := h.second()
	h.ok(h.PutActivity(h.ctx, "one", []byte("told by the first")))
	h.ok(two.PutActivity(h.ctx, "two", []byte("told by the second")))
	h.wantActivity("one told by the first", "two told by the second")
	two.wantActivity("one told by the first", "two told by the second")
}

// wantActivity compares what is kept with pairs of run and data.
func (h *harness) wantActivity(want ...string) []signer.ActivityRecord {
	h.Helper()
	records, now, err := h.Activities(h.ctx)
	h.ok(err)
	var got []string
	for _, r := range records {
		got = append(got, r.Run+" "+string(r.Data))
		if ago := now.Sub(r.At); ago < 0 || ago > signer.ActivityKept {
			h.Fatalf("what run %s told came %v before the store's %v", r.Run, ago, now)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.Fatalf("activities are %q, want %q", got, want)
	}
	return records
}

func activityKept(h *harness) {
	h.wantActivity()
	h.ok(h.PutActivity(h.ctx, "b", []byte("first word")))
	h.ok(h.PutActivity(h.ctx, "a", []byte("bytes \x00\xff and spaces ")))
	h.wantActivity("a bytes \x00\xff and spaces ", "b first word")
	before := h.now()
	h.backend.Advance(7 * time.Second)
	h.ok(h.PutActivity(h.ctx, "b", []byte("last word")))
	records := h.wantActivity("a bytes \x00\xff and spaces ", "b last word")
	if at := records[1].At; at.Before(before.Add(6*time.Second)) || at.Before(records[0].At.Add(6*time.Second)) {
		h.Fatalf("the last word, 7 s after the first one, has the time %v; the other run's came at %v", at, records[0].At)
	}
}

func activityReopened(h *harness) {
	h.ok(h.PutActivity(h.ctx, "run", []byte("before")))
	h.reopen()
	h.wantActivity("run before")
	h.ok(h.PutActivity(h.ctx, "next", []byte("after")))
	h.wantActivity("next after", "run before")
}

func activityForgotten(h *harness) {
	for i := range 100 { // of a replica that was started again and again
		h.ok(h.PutActivity(h.ctx, fmt.Sprintf("ended %02d", i), []byte("x")))
	}
	h.ok(h.PutActivity(h.ctx, "lives", []byte("x")))
	h.backend.Advance(signer.ActivityKept - time.Minute)
	h.ok(h.PutActivity(h.ctx, "lives", []byte("y")))
	if records, _, err := h.Activities(h.ctx); err != nil || len(records) != 101 {
		h.Fatalf("a minute before it is forgotten there are %d of 101 records: %v", len(records), err)
	}
	h.backend.Advance(2 * time.Minute)
	h.wantActivity("lives y")
	h.ok(h.PutActivity(h.ctx, "lives", []byte("z")))
	h.ok(h.PutActivity(h.ctx, "lives", []byte("z")))
	h.wantActivity("lives z")
}

func activityNotExported(h *harness) {
	count := func() (n int) {
		h.Helper()
		h.ok(h.Export(h.ctx, func(signer.Record) error { n++; return nil }))
		return n
	}
	before := count()
	h.ok(h.PutActivity(h.ctx, "run", []byte("did something")))
	if after := count(); after != before {
		h.Fatalf("an export has %d records, and %d once activity was told", before, after)
	}
}
