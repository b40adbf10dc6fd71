package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// Levels, the worst last. Each stands in words on the page too.
const (
	calm    = "calm"
	info    = "info"
	warn    = "warn"
	stopped = "stop"
	unknown = "unknown"
)

var levels = []string{calm, info, warn, stopped, unknown}

func worse(a, b string) bool { return slices.Index(levels, a) > slices.Index(levels, b) }

// fleetView is the page's content.
type fleetView struct {
	Level    string // of the worst
	Headline string
	Lead     string
	Items    []item // what there is to know, the worst first
	ReadAt   moment
	ReadBy   string
	Version  string
	ByStore  bool // by the store's clock, else this replica's

	Switch   switchView
	Issuers  []issuerView
	KeysWhy  string // why the keys are not known
	Replicas *table
	FleetWhy string // why the replicas and counts are not known
	Activity activityView
	Counts   *table
	Audit    *table
	AuditWhy string

	Token, Role string // who looks
	Session     *sessionView

	now     time.Time
	mute    int    // issuers for which no key signs
	refused string // what is wrong with the store, if nothing is signed on it
	working int    // replicas that are ready, and not silent
}

// item is one thing to know.
type item struct{ Level, Text string }

// Word says the level.
func (i item) Word() string {
	return map[string]string{calm: "Fine", info: "Note", warn: "Attention", stopped: "Stopped", unknown: "Unknown"}[i.Level]
}

type sessionView struct {
	Until moment
	Local bool
}

type switchView struct {
	Why      string // why it is not known
	Epoch    uint64
	Entries  []entryView
	Probe    string // what the probe's standing stop is on, which is none of Entries
	Reported string // which replicas know of it
}

// Words say the switch's state.
func (s switchView) Words() string {
	switch {
	case s.Why != "":
		return "Unknown"
	case len(s.Entries) == 0:
		return "Nothing is stopped"
	}
	return count(len(s.Entries), "stop") + " in force"
}

type entryView struct {
	What, Reason, Actor, ID string
	Wide                    bool // all, or a whole issuer
	Since, Until            moment
	Epoch                   uint64
}

type issuerView struct {
	URL      string
	State    string // in few words
	Level    string
	Now      []string // what is, and what comes next
	Next     []string
	Pictures []*picture
	Hidden   int
	Keys     *table
	KeysWhy  string
}

type activityView struct {
	Why      string
	Lately   string
	Hour     string
	Missing  []string // what the sums lack
	Pictures []*picture
	Minutes  *table
	Rates    *table
}

// table is one on the page. The first cell of a row heads it.
type table struct {
	Caption string
	Class   string
	Head    []string
	Rows    [][]cell
}

// row adds one.
func (t *table) row(cells ...cell) {
	for i := range cells {
		cells[i].Label = t.Head[i]
	}
	t.Rows = append(t.Rows, cells)
}

// cell is one of a table; its label heads it where the table is shown as cards.
type cell struct {
	Label, Text string
	More        string // smaller, under it
	Moment      *moment
	Code        bool
	Whole       bool // on one line
	Level       string
}

func text(format string, args ...any) cell { return cell{Text: fmt.Sprintf(format, args...)} }

func at(m moment, otherwise string) cell {
	if m.Text == "" {
		return cell{Text: otherwise}
	}
	return cell{Moment: &m}
}

func (v *fleetView) moment(t time.Time) moment { return momentAt(t, v.now) }

// tell notes what there is to know.
func (v *fleetView) tell(level, format string, args ...any) {
	v.Items = append(v.Items, item{level, fmt.Sprintf(format, args...)})
}

// view makes of a reading what is shown.
func (c *Console) view(r *reading) *fleetView {
	v := &fleetView{ReadBy: c.cfg.Replica, Version: c.cfg.Version, now: r.began}
	if t := timeOf(r.fleet.value.GetTime()); r.fleet.err == nil && !t.IsZero() {
		v.now, v.ByStore = t, true
	} else if t := timeOf(r.activity.value.GetTime()); r.activity.err == nil && !t.IsZero() {
		v.now, v.ByStore = t, true
	}
	v.ReadAt = moment{Machine: v.now.UTC().Format(time.RFC3339), Text: v.now.UTC().Format("2 Jan 2006 15:04:05 UTC")}
	v.viewStore(r)
	v.viewSwitch(r)
	v.viewReplicas(r)
	v.viewKeys(r, c.cfg.Issuers)
	v.viewActivity(r)
	v.viewCounts(r)
	v.viewAudit(r)
	v.judge(r)
	return v
}

