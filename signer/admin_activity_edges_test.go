package signer

import (
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
)

// A replica whose clock is ahead by less than a minute counts in the last one; what a
// newer version wrote for this one is read; one that is known to have left is not missed.
func TestActivityAtItsEdges(t *testing.T) {
	last := ActivityMinuteOf(activityNoon)
	ahead := Activity{Replica: "ahead", Run: "1", Minutes: map[int64]ActivityCounts{last + 1: {Signed: 5}, last + 2: {Signed: 1000}}}
	newer := recordOf(t, Activity{Replica: "newer", Run: "2", Span: time.Second, Minutes: map[int64]ActivityCounts{last: {Signed: 2}}}, time.Second)
	newer.Data = []byte(strings.Replace(string(newer.Data), `"format":1`, `"format":2,"added":{}`, 1))
	resp := answerOf(1, nil, []string{"ahead", "newer"}, recordOf(t, ahead, time.Second), newer)
	if len(resp.Minutes) != 1 || resp.Minutes[0].Signed != 7 || len(resp.Replicas) != 2 || len(resp.Missing) != 0 {
		t.Errorf("minutes %v, replicas %v, missing %q", resp.Minutes, resp.Replicas, resp.Missing)
	}

	f := newFleetActivity(activityNoon, 1)
	left := killswitch.Replica{Beat: killswitch.Beat{Replica: "left", Epoch: killswitch.Gone}}
	if notes := f.missing([]killswitch.Replica{left}); len(notes) != 0 {
		t.Errorf("missing is %q", notes)
	}
}
