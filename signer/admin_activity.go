package signer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// ActivityKept is how long a store keeps what a run of a replica told of what it
// did, after it told it last: so long the fleet's history outlives the run.
const ActivityKept = 2 * time.Hour

// ActivityEvery is how often replicas that share a store tell it what they did.
const ActivityEvery = 5 * time.Second

// activityLate is how old the word of a live replica may be before its rates count
// as unknown.
const activityLate = 4 * ActivityEvery

// ActivityCounts are answers to sign requests.
type ActivityCounts struct {
	Signed  uint64 // tokens given out
	Refused uint64 // the caller's fault, or the kill switch
	Failed  uint64 // could not be served
}

// Add returns the sums.
func (c ActivityCounts) Add(d ActivityCounts) ActivityCounts {
	return ActivityCounts{c.Signed + d.Signed, c.Refused + d.Refused, c.Failed + d.Failed}
}

// Less returns what c has more than an earlier reading.
func (c ActivityCounts) Less(earlier ActivityCounts) ActivityCounts {
	return ActivityCounts{c.Signed - earlier.Signed, c.Refused - earlier.Refused, c.Failed - earlier.Failed}
}

// Activity is what one run of a replica did in the last ActivityKept. A replica that
// was restarted under its name is another run, which counts from nothing.
type Activity struct {
	Replica string
	// Run is a random name: what comes under it again takes the place of what came
	// before.
	Run   string
	Since time.Time // when it began to count
	// Ended: it counts no more.
	Ended bool
	// Recent is what was counted in the last Span, which is ten seconds unless the run
	// is younger.
	Recent ActivityCounts
	Span   time.Duration
	// Minutes are the counts by the store's clock: by the number of the minute since
	// 1970. A minute in which nothing was counted is missing.
	Minutes map[int64]ActivityCounts
}

// ActivityMinuteOf is the number of a time's minute.
func ActivityMinuteOf(t time.Time) int64 { return t.Unix() / 60 }

// ActivityRecord is an Activity as a store keeps it, under the run's name.
type ActivityRecord struct {
	Run  string
	At   time.Time // when it came, by the store's clock
	Data []byte    // see Activity.Encode
}

// ActivityStore keeps what replicas tell of what they did. It is for people to look
// at, not for decisions: nothing waits for its copies, an export leaves it out, and a
// store whose memory is full refuses it.
type ActivityStore interface {
	// PutActivity keeps data under the name of a run, in the place of what it told
	// before, until ActivityKept from now.
	PutActivity(ctx context.Context, run string, data []byte) error
	// Activities returns what is kept, by the run's name, and the store's clock.
	Activities(ctx context.Context) ([]ActivityRecord, time.Time, error)
}

// The form of a stored activity, and the oldest whose readers understand it.
const (
	activityFormat    = 1
	activityMinReader = 1
)

// storedActivity is an activity as it is stored: columns are short.
type storedActivity struct {
	Format    int       `json:"format"`
	MinReader int       `json:"minReader"`
	Replica   string    `json:"replica"`
	Since     time.Time `json:"since"`
	Ended     bool      `json:"ended,omitempty"`
	Span      float64   `json:"span"` // seconds
	Recent    [3]uint64 `json:"recent"`
	Minutes   []int64   `json:"minutes"` // each less the one before
	Signed    []uint64  `json:"signed"`
	Refused   []uint64  `json:"refused"`
	Failed    []uint64  `json:"failed"`
}

// Encode is what a store keeps of a.
func (a Activity) Encode() ([]byte, error) {
	s := storedActivity{
		Format: activityFormat, MinReader: activityMinReader, Replica: a.Replica, Since: a.Since.UTC().Truncate(time.Second), Ended: a.Ended,
		Span: a.Span.Seconds(), Recent: [3]uint64{a.Recent.Signed, a.Recent.Refused, a.Recent.Failed},
	}
	before := int64(0)
	for _, m := range slices.Sorted(maps.Keys(a.Minutes)) {
		c := a.Minutes[m]
		s.Minutes, before = append(s.Minutes, m-before), m
		s.Signed, s.Refused, s.Failed = append(s.Signed, c.Signed), append(s.Refused, c.Refused), append(s.Failed, c.Failed)
	}
	return json.Marshal(s)
}

// DecodeActivity reads what Encode made, of this version's format or of a newer one
// that this version may read.
func DecodeActivity(r ActivityRecord) (Activity, error) {
	var s storedActivity
	if err := json.Unmarshal(r.Data, &s); err != nil {
		return Activity{}, fmt.Errorf("activity of run %s: %w", r.Run, err)
	}
	n := len(s.Minutes)
	switch {
	case s.MinReader > activityFormat:
		return Activity{}, fmt.Errorf("activity of replica %s is of a newer format", s.Replica)
	case s.Format < 1 || len(s.Signed) != n || len(s.Refused) != n || len(s.Failed) != n ||
		!timestamppb.New(s.Since).IsValid() || s.Span < 0 || s.Span > 1e9 || adminText("replica", s.Replica, 253, true) != nil:
		return Activity{}, fmt.Errorf("activity of run %s is damaged", r.Run)
	}
	a := Activity{
		Replica: s.Replica, Run: r.Run, Since: s.Since, Ended: s.Ended, Span: time.Duration(s.Span * float64(time.Second)),
		Recent:  ActivityCounts{s.Recent[0], s.Recent[1], s.Recent[2]},
		Minutes: make(map[int64]ActivityCounts, n),
	}
	at := int64(0)
	for i, step := range s.Minutes {
		at += step
		a.Minutes[at] = ActivityCounts{s.Signed[i], s.Refused[i], s.Failed[i]}
	}
	return a, nil
}