// judge says in one line how things are.
func (v *fleetView) judge(r *reading) {
	slices.SortStableFunc(v.Items, func(a, b item) int { return slices.Index(levels, b.Level) - slices.Index(levels, a.Level) })
	v.Level = calm
	for _, i := range v.Items {
		if worse(i.Level, v.Level) {
			v.Level = i.Level
		}
	}
	all, issuers, narrow := v.Switch.widths()
	switch {
	case r.kills.err != nil:
		v.Level, v.Headline = unknown, "Not known: the switch cannot be read"
		v.Lead = "Do not take this for calm. This replica cannot tell whether anything is stopped, nor how the fleet is. A replica that cannot reach the store signs nothing once its permit has run out, which takes seconds; others may still reach it: ask another replica."
	case v.refused != "":
		v.Level, v.Headline = stopped, v.refused+": nothing is signed on it"
		v.Lead = "No replica gives a token on this store, whatever the switch is. What this page reads from it (stops, replicas, counts, the audit log) may lack what it has lost: replicas still know of stops that it has forgotten, and put them back before they sign again."
	case all:
		v.Level, v.Headline = stopped, "Everything is stopped"
		v.Lead = "No issuer of this deployment issues any token. Tokens that are out already live until they expire."
	case issuers > 0 && issuers >= len(v.Issuers) && r.fleet.err == nil:
		v.Level, v.Headline = stopped, "Every issuer is stopped"
		v.Lead = "Each issuer of this deployment is stopped by itself. Tokens that are out already live until they expire."
	case r.fleet.err == nil && len(r.fleet.value.Replicas) > 0 && v.working == 0:
		v.Level, v.Headline = stopped, "No replica is ready"
		v.Lead = "Expect that nobody gets a token, whatever the switch is: what each replica lacks is in its log and in /readyz."
	case issuers > 0:
		v.Lead = "The switch does not stop the other issuers. Tokens that are out already live until they expire."
		if v.Level == unknown {
			v.Lead = "Whether the other issuers sign is not known. Tokens that are out already live until they expire."
		}
		v.Level, v.Headline = stopped, count(issuers, "issuer")+" stopped"
	case v.mute > 0:
		v.Level, v.Headline = stopped, "No key signs for "+count(v.mute, "issuer")
		v.Lead = "Nobody stopped it, and yet it issues no token until a key signs again."
	case r.fleet.err != nil:
		v.Level, v.Headline = unknown, "Not known: the fleet cannot be read"
		v.Lead = "Do not take this for calm. What is stopped is known, and stands below; how the replicas are is not."
	case v.Level == unknown:
		v.Headline, v.Lead = "Not all is known", "What could be read stands below. Do not take what is missing for fine."
	case narrow > 0 && v.Level == warn:
		v.Headline = "Attention needed, and " + count(narrow, "stop") + " in force"
	case v.Level == warn:
		v.Headline = "Attention needed"
	case narrow > 0:
		v.Level, v.Headline = info, "Signing, but for "+count(narrow, "stop")
		v.Lead = "Everybody and everything else gets tokens."
	default:
		v.Headline = "Nothing is stopped"
		live := len(r.fleet.value.Replicas)
		v.Lead = "All " + count(live, "replica") + " that the store knows are ready, and each issuer has a key that signs."
		if live == 1 {
			v.Lead = "The one replica that the store knows is ready, and each issuer has a key that signs."
		}
	}
}

// widths counts the stops of whole issuers, and of less; all says that one stops
// everything.
func (s switchView) widths() (all bool, issuers, narrow int) {
	stopped := map[string]bool{}
	for _, e := range s.Entries {
		switch {
		case !e.Wide:
			narrow++
		case strings.HasPrefix(e.What, "everything"):
			all = true
		default:
			stopped[e.What] = true
		}
	}
	return all, len(stopped), narrow
}

