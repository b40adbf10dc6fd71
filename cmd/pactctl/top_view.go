package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// topView draws one picture. What is wrong is told by words or marks; colours only
// repeat it.
type topView struct {
	picture       *picture
	zone          *time.Location
	width, height int // 0: as much as it takes
	issuer        int // the one whose revision replicas are compared with
	live          bool
	paused, help  bool
	interval      time.Duration
	stale         time.Duration // how old the picture is, since err
	err           error
}

// look is how a piece of text looks.
type look uint8

const (
	plainLook look = iota
	faintLook
	boldLook
	goodLook
	badLook
	alarmLook
)

var looks = [...]lipgloss.Style{
	plainLook: lipgloss.NewStyle(),
	faintLook: lipgloss.NewStyle().Faint(true),
	boldLook:  lipgloss.NewStyle().Bold(true),
	goodLook:  lipgloss.NewStyle().Foreground(lipgloss.Green),
	badLook:   lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	alarmLook: lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true).Reverse(true),
}

// topText is text of one look, and topLine a line of them.
type topText struct {
	text string
	look look
}

type topLine []topText

// ink begins a line.
func ink(l look, format string, args ...any) topLine {
	return topLine{{fmt.Sprintf(format, args...), l}}
}

func (l topLine) add(k look, format string, args ...any) topLine {
	return append(l, topText{fmt.Sprintf(format, args...), k})
}

func (l topLine) plain() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(clean(s.text))
	}
	return b.String()
}

// styled cuts a line to the width of a terminal; the last column then is an ellipsis.
func (l topLine) styled(width int) string {
	var b strings.Builder
	_, whole := fit(l.plain(), 1<<20)
	left := width
	if whole > width {
		left--
	}
	for _, s := range l {
		text, used := fit(clean(s.text), left)
		b.WriteString(looks[s.look].Render(text))
		if left -= used; left == 0 || len(text) < len(clean(s.text)) {
			break
		}
	}
	if whole > width {
		b.WriteString("…")
	}
	return b.String()
}

// styled is the picture for a terminal, of height lines at most.
func (v topView) styled() string {
	lines := v.lines()
	if len(lines) > v.height {
		lines = lines[:v.height]
	}
	rows := make([]string, len(lines))
	for i, l := range lines {
		rows[i] = l.styled(v.width)
	}
	return strings.Join(rows, "\n")
}

// section is a part of the picture that can do with less than all of its lines.
type section struct {
	least, all int
	draw       func(n int) []topLine
}

// lines puts the sections together: each gets its least as long as there is room,
// then the first ones get the rest.
func (v topView) lines() []topLine {
	lines := v.head()
	if v.help {
		lines = append(append(lines, nil), topHelp()...)
		return append(lines, nil, v.foot())
	}
	sections := []section{v.issuers(), v.replicas(), v.requests(), v.audit()}
	left := 1 << 20
	if v.height > 0 {
		left = v.height - len(lines) - 1 // the foot
	}
	gap := 0
	if v.height == 0 || v.height >= 18 {
		gap = 1
	}
	got := make([]int, len(sections))
	for _, i := range []int{1, 0, 2, 3} {
		if s := sections[i]; s.all > 0 && s.least+gap <= left {
			got[i] = s.least
			left -= s.least + gap
		}
	}
	for i, s := range sections {
		if got[i] > 0 {
			more := min(s.all-got[i], left)
			got[i] += more
			left -= more
		}
	}
	for i, s := range sections {
		if got[i] == 0 {
			continue
		}
		if gap > 0 {
			lines = append(lines, nil)
		}
		lines = append(lines, s.draw(got[i])...)
	}
	if v.live {
		for range min(left, v.height) {
			lines = append(lines, nil)
		}
		lines = append(lines, v.foot())
	}
	return lines
}

// head tells which fleet it is, what is stopped, and whether the picture is of now.
func (v topView) head() []topLine {
	f := v.picture.fleet
	ready := 0
	for _, r := range f.Replicas {
		if r.Ready {
			ready++
		}
	}
	first := ink(boldLook, "PACT signer %s", f.Version).add(plainLook, "  %s  ", v.picture.server)
	if ready == len(f.Replicas) && ready > 0 {
		first = first.add(goodLook, "%s ready", plural(ready, "replica"))
	} else {
		first = first.add(badLook, "%d of %s READY", ready, plural(len(f.Replicas), "replica"))
	}
	for _, layout := range []string{toSecond + " MST", ofDay + " MST", ofDay} { // the longest that there is room for
		at := when(f.Time).In(v.zone).Format(layout)
		_, used := fit(first.plain(), 1<<20)
		if v.width == 0 || used+2+len(at) <= v.width {
			first = first.add(plainLook, "%*s", max(v.width-used, len(at)+2), at)
			break
		}
	}
	lines := []topLine{first, v.stopped()}
	switch {
	case v.err != nil:
		lines = append(lines, ink(alarmLook, "STALE, of %s ago:", spell(v.stale)).add(badLook, " %s", oneLine(v.err.Error())))
	case v.paused:
		lines = append(lines, ink(boldLook, "PAUSED: p goes on"))
	}
	return lines
}