// activityWindow is how far GetActivity looks back unless it is asked for another
// window, which may be up to ActivityKept.
const activityWindow = time.Hour

// GetActivity implements signerv1.AdminServiceServer.
func (a *Admin) GetActivity(ctx context.Context, req *signerv1.GetActivityRequest) (*signerv1.GetActivityResponse, error) {
	window, err := activityWindowOf(req.Window)
	if err != nil {
		return nil, err
	}
	if a.cfg.Activities == nil {
		return nil, errors.New("this signer keeps no activity")
	}
	records, now, err := a.cfg.Activities.Activities(ctx)
	if err != nil {
		return nil, err
	}
	live, err := a.replicas(ctx)
	if err != nil {
		return nil, err
	}
	return a.fleetActivity(now, window, records, live), nil
}

// fleetActivity puts together what runs told and what this one knows of itself.
func (a *Admin) fleetActivity(now time.Time, minutes int, records []ActivityRecord, live []killswitch.Replica) *signerv1.GetActivityResponse {
	f := newFleetActivity(now, minutes)
	if a.cfg.Activity != nil { // as it is now, not as it was told last
		own := a.cfg.Activity()
		f.add(own, now)
		records = slices.DeleteFunc(records, func(r ActivityRecord) bool { return r.Run == own.Run })
	}
	for _, r := range records {
		told, err := DecodeActivity(r)
		if err != nil {
			f.unread++
			continue
		}
		f.add(told, r.At)
	}
	return f.response(live)
}

// activityWindowOf is how many minutes are asked for.
func activityWindowOf(d *durationpb.Duration) (int, error) {
	if d == nil {
		return int(activityWindow / time.Minute), nil
	}
	window := d.AsDuration()
	if d.CheckValid() != nil || window < time.Minute || window > ActivityKept || window%time.Minute != 0 {
		return 0, adminInvalid("window", "want whole minutes, 60s to %.0fs, such as 3600s", ActivityKept.Seconds())
	}
	return int(window / time.Minute), nil
}

// fleetActivity sums what the runs of a fleet told.
type fleetActivity struct {
	now     time.Time
	first   int64 // minute of the window
	minutes []ActivityCounts
	newest  map[string]toldActivity // by replica
	unread  int
}

type toldActivity struct {
	Activity
	at time.Time
}

func newFleetActivity(now time.Time, minutes int) *fleetActivity {
	return &fleetActivity{
		now: now, first: ActivityMinuteOf(now) - int64(minutes) + 1, minutes: make([]ActivityCounts, minutes),
		newest: make(map[string]toldActivity),
	}
}

// add counts one run in, which was told at that time. Each run is added once.
func (f *fleetActivity) add(a Activity, at time.Time) {
	for m, c := range a.Minutes {
		i := m - f.first
		if i == int64(len(f.minutes)) { // its clock is ahead by as much as it may be
			i--
		}
		if i >= 0 && i < int64(len(f.minutes)) {
			f.minutes[i] = f.minutes[i].Add(c)
		}
	}
	if at.After(f.now.Add(activityLate)) { // the store's clock went back: it may have ended long ago
		return
	}
	if before, known := f.newest[a.Replica]; !known || before.at.Before(at) || before.at.Equal(at) && before.Since.Before(a.Since) {
		f.newest[a.Replica] = toldActivity{a, at}
	}
}

// response is the answer; live are the replicas that should have told.
func (f *fleetActivity) response(live []killswitch.Replica) *signerv1.GetActivityResponse {
	resp := &signerv1.GetActivityResponse{Time: adminStamp(f.now), Missing: f.missing(live)}
	for i, c := range f.minutes {
		resp.Minutes = append(resp.Minutes, &signerv1.ActivityMinute{
			Start:  adminStamp(time.Unix((f.first+int64(i))*60, 0)),
			Signed: c.Signed, Refused: c.Refused, Failed: c.Failed,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(f.newest)) {
		t := f.newest[name]
		told := &signerv1.ReplicaActivity{Replica: name, Since: adminStamp(t.Since), Reported: adminStamp(t.at)}
		switch {
		case f.tells(name):
			told.SignedRate, told.RefusedRate, told.FailedRate = t.rate(t.Recent.Signed), t.rate(t.Recent.Refused), t.rate(t.Recent.Failed)
			resp.Replicas = append(resp.Replicas, told)
		case !t.Ended:
			resp.Silent = append(resp.Silent, told)
		}
	}
	return resp
}

// tells says whether a replica told lately what it does.
func (f *fleetActivity) tells(replica string) bool {
	t, known := f.newest[replica]
	return known && !t.Ended && f.now.Sub(t.at) <= activityLate
}

// missing says what the sums and rates lack.
func (f *fleetActivity) missing(live []killswitch.Replica) (notes []string) {
	var silent []string
	for _, r := range live {
		if r.Epoch != killswitch.Gone && !f.tells(r.Replica) {
			silent = append(silent, r.Replica)
		}
	}
	if len(silent) > 0 {
		notes = append(notes, "nothing was told lately by "+strings.Join(silent, ", ")+": begun just now, cut off, or of an older version")
	}
	if f.unread > 0 {
		notes = append(notes, fmt.Sprintf("what this version cannot read, of %d runs", f.unread))
	}
	return notes
}

// rate is n of Recent per second.
func (a Activity) rate(n uint64) float64 {
	return float64(n) / max(a.Span.Seconds(), 1)
}