func (v *fleetView) viewStore(r *reading) {
	if r.store.err != nil {
		if status.Code(r.store.err) != codes.Unimplemented {
			v.tell(unknown, "How the store is cannot be told: %s", lower(r.store.why()))
		}
		return
	}
	s := r.store.value
	sentence := strings.TrimSuffix(s.Problem, ".")
	if s.Remedy != "" {
		sentence += ": " + strings.TrimSuffix(s.Remedy, ".")
	}
	switch {
	case s.Condition == "unknown":
		v.tell(unknown, "The store or custody does not answer: %s.", sentence)
	case s.Condition != "ok":
		v.refused = "The store is " + strings.ReplaceAll(s.Condition, "_", " ")
		v.tell(stopped, "%s: %s.", v.refused, sentence)
	case s.Problem != "":
		v.tell(info, "%s.", sentence)
	}
	if s.EnrolmentClosed {
		v.tell(warn, "Enrolment is closed for every issuer, since the store was lost or went back. “pactctl state open-enrolment” ends that.")
	}
}

func (v *fleetView) viewSwitch(r *reading) {
	if r.kills.err != nil {
		v.Switch.Why = r.kills.why()
		return
	}
	if v.refused != "" {
		v.Switch.Why = v.refused + ", and what it says of the switch is not believed: it may have forgotten stops. “pactctl kill status” lists what it has."
	}
	v.Switch.Epoch = r.kills.value.Epoch
	entries := slices.Clone(r.kills.value.Entries)
	wide := func(e *signerv1.KillEntry) bool { return e.Scope.GetKind() == "all" || e.Scope.GetKind() == "issuer" }
	slices.SortStableFunc(entries, func(a, b *signerv1.KillEntry) int {
		if wide(a) != wide(b) {
			if wide(a) {
				return -1
			}
			return 1
		}
		return timeOf(b.Time).Compare(timeOf(a.Time))
	})
	for _, e := range entries {
		if signer.OfProbe(e) {
			v.Switch.Probe = scopeWords(e.Scope)
			continue
		}
		v.Switch.Entries = append(v.Switch.Entries, entryView{
			What: scopeWords(e.Scope), Wide: wide(e), Reason: e.Reason, Actor: e.Actor, ID: e.Id, Epoch: e.Epoch,
			Since: v.moment(timeOf(e.Time)), Until: v.moment(timeOf(e.Expires)),
		})
	}
}

func (v *fleetView) viewReplicas(r *reading) {
	v.Replicas = &table{Caption: "What each replica told the store", Head: []string{"Replica", "State", "Version", "Permit left", "Seen", "Epoch", "Schedules", "Clock off"}}
	if r.fleet.err != nil {
		v.FleetWhy = r.fleet.why()
		if r.kills.err == nil { // else all is unknown anyway
			v.tell(unknown, "Replicas, issuers and counts are not known: %s", lower(v.FleetWhy))
		}
		return
	}
	f := r.fleet.value
	if f.Replica != "" {
		v.ReadBy = f.Replica
	}
	if f.Version != "" {
		v.Version = f.Version
	}
	newest, versions := map[string]uint64{}, map[string]bool{}
	for _, i := range f.Issuers {
		newest[i.Issuer] = i.ScheduleRevision
	}
	for _, x := range f.Replicas {
		versions[x.Version] = true
		for issuer, revision := range x.Revisions {
			newest[issuer] = max(newest[issuer], revision)
		}
	}
	replicas := slices.Clone(f.Replicas)
	slices.SortFunc(replicas, func(a, b *signerv1.Replica) int { return strings.Compare(a.Id, b.Id) })
	for _, x := range replicas {
		v.Replicas.row(v.replica(x, f, newest)...)
	}
	if len(replicas) == 0 {
		v.tell(warn, "The store knows no replica that runs.")
	}
	if len(versions) > 1 {
		v.tell(info, "Replicas run different versions: an upgrade is under way, or was not finished.")
	}
	v.missing(r)
	v.reported(f)
}

// reported says which replicas go by the switch as it is.
func (v *fleetView) reported(f *signerv1.FleetStatusResponse) {
	var behind []string
	for _, x := range f.Replicas {
		if x.Epoch < f.Epoch {
			behind = append(behind, x.Id)
		}
	}
	switch {
	case len(f.Replicas) == 0:
	case len(behind) == 0:
		v.Switch.Reported = "Every replica that the store knows has reported it."
	default:
		v.Switch.Reported = list(behind) + " did not report it yet: until then, or until the permit has run out, tokens may be issued there by an older state of the switch."
	}
}

// permitLasts is how long a permit lasts, where the replica's end is not told.
const permitLasts = 3 * time.Second