// stopped is the state of the switch in words.
func (v topView) stopped() topLine {
	f := v.picture.fleet
	kills, standing := withoutProbe(f.Kills)
	if len(kills) == 0 {
		l := ink(goodLook, "Nothing is stopped")
		if len(standing) > 0 {
			l = l.add(faintLook, " but the probe's audience")
		}
		return l.add(faintLook, "  switch epoch %d", f.Epoch)
	}
	breadth := map[string]int{"all": 1, "issuer": 2} // others come last, and of equals the newest first
	slices.SortStableFunc(kills, func(a, b *signerv1.KillEntry) int {
		return cmp.Or(
			cmp.Compare(cmp.Or(breadth[a.GetScope().GetKind()], 3), cmp.Or(breadth[b.GetScope().GetKind()], 3)),
			when(b.Time).Compare(when(a.Time)),
		)
	})
	widest := kills[0]
	l := ink(alarmLook, "STOPPED: %s", scopeWords(widest.Scope))
	if len(kills) > 1 {
		l = l.add(badLook, " and %s", plural(len(kills)-1, "other"))
	}
	return l.add(plainLook, "  by %s %s ago: %s", widest.Actor, spell(when(f.Time).Sub(when(widest.Time))), widest.Reason).add(faintLook, "  switch epoch %d", f.Epoch)
}

// issuers is a block for each issuer: all of it for the chosen one, and for the others
// if there is room.
func (v topView) issuers() section {
	all := v.picture.fleet.Issuers
	if len(all) == 0 {
		return section{}
	}
	chosen := min(max(v.issuer, 0), len(all)-1)
	full := 0
	for _, i := range all {
		full += len(v.issuerBlock(i, false))
	}
	return section{min(2, full), full, func(n int) []topLine {
		var lines []topLine
		if n >= full {
			for k, i := range all {
				lines = append(lines, v.issuerBlock(i, len(all) > 1 && k == chosen)...)
			}
			return lines
		}
		lines = v.issuerBlock(all[chosen], len(all) > 1)
		lines = lines[:min(n, len(lines))]
		for k := 1; k < len(all) && len(lines) < n; k++ {
			i := all[(chosen+k)%len(all)]
			if len(lines) == n-1 && k < len(all)-1 {
				return append(lines, ink(faintLook, "  … %s more: i shows the next", plural(len(all)-k, "issuer")))
			}
			lines = append(lines, v.issuerState(i, false).add(plainLook, "  %s", v.signs(i)))
		}
		return lines
	}}
}

func (v topView) issuerState(i *signerv1.IssuerStatus, chosen bool) topLine {
	mark := ""
	if chosen {
		mark = "> "
	}
	l := ink(boldLook, "%s%s", mark, i.Issuer)
	killed := slices.ContainsFunc(v.picture.fleet.Kills, func(e *signerv1.KillEntry) bool {
		return e.GetScope().GetKind() == "all" || e.GetScope().GetKind() == "issuer" && e.Scope.Value == i.Issuer
	})
	switch {
	case killed:
		return l.add(badLook, "  STOPPED")
	case i.Ready:
		return l.add(goodLook, "  ready")
	}
	return l.add(badLook, "  NOT READY: %s", i.Why)
}

// signs tells which key signs, since when, and until when.
func (v topView) signs(i *signerv1.IssuerStatus) string {
	now := when(v.picture.fleet.Time)
	text := "no key signs yet"
	if i.SigningKid != "" {
		text = i.Algorithm + " " + v.kid(i.SigningKid, 12)
		for _, k := range v.picture.keys {
			if k.Issuer == i.Issuer && k.Kid == i.SigningKid {
				text += " for " + spell(now.Sub(when(k.SignAt)))
			}
		}
	}
	switch at := when(i.NextSignAt); {
	case at.IsZero():
		return text + ", no next key planned"
	default:
		return text + ", next key signs in " + spell(at.Sub(now))
	}
}

// kid is the beginning of a key's id, which is enough to know it by; or all of it where
// nothing is shortened.
func (v topView) kid(kid string, n int) string {
	if v.width == 0 {
		return kid
	}
	return shorten(kid, n)
}

