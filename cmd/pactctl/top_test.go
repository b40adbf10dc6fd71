package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/probe"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// topPicture is a fleet in trouble: a rotation on its way, one replica that is behind,
// one whose clock is off, one that told nothing, and two issuers.
func topPicture() *picture {
	minutes := make([]*signerv1.ActivityMinute, 60)
	for i := range minutes {
		minutes[i] = &signerv1.ActivityMinute{Start: ts(time.Duration(i-59) * time.Minute), Signed: uint64(i * 20)}
	}
	minutes[57].Refused, minutes[58].Failed = 4, 2
	return &picture{
		at: testNow, server: "https://10.0.0.5:8789",
		fleet: &signerv1.FleetStatusResponse{
			Version: "1.0.0", Replica: "pact-signer-0", Epoch: 7, Time: ts(0),
			Issuers: []*signerv1.IssuerStatus{
				{Issuer: testIssuer, Algorithm: "ES256", SigningKid: testKid, NextSignAt: ts(41*time.Minute + 10*time.Second), ScheduleRevision: 5, Ready: true},
				{Issuer: "https://other.example.com", Algorithm: "ES256", Why: "the key schedule is older than 60s"},
			},
			Replicas: []*signerv1.Replica{
				{Id: "pact-signer-0", Version: "1.0.0", Epoch: 7, Seen: ts(-500 * time.Millisecond), PermitUntil: ts(2500 * time.Millisecond), ClockOffset: durationpb.New(12 * time.Millisecond), Ready: true, Revisions: map[string]uint64{testIssuer: 5}},
				{Id: "pact-signer-1", Version: "1.0.0", Epoch: 6, Seen: ts(-5 * time.Second), PermitUntil: ts(-2 * time.Second), ClockOffset: durationpb.New(-3 * time.Millisecond), Revisions: map[string]uint64{testIssuer: 4}},
				{Id: "pact-signer-2", Version: "1.1.0", Epoch: 7, Seen: ts(-time.Second), PermitUntil: ts(2 * time.Second), ClockOffset: durationpb.New(-4200 * time.Millisecond), Ready: true, Revisions: map[string]uint64{testIssuer: 5}},
			},
		},
		keys: []*signerv1.Key{
			{Issuer: testIssuer, Kid: testDevice, State: "published", SignAt: ts(41*time.Minute + 10*time.Second), ServedBy: []string{"pact-signer-0", "pact-signer-2"}, Replicas: 3},
			{Issuer: testIssuer, Kid: testKid, State: "signing", SignAt: ts(-27*day - 3*time.Hour)},
			{Issuer: testIssuer, Kid: "retiring-kid", State: "retiring", RemoveAt: ts(12 * time.Minute)},
			{Issuer: testIssuer, Kid: "gone", State: "removed"},
		},
		activity: &signerv1.GetActivityResponse{
			Time: ts(0), Minutes: minutes,
			Replicas: []*signerv1.ReplicaActivity{
				{Replica: "pact-signer-0", SignedRate: 19.6, RefusedRate: 0.4},
				{Replica: "pact-signer-2", SignedRate: 0.01, FailedRate: 0.2},
			},
			Missing: []string{"nothing was told lately by pact-signer-1: begun just now, cut off, or of an older version"},
		},
		audit: []*signerv1.AuditEntry{
			{Seq: 40, Time: ts(-time.Hour), Actor: "ops@example.com", Action: "rotate", Target: testDevice},
			{Seq: 41, Time: ts(-3 * time.Minute), Actor: "ops@example.com", Action: "kill", Target: "device " + testDevice, Reason: "lost\x1b[31m phone"},
		},
	}
}

func stoppedPicture() *picture {
	p := topPicture()
	p.fleet.Kills = []*signerv1.KillEntry{
		{Id: "a", Scope: &signerv1.Scope{Kind: "device", Value: testDevice, Issuer: testIssuer}, Actor: "ops@example.com", Time: ts(-time.Hour), Reason: "lost phone"},
		{Id: "b", Scope: &signerv1.Scope{Kind: "issuer", Value: testIssuer}, Actor: "ops@example.com", Time: ts(-4 * time.Minute), Reason: "incident 4711"},
	}
	return p
}

