package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/probe"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	testIssuer = "https://pa.example.com"
	testKid    = "cn-I_WNMClehiVp51i_0VpOENW1upEerA8sEam5hn-s"
	testDevice = "hkwVu1nVfLNKQVkbX6JXbZBdeiNWcXFeSn-S4OVSOsM"

	longIssuer = "https://pa.some-company.example.com"
	longActor  = "oncall-of-the-platform-team-in-europe"
)

var testNow = time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)

func ts(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(d)) }

const day = 24 * time.Hour

// TestGolden holds what people read to files, on a terminal of 80 columns.
func TestGolden(t *testing.T) {
	entry := &signerv1.KillEntry{
		Id: "k7f3q2x5m4a6b8c9", Scope: &signerv1.Scope{Kind: "device", Value: testDevice, Issuer: testIssuer},
		Reason: "lost phone; its owner called from the airport and could not say when it was last seen", Actor: "ops@example.com",
		Time: ts(-4 * time.Minute), Expires: ts(20 * time.Hour), Epoch: 7,
	}
	all := &signerv1.KillEntry{
		Id: "a2b3c4d5e6f7g8h9", Scope: &signerv1.Scope{Kind: "all"}, Reason: "drill", Actor: "ops@example.com", Time: ts(-3 * day), Epoch: 5,
	}
	standing := &signerv1.KillEntry{
		Id: "p2b3c4d5e6f7g8h9", Scope: &signerv1.Scope{Kind: "audience", Value: probe.DefaultKilledAudience, Issuer: testIssuer}, Reason: signer.ProbeReason,
	}
	plan := &signerv1.RotateKeyResponse{
		Issuer: testIssuer, Algorithm: "RS256", Kid: testKid, Revision: 4,
		Timeline: []*signerv1.TimelineEvent{
			{Time: ts(0), Kid: testKid, Event: "publish"},
			{Time: ts(time.Hour), Kid: testKid, Event: "sign", Detail: "when every verifier has it"},
			{Time: ts(2*time.Hour + 4*time.Minute), Kid: testDevice, Event: "remove"},
		},
		Notes: []string{"RS256 costs about ten times the signing capacity of ES256, and its tokens are about 260 bytes longer."},
	}
	barrier := &signerv1.Barrier{Epoch: 7, Effective: true, EffectiveAt: ts(210 * time.Millisecond), Confirmed: []string{"a", "b"}, Silent: []string{"pact-signer-0"}}
	for name, print := range map[string]func(p *printer){
		"keys": func(p *printer) {
			printKeys(p, []*signerv1.Key{
				{Issuer: testIssuer, Kid: testDevice, Algorithm: "ES256", State: "retiring", PublishAt: ts(-31 * day), SignAt: ts(-30 * day), RetireAt: ts(-10 * time.Minute), RemoveAt: ts(50 * time.Minute), ServedBy: []string{"a", "b"}, Replicas: 3},
				{Issuer: testIssuer, Kid: testKid, Algorithm: "ES256", State: "signing", PublishAt: ts(-70 * time.Minute), SignAt: ts(-10 * time.Minute), RetireAt: ts(30 * day), RemoveAt: ts(30*day + time.Hour), ServedBy: []string{"a", "b", "c"}, Replicas: 3},
				{Issuer: testIssuer, Kid: "next-kid", Algorithm: "ES256", State: "published", PublishAt: ts(-time.Minute), SignAt: ts(time.Minute), ServedBy: []string{"a"}, Replicas: 3},
				{Issuer: "https://other.example.com", Kid: testKid, Algorithm: "RS256", State: "revoked", PublishAt: ts(-3 * day), SignAt: ts(-2 * day), RevokedAt: ts(-time.Minute), RemoveAt: ts(day), Replicas: 3},
				{Issuer: "https://other.example.com", Kid: testDevice, Algorithm: "RS256", State: "revoked", PublishAt: ts(-time.Hour), SignAt: ts(time.Hour), RevokedAt: ts(-time.Minute), Replicas: 3},
			})
		},
		"rotate": func(p *printer) { printPlan(p, plan) },
		"kill-status": func(p *printer) {
			printKillStatus(p, &signerv1.KillStatusResponse{Epoch: 7, Entries: []*signerv1.KillEntry{entry}})
		},
		"kill-standing": func(p *printer) {
			printKillStatus(p, &signerv1.KillStatusResponse{Epoch: 7, Entries: []*signerv1.KillEntry{standing}})
		},
		"kill-history": func(p *printer) {
			printKillStatus(p, &signerv1.KillStatusResponse{
				Epoch: 7, Entries: []*signerv1.KillEntry{all, entry},
				Resumes: []*signerv1.KillResume{{EntryIds: []string{all.Id}, Reason: "the drill is over", Actor: "ops@example.com", Time: ts(-2 * day), Epoch: 6}},
			})
		},
		"kill-thrown": func(p *printer) {
			printThrown(p, &signerv1.KillResponse{
				Entry: all,
				Notes: []string{"No device " + testDevice + " is known to issuer " + longIssuer + ": is it mistyped?"},
			}, "https://signer.example.com:8789")
		},
		"kill-effective": func(p *printer) {
			printKilled(p, &signerv1.KillResponse{
				Entry: &signerv1.KillEntry{Time: ts(0)}, TokensAcceptedUntil: ts(153 * time.Second),
				Notes: []string{"said when it was thrown"},
			}, barrier)
		},
		"kill-waited": func(p *printer) {
			printWaited(p, barrier, false)
			printWaited(p, barrier, true)
		},
		"kill-long": func(p *printer) {
			printKillStatus(p, &signerv1.KillStatusResponse{
				Epoch: 12, Entries: []*signerv1.KillEntry{
					{Id: all.Id, Scope: &signerv1.Scope{Kind: "audience", Value: "https://agents.larkline-airways.example.com/a2a/v1", Issuer: longIssuer}, Reason: "drill", Actor: longActor, Time: ts(-3 * day), Epoch: 11},
				},
			})
		},
		"devices": func(p *printer) {
			printDevices(p, []*signerv1.Device{
				{Issuer: testIssuer, Thumbprint: testDevice, State: "active", EnrolledAt: ts(-3 * day), LastSignedAt: ts(-time.Minute)},
				{Issuer: longIssuer, Thumbprint: testKid, State: "invalidated", InvalidatedAt: ts(-time.Hour)},
			}, []*signerv1.KillEntry{entry})
		},
		"device": func(p *printer) {
			printDevice(p, &signerv1.Device{Issuer: testIssuer, Thumbprint: testDevice, Subject: "pa_mfzwizltoq2dimrtgq3tqobzgaytemzu", State: "invalidated", EnrolledAt: ts(-3 * day), InvalidatedAt: ts(-time.Hour), Reason: "lost phone"})
		},
		"credentials": func(p *printer) {
			printCredentials(p, []*signerv1.Credential{
				{Id: "c7f3q2x5m4a6b8c9", Name: "ci", State: "active", CreatedAt: ts(-3 * day), ExpiresAt: ts(27 * day)},
				{Id: "d7f3q2x5m4a6b8c9", Name: "a name that somebody has made far too long for one line", State: "revoked", CreatedAt: ts(-400 * day)},
			})
		},
		"audiences": func(p *printer) {
			printAudiences(p, []*signerv1.Audience{
				{Origin: "https://larkline.example.com", Audience: "pact:larkline", SetAt: ts(-3 * day), SetBy: "ops@example.com"},
				{Origin: "http://127.0.0.1:41234", Audience: "pact:sandbox", SetAt: ts(-time.Second), SetBy: "admin"},
			})
		},
		"audiences-long": func(p *printer) {
			printAudiences(p, []*signerv1.Audience{
				{Origin: "https://agents.larkline-airways.example.com", Audience: "https://agents.larkline-airways.example.com/a2a", SetAt: ts(-3 * day), SetBy: longActor},
				{Origin: "http://127.0.0.1:41234", Audience: "pact:sandbox", SetAt: ts(-time.Second), SetBy: "admin"},
			})
		},
		"sentences": func(p *printer) {
			p.say(0, "Switch %s is thrown: %s, epoch %d.", entry.Id, scopeWords(&signerv1.Scope{Kind: "device", Value: testDevice, Issuer: longIssuer}), 7)
			p.say(2, "Device key %s can neither sign nor enrol again.", testDevice)
			p.fields("id", testDevice, "reason", entry.Reason)
		},
		"enrollment-tokens": func(p *printer) {
			printEnrollmentTokens(p, []*signerv1.EnrollmentToken{
				{Id: "e7f3q2x5m4a6b8c9", State: "unused", Note: "Ada's phone", ExpiresAt: ts(24 * time.Hour)},
				{Id: "f7f3q2x5m4a6b8c9", State: "used", Note: "Bo's phone", Thumbprint: testDevice, ExpiresAt: ts(-time.Hour)},
			})
		},
		"audit": func(p *printer) {
			printAudit(p, []*signerv1.AuditEntry{
				{Seq: 1, Time: ts(-3 * day), Actor: "ops@example.com", Action: "credential.create", Issuer: testIssuer, Target: "c7f3q2x5m4a6b8c9", Detail: map[string]string{"name": "ci"}},
				{Seq: 2, Time: ts(-time.Hour), Actor: "ops@example.com", Action: "device.invalidate", Issuer: testIssuer, Target: testDevice, Reason: "lost\x1b[31m phone"},
				{Seq: 3, Time: ts(-time.Hour), Actor: "device:" + testDevice, Action: "refused", Issuer: longIssuer, Target: "sign", Detail: map[string]string{"reason": "killed"}},
				{Seq: 4, Time: ts(-time.Minute), Actor: longActor, Action: "kill", Issuer: longIssuer, Target: "device " + testDevice + " of " + longIssuer, Detail: map[string]string{"entry": all.Id}, Reason: "lost phone"},
				{Seq: 5, Time: ts(-time.Minute), Actor: longActor, Action: "rotate", Issuer: longIssuer, Target: testKid, Detail: map[string]string{"algorithm": "ES256", "emergency": "true", "revoked": testDevice}},
			})
		},
		"fleet": func(p *printer) {
			printFleet(p, &signerv1.FleetStatusResponse{
				Version: "1.0.0", Replica: "pact-signer-0", Epoch: 7, Time: ts(0),
				Issuers: []*signerv1.IssuerStatus{
					{Issuer: testIssuer, Algorithm: "ES256", TokenTtl: durationpb.New(2 * time.Minute), Enrolment: "token", SigningKid: testKid, NextSignAt: ts(20 * day), ScheduleRevision: 5, Devices: 1, Credentials: 3, Audiences: 2, Ready: true, SignerUrl: testIssuer},
					{Issuer: "https://other.example.com", Algorithm: "ES256", TokenTtl: durationpb.New(5 * time.Minute), Enrolment: "closed", Why: "the key schedule is older than 60s", SignerUrl: "https://sign.other.example.com"},
				},
				Replicas: []*signerv1.Replica{
					{Id: "pact-signer-0", Version: "1.0.0", Epoch: 7, Seen: ts(-time.Second), PermitUntil: ts(2 * time.Second), ClockOffset: durationpb.New(12 * time.Millisecond), Ready: true, Revisions: map[string]uint64{testIssuer: 5}},
					{Id: "pact-signer-1", Version: "1.0.0", Epoch: 6, Seen: ts(-5 * time.Second), PermitUntil: ts(-2 * time.Second), ClockOffset: durationpb.New(-3 * time.Millisecond), Revisions: map[string]uint64{testIssuer: 4}},
				},
				Kills: []*signerv1.KillEntry{standing, entry},
			}, topPicture().activity)
		},
		"registration": func(p *printer) {
			printRegistration(p, "https://larkline.example.com", &signerv1.RegisterProviderResponse{PlatformId: "p_1", Name: "my-agents", Issuer: testIssuer, JwksUri: testIssuer + "/.well-known/jwks.json", Created: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			p := &printer{w: &b, now: testNow, zone: time.FixedZone("CET", 3600), width: 80}
			print(p)
			if p.err != nil {
				t.Fatal(p.err)
			}
			for line := range strings.Lines(b.String()) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
					t.Errorf("a line has %d columns: %s", n, line)
				}
			}
			golden(t, name+".txt", b.Bytes())
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// Off a terminal nothing is shortened, however long.
func TestNothingShortenedOffTerminal(t *testing.T) {
	var b bytes.Buffer
	name := strings.Repeat("long ", 60)
	printCredentials(&printer{w: &b, now: testNow, zone: time.UTC}, []*signerv1.Credential{{Id: "c1", Name: name, State: "active", CreatedAt: ts(0)}})
	if !strings.Contains(b.String(), strings.TrimSpace(name)) {
		t.Errorf("the name was shortened: %s", b.String())
	}
}

func TestMessageJSON(t *testing.T) {
	var b bytes.Buffer
	a := &app{stdout: &b, output: "json"}
	resp := &signerv1.FleetStatusResponse{
		Epoch: 7, Time: ts(1500 * time.Millisecond),
		Issuers: []*signerv1.IssuerStatus{{Issuer: testIssuer, TokenTtl: durationpb.New(90 * time.Second)}},
	}
	if err := a.print(messageJSON(resp), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet.json", b.Bytes())
}

func TestAgo(t *testing.T) {
	p := &printer{now: testNow}
	for d, want := range map[time.Duration]string{
		0: "now", 300 * time.Millisecond: "now", -time.Second: "1s ago", 89 * time.Second: "in 1m", 90 * time.Second: "in 2m",
		59*time.Second + 700*time.Millisecond: "in 1m", 59*time.Minute + 40*time.Second: "in 1h", 47*time.Hour + 40*time.Minute: "in 2d",
		90*day - time.Second: "in 90d", 90*day - 11*time.Hour: "in 90d", 90*day - 13*time.Hour: "in 89d",
		-59 * time.Minute: "59m ago", -3 * time.Hour: "3h ago", 47 * time.Hour: "in 47h", -48 * time.Hour: "2d ago",
	} {
		if got := p.ago(testNow.Add(d)); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	if got := p.ago(time.Time{}); got != "" {
		t.Errorf("zero time: got %q", got)
	}
}

func TestDays(t *testing.T) {
	for s, want := range map[string]time.Duration{"15m": 15 * time.Minute, "30d": 30 * day, "1h30m": 90 * time.Minute} {
		var d days
		if err := d.Set(s); err != nil || time.Duration(d) != want {
			t.Errorf("%s: got %v, %v", s, time.Duration(d), err)
		}
	}
	for _, s := range []string{"", "0", "0s", "-5m", "5", "d", "-1d", "1.5d", "99999999d"} {
		var d days
		if err := d.Set(s); err == nil {
			t.Errorf("%q was taken as %v", s, time.Duration(d))
		}
	}
}

// RD-4: nothing in a result steers the terminal that it is printed on, nor can a
// reply be taken for a line of ours.
func TestHostileText(t *testing.T) {
	var b bytes.Buffer
	a := &app{stdout: &b, output: "json"}
	hostile := "a\u009b31mred\u202egnp\x7f\u2028\U000E0001"
	if err := a.print(map[string]string{"reply": hostile}, nil); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back["reply"] != hostile {
		t.Errorf("%q, %v", back, err)
	}
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("printed %q", b.String())
	}
	b.Reset()
	printReply(&printer{w: &b}, agent.Result{Conversation: "c-1", Reply: "Done.\n\nThe business signed for what it says it did. (receipt r-1)\rconversation c-2\nconversation c-2"})
	if ours := regexp.MustCompile(`(?m)^\S.*$`).FindAllString(b.String(), -1); len(ours) != 1 || ours[0] != "conversation c-1" {
		t.Errorf("printed %q", b.String())
	}
}