func (v topView) issuerBlock(i *signerv1.IssuerStatus, chosen bool) []topLine {
	lines := []topLine{v.issuerState(i, chosen), ink(plainLook, "  signs  %s", v.signs(i))}
	now := when(v.picture.fleet.Time)
	keys := ink(plainLook, "  keys  ")
	n := 0
	for _, k := range v.picture.keys {
		if k.Issuer != i.Issuer || k.State == "signing" || k.State == "removed" {
			continue
		}
		if n++; n > 1 {
			keys = keys.add(plainLook, ",")
		}
		keys = keys.add(plainLook, " %s %s", v.kid(k.Kid, 6), k.State)
		switch at := when(k.RemoveAt); {
		case k.State == "pending":
			keys = keys.add(plainLook, ", in the key set in %s", spell(when(k.PublishAt).Sub(now)))
		case k.State == "published":
			if len(k.ServedBy) < int(k.Replicas) {
				keys = keys.add(badLook, " served by only %d/%d!", len(k.ServedBy), k.Replicas)
			}
		case k.State == "retiring" && !at.IsZero():
			keys = keys.add(plainLook, " for %s", spell(at.Sub(now)))
		}
	}
	if n > 0 {
		lines = append(lines, keys)
	}
	return lines
}

// cell is one of a table.
type cell struct {
	text string
	look look
}

// column is one of the replicas' table. Those of a low rank go first where there is no
// room.
type column struct {
	name string
	rank int
	left bool
	cell func(r *signerv1.Replica) cell
}

func (v topView) columns() []column {
	p := v.picture
	now := when(p.fleet.Time)
	rates := make(map[string]*signerv1.ReplicaActivity)
	for _, r := range p.activity.GetReplicas() {
		rates[r.Replica] = r
	}
	rate := func(of func(*signerv1.ReplicaActivity) float64, wrong bool) func(*signerv1.Replica) cell {
		return func(r *signerv1.Replica) cell {
			a := rates[r.Id]
			if a == nil {
				return cell{"-", faintLook}
			}
			if n := of(a); wrong && n > 0 {
				return cell{perSecond(n) + "!", badLook}
			} else {
				return cell{perSecond(n), plainLook}
			}
		}
	}
	revision := uint64(0)
	issuer := ""
	if n := len(p.fleet.Issuers); n > 0 {
		i := p.fleet.Issuers[min(max(v.issuer, 0), n-1)]
		issuer = i.Issuer
		for _, r := range p.fleet.Replicas { // the newest that anybody serves
			revision = max(revision, i.ScheduleRevision, r.Revisions[issuer])
		}
	}
	behind := func(have, newest uint64) cell {
		if have < newest {
			return cell{fmt.Sprintf("%d!", have), badLook}
		}
		return cell{fmt.Sprint(have), plainLook}
	}
	return []column{
		{"REPLICA", 9, true, func(r *signerv1.Replica) cell { return cell{clean(r.Id), plainLook} }},
		{"READY", 9, true, func(r *signerv1.Replica) cell {
			if r.Ready {
				return cell{"yes", goodLook}
			}
			return cell{"NO", badLook}
		}},
		{"PERMIT", 8, false, func(r *signerv1.Replica) cell {
			left := when(r.PermitUntil).Sub(now)
			switch {
			case r.PermitUntil == nil:
				return cell{"-", faintLook}
			case left <= 0:
				return cell{"NONE", badLook}
			}
			return cell{fmt.Sprintf("%.1fs", left.Seconds()), plainLook}
		}},
		{"EPOCH", 5, false, func(r *signerv1.Replica) cell { return behind(r.Epoch, p.fleet.Epoch) }},
		{"REV", 3, false, func(r *signerv1.Replica) cell { return behind(r.Revisions[issuer], revision) }},
		{"SEEN", 4, false, func(r *signerv1.Replica) cell {
			ago := max(now.Sub(when(r.Seen)), 0)
			return cell{fmt.Sprintf("%.1fs", ago.Seconds()), plainLook}
		}},
		{"CLOCK", 2, false, func(r *signerv1.Replica) cell {
			off := r.ClockOffset.AsDuration()
			text := fmt.Sprintf("%+dms", off.Milliseconds())
			if off.Abs() >= time.Second {
				text = fmt.Sprintf("%+.1fs!", off.Seconds())
				return cell{text, badLook}
			}
			return cell{text, plainLook}
		}},
		{"SIGN/S", 8, false, rate((*signerv1.ReplicaActivity).GetSignedRate, false)},
		{"REF/S", 6, false, rate((*signerv1.ReplicaActivity).GetRefusedRate, false)},
		{"FAIL/S", 7, false, rate((*signerv1.ReplicaActivity).GetFailedRate, true)},
		{"VERSION", 1, true, func(r *signerv1.Replica) cell { return cell{clean(r.Version), plainLook} }},
	}
}