// The widest stop is told, of equals the newest, and the probe's own is none.
func TestTopStopped(t *testing.T) {
	standing := &signerv1.KillEntry{Id: "p", Scope: &signerv1.Scope{Kind: "audience", Value: probe.DefaultKilledAudience}, Time: ts(-time.Minute), Reason: signer.ProbeReason}
	device := func(id string, ago time.Duration) *signerv1.KillEntry {
		return &signerv1.KillEntry{Id: id, Scope: &signerv1.Scope{Kind: "device", Value: id}, Time: ts(-ago), Reason: "lost"}
	}
	expires, real := proto.CloneOf(standing), proto.CloneOf(standing)
	expires.Expires, real.Scope.Value = ts(time.Hour), "https://pa.example.com"
	for want, kills := range map[string][]*signerv1.KillEntry{
		"Nothing is stopped  ":                         nil,
		"Nothing is stopped but the probe's audience ": {standing},
		"STOPPED: device new and 1 other":              {standing, device("old", time.Hour), device("new", time.Minute)},
		"STOPPED: everything and 1 other":              {device("new", 0), {Scope: &signerv1.Scope{Kind: "all"}, Time: ts(-time.Hour)}, standing},
		"STOPPED: audience urn:pact:probe-killed":      {expires},
		"STOPPED: audience https://pa.example.com":     {real},
	} {
		v := topView{picture: &picture{fleet: &signerv1.FleetStatusResponse{Time: ts(0), Kills: kills}}}
		if got := v.stopped().plain(); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A replica that is gone is named.
func TestTopGone(t *testing.T) {
	p := topPicture()
	p.activity.Silent = []*signerv1.ReplicaActivity{{Replica: "pact-signer-1", Reported: ts(-time.Minute)}, {Replica: "pact-signer-9", Reported: ts(-3 * time.Minute)}}
	if got := (topView{picture: p, zone: time.UTC}).plainRows(); strings.Count(got, "GONE") != 1 || !strings.Contains(got, "GONE: pact-signer-9, last heard of 3m") {
		t.Error(got)
	}
	var b bytes.Buffer
	printFleet(&printer{w: &b, now: testNow, zone: time.UTC, width: 80}, p.fleet, p.activity)
	if got := b.String(); strings.Count(got, "Gone without") != 1 || !strings.Contains(got, "Gone without a word: pact-signer-9, last heard of 3m") {
		t.Error(got)
	}
}

// What it shows on terminals of several sizes, without the colours.
func TestTopViews(t *testing.T) {
	for name, v := range map[string]topView{
		"top":         {picture: topPicture(), width: 80, height: 24, live: true, interval: 2 * time.Second},
		"top-wide":    {picture: topPicture(), width: 132, height: 43, live: true, interval: 2 * time.Second, issuer: 1},
		"top-small":   {picture: topPicture(), width: 40, height: 10, live: true, interval: time.Minute},
		"top-stopped": {picture: stoppedPicture(), width: 80, height: 24, live: true, interval: 2 * time.Second},
		"top-stale":   {picture: topPicture(), width: 80, height: 16, live: true, interval: 2 * time.Second, stale: 75 * time.Second, err: errors.New("cannot reach the signer at https://10.0.0.5:8789")},
		"top-paused":  {picture: stoppedPicture(), width: 80, height: 12, live: true, paused: true, interval: 2 * time.Second},
		"top-help":    {picture: topPicture(), width: 80, height: 24, live: true, help: true, interval: 2 * time.Second},
		"top-whole":   {picture: stoppedPicture()},
	} {
		t.Run(name, func(t *testing.T) {
			v.zone = time.FixedZone("CET", 3600)
			var b bytes.Buffer
			for row := range strings.SplitSeq(v.plainRows(), "\n") {
				fmt.Fprintln(&b, strings.TrimRight(row, " "))
			}
			golden(t, name+".txt", b.Bytes())
		})
	}
}

// plainRows is styled without the styles.
func (v topView) plainRows() string {
	if v.height == 0 {
		var rows []string
		for _, l := range v.lines() {
			rows = append(rows, l.plain())
		}
		return strings.Join(rows, "\n")
	}
	return unstyled.ReplaceAllString(v.styled(), "")
}

// However small the terminal, nothing is wider or longer than it, and what is stopped
// is told.
func TestTopFits(t *testing.T) {
	many := stoppedPicture()
	for i := range 30 {
		r := proto.Clone(many.fleet.Replicas[0]).(*signerv1.Replica)
		r.Id = fmt.Sprintf("a-replica-of-a-very-long-name-in-a-cluster-%d", i)
		many.fleet.Replicas = append(many.fleet.Replicas, r)
		many.fleet.Issuers = append(many.fleet.Issuers, &signerv1.IssuerStatus{Issuer: fmt.Sprintf("https://%d.example.com", i)})
		many.audit = append(many.audit, &signerv1.AuditEntry{Seq: 42, Action: "kill", Actor: "某人", Target: strings.Repeat("長い", 60)})
	}
	empty := &picture{fleet: &signerv1.FleetStatusResponse{Kills: many.fleet.Kills}}
	for _, p := range []*picture{many, topPicture(), empty} {
		for width := 1; width <= 140; width += 9 {
			for height := 1; height <= 40; height += 3 {
				for _, help := range []bool{false, true} {
					v := topView{picture: p, zone: time.UTC, width: width, height: height, live: true, help: help, issuer: 3, err: errors.New("away"), interval: time.Second}
					rows := strings.Split(v.plainRows(), "\n")
					if len(rows) > height {
						t.Fatalf("%d×%d: %d lines", width, height, len(rows))
					}
					for _, row := range rows {
						if _, used := fit(row, 1<<20); used > width {
							t.Fatalf("%d×%d: a line of %d columns: %q", width, height, used, row)
						}
					}
					if len(p.fleet.Kills) > 0 && width > 20 && height > 2 && !strings.Contains(rows[1], "STOPPED: issuer") {
						t.Fatalf("%d×%d does not tell what is stopped:\n%s", width, height, strings.Join(rows, "\n"))
					}
					if width > 20 && height > 3 && !strings.HasPrefix(rows[2], "STALE") {
						t.Fatalf("%d×%d does not tell that it is stale:\n%s", width, height, strings.Join(rows, "\n"))
					}
				}
			}
		}
	}
}

// What a colour says is also said without: by a mark, or in capitals.
func TestTopColoursRepeatMarks(t *testing.T) {
	for _, p := range []*picture{topPicture(), stoppedPicture()} {
		for _, l := range (topView{picture: p, zone: time.UTC, width: 200, err: errors.New("away")}).lines() {
			for _, s := range l {
				if (s.look == badLook || s.look == alarmLook) && !strings.Contains(s.text, "!") && strings.ToLower(l.plain()) == l.plain() {
					t.Errorf("only its colour says what is wrong with %q in %q", s.text, l.plain())
				}
			}
		}
	}
}

func newTestModel(looks ...any) topModel {
	n := 0
	look := func(context.Context) (*picture, error) {
		next := looks[min(n, len(looks)-1)]
		n++
		if err, failed := next.(error); failed {
			return nil, err
		}
		return next.(*picture), nil
	}
	m := newTopModel(context.Background(), look, topPicture(), func() time.Time { return testNow.Add(time.Minute) }, time.UTC, 2*time.Second)
	m.width, m.height = 80, 24
	return m
}

// after gives a model messages; keys are given as text.
func (m topModel) after(t *testing.T, messages ...any) (topModel, tea.Cmd) {
	t.Helper()
	var cmd tea.Cmd
	for _, msg := range messages {
		if key, ok := msg.(string); ok {
			k := tea.KeyPressMsg{Text: key, Code: []rune(key)[0]}
			if key == "ctrl+c" {
				k = tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
			}
			msg = k
		}
		var next tea.Model
		next, cmd = m.Update(msg)
		m = next.(topModel)
	}
	return m, cmd
}

func TestTopLooksAndGoesOn(t *testing.T) {
	m, cmd := newTestModel(errors.New("away"), stoppedPicture()).after(t, dueMsg{})
	if cmd == nil || !m.looking {
		t.Fatal("a look that is due does not begin")
	}
	if _, again := m.after(t, dueMsg{}); again != nil {
		t.Fatal("a second look begins beside the first")
	}
	m, wait := m.after(t, cmd())
	if wait == nil || m.err == nil || !strings.Contains(m.plain(), "STALE, of 1m ago: away") || !strings.Contains(m.plain(), "pact-signer-0") {
		t.Fatalf("after a failed look it shows\n%s", m.plain())
	}
	m, cmd = m.after(t, dueMsg{m.turn})
	if m, _ = m.after(t, cmd()); m.err != nil || strings.Contains(m.plain(), "STALE") || !strings.Contains(m.plain(), "STOPPED") {
		t.Fatalf("after the next look it shows\n%s", m.plain())
	}
	if m, cmd = m.after(t, dueMsg{m.turn - 1}); cmd != nil {
		t.Fatal("a look of an earlier turn begins")
	}
}

// plain is what it draws, without styles.
func (m topModel) plain() string { return unstyled.ReplaceAllString(m.draw(), "") }

func TestTopKeys(t *testing.T) {
	m := newTestModel(stoppedPicture())
	if m, _ := m.after(t, "?"); !strings.Contains(m.plain(), "may sign without asking") {
		t.Errorf("? shows\n%s", m.plain())
	}
	if m, _ := m.after(t, "?", "?"); strings.Contains(m.plain(), "may sign without asking") {
		t.Error("the second ? does not end the help")
	}
	for keys, want := range map[string]int{"i": 1, "ii": 0} {
		if m, _ := m.after(t, each(keys)...); m.issuer != want {
			t.Errorf("%s shows issuer %d, want %d", keys, m.issuer, want)
		}
	}
	for keys, want := range map[string]time.Duration{
		"+": 5 * time.Second, "-": time.Second, "--": time.Second, "++++++++": time.Minute, "+++++---": 5 * time.Second,
	} {
		m, cmd := m.after(t, each(keys)...)
		if m.interval != want || cmd == nil || m.turn == 0 {
			t.Errorf("%s looks every %v, want %v", keys, m.interval, want)
		}
	}
	odd := m
	odd.interval = time.Hour
	if odd, _ := odd.after(t, "+"); odd.interval != time.Hour {
		t.Errorf("from an hour + leads to %v", odd.interval)
	}
	if odd, _ := odd.after(t, "-"); odd.interval != time.Minute {
		t.Errorf("from an hour - leads to %v", odd.interval)
	}
	for key, interrupted := range map[string]bool{"q": false, "ctrl+c": true} {
		m, cmd := m.after(t, key)
		if cmd == nil || m.interrupted != interrupted {
			t.Fatalf("%s: interrupted is %v", key, m.interrupted)
		}
		if _, ends := cmd().(tea.QuitMsg); !ends {
			t.Errorf("%s does not end it", key)
		}
	}
}

func each(keys string) (list []any) {
	for _, k := range keys {
		list = append(list, string(k))
	}
	return list
}

// A pause keeps the picture, also against a look that is on its way, and ends with a
// look.
func TestTopPause(t *testing.T) {
	m, look := newTestModel(stoppedPicture()).after(t, dueMsg{})
	m, _ = m.after(t, "p", look())
	if strings.Contains(m.plain(), "STOPPED") || !strings.Contains(m.plain(), "PAUSED") {
		t.Fatalf("paused it shows\n%s", m.plain())
	}
	if _, cmd := m.after(t, dueMsg{m.turn}); cmd != nil {
		t.Fatal("it looks while it is paused")
	}
	m, look = m.after(t, "p")
	if look == nil {
		t.Fatal("it does not look as it goes on")
	}
	if m, _ = m.after(t, look()); !strings.Contains(m.plain(), "STOPPED") || strings.Contains(m.plain(), "PAUSED") {
		t.Fatalf("after the pause it shows\n%s", m.plain())
	}
}

func TestTopCountEnds(t *testing.T) {
	m := newTestModel(stoppedPicture())
	m.count = 2
	m, look := m.after(t, dueMsg{})
	if _, end := m.after(t, look()); end == nil {
		t.Fatal("it does not end")
	} else if _, ends := end().(tea.QuitMsg); !ends {
		t.Fatal("after the second look of two it goes on")
	}
}

func TestSpell(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 900*time.Millisecond: "59s", time.Minute: "1m", 61 * time.Second: "1m1s",
		time.Hour: "1h", 3*time.Hour + 12*time.Minute + 9*time.Second: "3h12m", 27*day + 3*time.Hour: "27d3h", 2 * day: "2d",
	} {
		if got := spell(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// unstyled are the styles of a drawn picture.
var unstyled = regexp.MustCompile("\x1b\\[[0-9;]*m")