// replica is a row, and what is wrong with it.
func (v *fleetView) replica(x *signerv1.Replica, f *signerv1.FleetStatusResponse, newest map[string]uint64) []cell {
	name, state, level := x.Id, "ready", calm
	var wrong []string
	note := func(what string) { wrong = append(wrong, what) }
	permit := cell{Text: "unknown"}
	if seen := timeOf(x.Seen); x.PermitUntil == nil && v.now.Sub(seen) > permitLasts {
		note("is silent for " + span(v.now.Sub(seen)))
		state, level = "silent", warn
	}
	if until := timeOf(x.PermitUntil); !until.IsZero() {
		left := until.Sub(v.now)
		if permit = text("%s", tenths(left)); left <= 0 {
			permit = cell{Text: "none", More: "ran out " + span(-left) + " ago", Level: warn}
			note(fmt.Sprintf("is silent for %s: its permit has run out, so it signs nothing", span(v.now.Sub(timeOf(x.Seen)))))
			state, level = "silent", warn
		}
	}
	if !x.Ready && state != "silent" {
		state, level = "not ready", warn
		note("is not ready")
	}
	epoch := text("%d", x.Epoch)
	if x.Epoch < f.Epoch {
		epoch.More, epoch.Level = fmt.Sprintf("the switch is at %d", f.Epoch), warn
		note(fmt.Sprintf("has not reported the switch’s epoch %d", f.Epoch))
	}
	schedules := cell{Level: calm}
	var served []string
	for _, i := range f.Issuers {
		revision := x.Revisions[i.Issuer]
		if x.Id == f.Replica {
			revision = i.ScheduleRevision // as it is now, not as it was at its last beat
		}
		said := fmt.Sprint(revision)
		if len(f.Issuers) > 1 {
			said = hostOf(i.Issuer) + " " + said
		}
		if revision < newest[i.Issuer] {
			said += fmt.Sprintf(" (newest %d)", newest[i.Issuer])
			schedules.Level = warn
			v.tell(info, "Replica %s serves schedule %d of %s; the newest is %d. It signs on for 60 s at most without following.", name, revision, i.Issuer, newest[i.Issuer])
		}
		served = append(served, said)
	}
	schedules.Text = strings.Join(served, ", ")
	offset := x.ClockOffset.AsDuration()
	clock := text("%+.3f s", offset.Seconds())
	if offset.Abs() > time.Second {
		clock.Level = warn
		side := "ahead of"
		if offset < 0 {
			side = "behind"
		}
		note(fmt.Sprintf("has a clock that is %s %s the store’s (off by 5 s it is not ready, by 20 s it signs nothing)", tenths(offset.Abs()), side))
	}
	if state == "ready" {
		v.working++
	}
	if len(wrong) > 0 {
		v.tell(warn, "Replica %s %s.", name, list(wrong))
	}
	seen := cell{Text: "unknown"}
	if t := timeOf(x.Seen); !t.IsZero() {
		seen.Text = tenths(max(0, v.now.Sub(t))) + " ago"
	}
	head := cell{Text: name, Code: true}
	if x.Id == f.Replica {
		head.More = "told all this"
	}
	return []cell{head, {Text: state, Level: level, Whole: true}, {Text: x.Version}, permit, seen, epoch, schedules, clock}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// missing adds replicas that fell silent in the last two hours and are not there any more.
func (v *fleetView) missing(r *reading) {
	if r.activity.err != nil {
		return
	}
	for _, x := range r.activity.value.Silent {
		if slices.ContainsFunc(r.fleet.value.Replicas, func(y *signerv1.Replica) bool { return y.Id == x.Replica }) {
			continue
		}
		reported := v.moment(timeOf(x.Reported))
		v.Replicas.row(cell{Text: x.Replica, Code: true}, cell{Text: "gone", More: "left, or lost: the store does not say"}, text("–"), text("none"),
			cell{Text: orUnknown(reported.Away)}, text("–"), text("–"), text("–"))
		v.tell(info, "Replica %s is gone: it was last heard of %s. If nobody stopped it, look for it.", x.Replica, orUnknown(reported.Away))
	}
}

// hostOf shortens an issuer's URL where it only tells it from others.
func hostOf(issuer string) string {
	_, host, ok := strings.Cut(issuer, "://")
	if !ok {
		return issuer
	}
	return host
}

func (v *fleetView) viewCounts(r *reading) {
	v.Counts = &table{Caption: "Issuers", Head: []string{"Issuer", "Devices", "Credentials", "Audiences", "Enrolment", "Signs", "Tokens live", "Clients call"}}
	if r.fleet.err != nil {
		return
	}
	for _, i := range r.fleet.value.Issuers {
		v.Counts.row(cell{Text: i.Issuer}, cell{Text: number(i.Devices)}, cell{Text: number(i.Credentials)}, cell{Text: number(i.Audiences)},
			cell{Text: i.Enrolment}, cell{Text: i.Algorithm}, cell{Text: span(i.TokenTtl.AsDuration())}, cell{Text: i.SignerUrl})
		if !i.Ready && !v.Switch.stops(i.Issuer) {
			v.tell(warn, "The replica that answered cannot sign for %s: %s.", i.Issuer, strings.TrimSuffix(i.Why, "."))
		}
	}
}

// stops tells whether the switch stops an issuer, which then is not ready for that.
func (s switchView) stops(issuer string) bool {
	return slices.ContainsFunc(s.Entries, func(e entryView) bool {
		return e.Wide && (strings.HasPrefix(e.What, "everything") || e.What == scopeWords(&signerv1.Scope{Kind: "issuer", Value: issuer}))
	})
}

func (v *fleetView) viewActivity(r *reading) {
	if r.activity.err != nil {
		v.Activity.Why = r.activity.why()
		return
	}
	a := r.activity.value
	v.Activity.Missing = a.Missing
	if len(a.Minutes) == 0 {
		v.Activity.Why = "no minute was told"
		return
	}
	all, last := sums(a.Minutes)
	hour := span(time.Duration(len(a.Minutes)) * time.Minute)
	v.Activity.Hour = "Last " + hour + ": " + all.String() + "."
	v.Activity.Lately = fmt.Sprintf("Last %d min: %s.", min(lately, len(a.Minutes)), last)
	if last.failed > 0 {
		v.tell(warn, "%s could not be served in the last %d minutes, of %s.", count(last.failed, "sign request"), lately, number(last.signed+last.refused+last.failed))
	}
	desc := v.Activity.Lately + " " + v.Activity.Hour + " The table under it has the numbers."
	title := "Sign requests of the last " + hour + ", by minute"
	v.Activity.Pictures = []*picture{bars(a.Minutes, false, "rate-wide", title, desc), bars(a.Minutes, true, "rate-narrow", title, desc)}
	v.Activity.Minutes = &table{Caption: "Sign requests by five minutes", Head: []string{"From (UTC)", "Signed", "Refused", "Failed"}}
	from, sum := fiveMinutes(a.Minutes)
	for i := len(sum) - 1; i >= 0; i-- {
		failed := cell{Text: number(sum[i].failed)}
		if sum[i].failed > 0 {
			failed.Level = warn
		}
		v.Activity.Minutes.row(cell{Text: from[i].UTC().Format("15:04")}, cell{Text: number(sum[i].signed)}, cell{Text: number(sum[i].refused)}, failed)
	}
	v.Activity.Rates = &table{Caption: "Each replica now, over its last ten seconds", Head: []string{"Replica", "Signed/s", "Refused/s", "Failed/s", "Told", "Counts since"}}
	for _, x := range a.Replicas {
		v.Activity.Rates.row(cell{Text: x.Replica, Code: true}, text("%.1f", x.SignedRate), text("%.1f", x.RefusedRate), text("%.1f", x.FailedRate),
			cell{Text: orUnknown(v.moment(timeOf(x.Reported)).Away)}, at(v.moment(timeOf(x.Since)), "unknown"))
	}
}

func (v *fleetView) viewAudit(r *reading) {
	v.Audit = &table{Caption: "The last entries, the newest first", Class: "log", Head: []string{"Entry", "When", "Who", "What", "On", "Why"}}
	if r.audit.err != nil {
		v.AuditWhy = r.audit.why()
		return
	}
	for _, e := range slices.Backward(r.audit.value) {
		on := cell{Text: e.Target}
		if e.Issuer != "" && e.Issuer != e.Target {
			on.More = e.Issuer
		}
		v.Audit.row(text("%d", e.Seq), at(v.moment(timeOf(e.Time)), "unknown"), cell{Text: e.Actor}, cell{Text: e.Action}, on, cell{Text: e.Reason})
	}
}