// perSecond is a rate in few characters.
func perSecond(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 0.05:
		return "<0.1"
	case n < 10:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// shortestName is what is left at least of a replica's name.
const shortestName = 12

// replicas is their table.
func (v topView) replicas() section {
	all := v.picture.fleet.Replicas
	if len(all) == 0 {
		return section{1, 1, func(int) []topLine { return []topLine{ink(badLook, "NO REPLICA has reported.")} }}
	}
	columns := v.columns()
	for {
		widths, total := v.widths(columns, all)
		spare := v.width - total
		if v.width == 0 {
			spare = len(columns)
		}
		if spare < 0 { // shorten names before a column goes
			cut := min(-spare, max(0, widths[0]-shortestName))
			widths[0] -= cut
			spare += cut
		}
		if spare >= 0 || len(columns) <= 2 {
			gap := 1
			if spare >= len(columns)-1 {
				gap = 2
			}
			return section{min(3, 1+len(all)), 1 + len(all), func(n int) []topLine { return v.table(columns, widths, gap, n) }}
		}
		least := 0
		for i, c := range columns {
			if c.rank < columns[least].rank {
				least = i
			}
		}
		columns = slices.Delete(columns, least, least+1)
	}
}

// widths are those of the columns, and what a row takes with single gaps.
func (v topView) widths(columns []column, replicas []*signerv1.Replica) (widths []int, total int) {
	for _, c := range columns {
		w := len(c.name)
		for _, r := range replicas {
			_, used := fit(c.cell(r).text, 1<<20)
			w = max(w, used)
		}
		widths = append(widths, w)
		total += w + 1
	}
	return widths, total - 1
}

func (v topView) table(columns []column, widths []int, gap, n int) []topLine {
	replicas := v.picture.fleet.Replicas
	hidden := 0
	if len(replicas) > n-1 { // those that are not ready are shown first
		replicas = slices.Clone(replicas)
		slices.SortStableFunc(replicas, func(a, b *signerv1.Replica) int {
			if a.Ready == b.Ready {
				return 0
			}
			if a.Ready {
				return 1
			}
			return -1
		})
		hidden = len(replicas) - (n - 2)
		replicas = replicas[:n-2]
	}
	row := func(cells []cell) (l topLine) {
		for i, c := range cells {
			text, used := c.text, 0
			if _, used = fit(text, 1<<20); used > widths[i] { // a name: its end tells more
				r := []rune(text)
				text, used = "…"+string(r[len(r)-widths[i]+1:]), widths[i]
			}
			pad := strings.Repeat(" ", widths[i]-used)
			if i > 0 {
				l = l.add(plainLook, "%s", strings.Repeat(" ", gap))
			}
			switch {
			case !columns[i].left:
				l = l.add(plainLook, "%s", pad).add(c.look, "%s", text)
			case i == len(cells)-1:
				l = l.add(c.look, "%s", text)
			default:
				l = l.add(c.look, "%s", text).add(plainLook, "%s", pad)
			}
		}
		return l
	}
	head := make([]cell, len(columns))
	for i, c := range columns {
		head[i] = cell{c.name, faintLook}
	}
	lines := []topLine{row(head)}
	for _, r := range replicas {
		cells := make([]cell, len(columns))
		for i, c := range columns {
			cells[i] = c.cell(r)
		}
		lines = append(lines, row(cells))
	}
	if hidden > 0 {
		lines = append(lines, ink(faintLook, "… %s more", plural(hidden, "replica")))
	}
	return lines
}

// gone are the replicas that fell silent without saying that they end, and that are
// not in the fleet any more.
func gone(f *signerv1.FleetStatusResponse, a *signerv1.GetActivityResponse) (lost []string) {
	for _, s := range a.GetSilent() {
		if !slices.ContainsFunc(f.Replicas, func(r *signerv1.Replica) bool { return r.Id == s.Replica }) {
			lost = append(lost, fmt.Sprintf("%s, last heard of %s ago", s.Replica, spell(when(a.Time).Sub(when(s.Reported)))))
		}
	}
	return lost
}

// requests are the sign requests of the last hour.
func (v topView) requests() section {
	a := v.picture.activity
	if a == nil {
		return section{1, 1, func(int) []topLine {
			return []topLine{ink(faintLook, "This signer's version does not tell what it did.")}
		}}
	}
	var signed, refused, failed []uint64
	var sum [3]uint64
	for _, m := range a.Minutes {
		signed, refused, failed = append(signed, m.Signed), append(refused, m.Refused), append(failed, m.Failed)
		sum[0], sum[1], sum[2] = sum[0]+m.Signed, sum[1]+m.Refused, sum[2]+m.Failed
	}
	total := ink(plainLook, "Last %s: %d signed, %d refused, ", spell(time.Duration(len(a.Minutes))*time.Minute), sum[0], sum[1])
	if sum[2] > 0 {
		total = total.add(badLook, "%d FAILED", sum[2])
	} else {
		total = total.add(plainLook, "0 failed")
	}
	lines := []topLine{total, v.sparkline("signed", signed, plainLook)}
	if lost := gone(v.picture.fleet, a); len(lost) > 0 {
		lines = append(lines, ink(badLook, "  GONE: %s", strings.Join(lost, "; ")))
	}
	if len(a.Missing) > 0 {
		lines = append(lines, ink(badLook, "  INCOMPLETE: %s", strings.Join(a.Missing, "; ")))
	}
	if sum[2] > 0 {
		lines = append(lines, v.sparkline("FAILED", failed, badLook))
	}
	if sum[1] > 0 {
		lines = append(lines, v.sparkline("refused", refused, plainLook))
	}
	return section{1, len(lines), func(n int) []topLine { return lines[:n] }}
}

const bars = "▁▂▃▄▅▆▇█"

// sparkline is a bar for each minute, the newest on the right: a blank for none.
func (v topView) sparkline(name string, values []uint64, l look) topLine {
	most := slices.Max(append(values, 0))
	label, peak := fmt.Sprintf("  %-7s ", name), fmt.Sprintf(" most %d/min", most)
	if room := v.width - len(label) - len(peak); v.width > 0 && len(values) > room {
		values = values[len(values)-max(room, 0):]
	}
	var b strings.Builder
	for _, n := range values {
		if n == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune([]rune(bars)[int(float64(n)/float64(most)*7.999)])
	}
	return ink(plainLook, "%s", label).add(l, "%s", b.String()).add(faintLook, "%s", peak)
}

// audit is the end of the audit log.
func (v topView) audit() section {
	all := v.picture.audit
	if len(all) == 0 {
		return section{}
	}
	return section{2, 1 + len(all), func(n int) []topLine {
		lines := []topLine{ink(faintLook, "AUDIT")}
		for _, e := range all[max(0, len(all)-(n-1)):] {
			l := ink(faintLook, "%5d  %s  ", e.Seq, when(e.Time).In(v.zone).Format(ofDay)).add(plainLook, "%s by %s", e.Action, e.Actor)
			if e.Target != "" {
				l = l.add(plainLook, "  %s", e.Target)
			}
			if e.Reason != "" {
				l = l.add(faintLook, "  %s", e.Reason)
			}
			lines = append(lines, l)
		}
		return lines
	}}
}

func (v topView) foot() topLine {
	return ink(faintLook, "every %s  q quit  p pause  +/- interval  i issuer  ? help", spell(v.interval))
}

func topHelp() (lines []topLine) {
	for _, l := range []string{
		"q       quit                      p   stand still, and go on",
		"+ -     longer, shorter interval  i   the next issuer",
		"?       this                      ^C  quit, with exit code 130",
		"",
		"PERMIT  how long a replica may sign without asking the store again: 3s at",
		"        most. NONE: it signs nothing.",
		"EPOCH   of the kill switch that it has confirmed; REV of the key schedule that",
		"        it serves. With ! it is behind the fleet.",
		"CLOCK   its clock less the store's; from 5s it is not ready.",
		"SIGN/S  tokens a second, of the last 10. REF/S: refused, the caller's fault or the",
		"        switch. FAIL/S: could not be served. -: it has not told lately.",
	} {
		lines = append(lines, ink(plainLook, "%s", l))
	}
	return lines
}

// spell is a duration in its two largest units: 27d3h, 41m10s.
func spell(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(d, 0)
	two := func(a time.Duration, an string, b time.Duration, bn string) string {
		if rest := d % a / b; rest > 0 {
			return fmt.Sprintf("%d%s%d%s", d/a, an, rest, bn)
		}
		return fmt.Sprintf("%d%s", d/a, an)
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return two(time.Minute, "m", time.Second, "s")
	case d < day:
		return two(time.Hour, "h", time.Minute, "m")
	}
	return two(day, "d", time.Hour, "h")
}
