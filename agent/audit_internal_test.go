package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The numbers of SG-7, SG-10, DI-3, MD-7, DA-3..DA-6, GR-2, GR-5, CV-2, CV-9, CV-10
// and TR-7.
func TestDurations(t *testing.T) {
	p, s := Defaults(), time.Second
	for name, c := range map[string][2]time.Duration{
		"TokenReuse": {p.TokenReuse, 240 * s}, "TokenReserve": {p.TokenReserve, 45 * s}, "StatusTTL": {p.StatusTTL, 60 * s},
		"CardTTL": {p.CardTTL, 300 * s}, "CardTTLMin": {p.CardTTLMin, 60 * s}, "CardTTLMax": {p.CardTTLMax, 3600 * s},
		"KeysTTL": {p.KeysTTL, 600 * s}, "KeysRefetch": {p.KeysRefetch, 30 * s},
		"ConsentMax": {p.ConsentMax, 1800 * s}, "PollMin": {p.PollMin, 2 * s}, "PollDefault": {p.PollDefault, 5 * s},
		"PollMax": {p.PollMax, 60 * s}, "PollSlowDown": {p.PollSlowDown, 5 * s}, "PollRetryAfter": {p.PollRetryAfter, 10 * s}, "PollLease": {p.PollLease, 45 * s},
		"GrantLife": {p.GrantLife, 720 * time.Hour}, "RefreshAt": {p.RefreshAt, 60 * s},
		"TurnLease": {p.TurnLease, 180 * s}, "RateWait": {p.RateWait, 5 * s}, "RateWaitMax": {p.RateWaitMax, 120 * s}, "SettleAfter": {p.SettleAfter, 24 * time.Hour},
		"assertionLife": {assertionLife, 60 * s}, "maxTokenLife": {maxTokenLife, 300 * s}, "maxTokenSkew": {maxTokenSkew, 30 * s}, "receiptSlack": {receiptSlack, 300 * s},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %v, want %v", name, c[0], c[1])
		}
	}
	if want := []time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 30 * s}; !slices.Equal(p.NoReplyWaits, want) {
		t.Errorf("NoReplyWaits %v", p.NoReplyWaits)
	}
}

// The counts of PR-2, DI-1, AD-1, AD-4, DA-3, DA-6, CV-6, CV-8, CV-10, CV-13, EV-9,
// SG-3, SG-6 and RD-3.
func TestCounts(t *testing.T) {
	for name, c := range map[string][2]int{
		"maxProviders": {maxProviders, 100}, "maxAudience": {maxAudience, 512}, "maxLabel": {maxLabel, 120}, "maxURLInput": {maxURLInput, 2048},
		"maxMessage": {maxMessage, 4000}, "maxRequired": {maxRequired, 20}, "maxPurpose": {maxPurpose, 500}, "maxPollFailures": {maxPollFailures, 5},
		"maxReply": {maxReply, 20000}, "maxIntroductions": {maxIntroductions, 3}, "maxRateRetries": {maxRateRetries, 3}, "maxStepUps": {maxStepUps, 2},
		"maxReceipts": {maxReceipts, 2000}, "minCredential": {minCredential, 16}, "maxCredential": {maxCredential, 4096}, "maxSubject": {maxSubject, 256},
		"maxActionTool": {maxActionTool, 120}, "maxArgsHash": {maxArgsHash, 200}, "maxDepth": {maxDepth, 12},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %d, want %d", name, c[0], c[1])
		}
	}
}

// CV-1: the states, by name.
func TestStates(t *testing.T) {
	messages := []string{messagePrepared, messageSending, messageReplied, messageAuthRequired, messageUnknown, messageFailed, messageCancelled, messageSuperseded}
	if got := strings.Join(messages, " "); got != "prepared sending replied auth_required outcome_unknown failed cancelled superseded" {
		t.Errorf("messages: %s", got)
	}
	conversations := []string{
		conversationDiscovered, conversationReady, conversationAwaitingLocal, conversationAwaitingBusiness, conversationSending, conversationReplied,
		conversationVerified, conversationInvalid, conversationDenied, conversationExpired, conversationCancelled, conversationUnsupported, conversationUnknown, conversationClosed,
	}
	if got := strings.Join(conversations, " "); got != "discovered ready awaiting_local_authority awaiting_business_consent sending replied "+
		"evidence_verified evidence_invalid denied expired cancelled unsupported outcome_unknown closed" {
		t.Errorf("conversations: %s", got)
	}
	for _, o := range []struct {
		state OutcomeState
		want  string
	}{{OutcomeUnknown, messageUnknown}, {OutcomeCancelled, messageCancelled}, {OutcomeNotExecuted, messageFailed}, {OutcomeNotSent, messageFailed}, {OutcomeRateLimited, messageFailed}} {
		if got := stateOf(Outcome{State: o.state}); got != o.want {
			t.Errorf("%s leaves a message %s, want %s", o.state, got, o.want)
		}
	}
}

// GR-2: the states of a grant, and that the last of its 30 days counts.
func TestGrantStates(t *testing.T) {
	if got := fmt.Sprint(grantActive, grantExpired, grantInvalid, grantDisconnected, grantSuperseded); got != "activeexpiredinvaliddisconnectedsuperseded" {
		t.Error(got)
	}
	at := time.Unix(1800000000, 0)
	for _, c := range []struct {
		state string
		now   time.Time
		want  string
	}{
		{grantActive, at.Add(-time.Nanosecond), grantActive}, {grantActive, at, grantExpired},
		{grantInvalid, at, grantInvalid}, {grantSuperseded, at.Add(time.Hour), grantSuperseded},
	} {
		g := grant{Head: Head{State: c.state}, Expires: at}
		if got := g.stateAt(c.now); got != c.want {
			t.Errorf("%s at %v: %s, want %s", c.state, c.now, got, c.want)
		}
	}
}

// DA-14: two links are of one site by their last two labels, or three under a
// country's second level.
func TestSameSite(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"https://login.air.example/x", "https://provider.air.example", true},
		{"https://air.example", "https://a.b.c.air.example:8443/y", true},
		{"https://AIR.example.", "https://login.air.example", true},
		{"https://air.example", "https://sea.example", false},
		{"https://air.example", "https://air.example.net", false},
		{"https://a.co.uk", "https://b.co.uk", false},
		{"https://login.a.co.uk", "https://www.a.co.uk", true},
		{"https://a.com.au", "https://b.com.au", false}, {"https://a.net.nz", "https://b.net.nz", false}, {"https://a.org.uk", "https://b.org.uk", false},
		{"https://a.gov.uk", "https://b.gov.uk", false}, {"https://a.ac.jp", "https://b.ac.jp", false}, {"https://a.edu.au", "https://b.edu.au", false},
		{"https://a.ne.jp", "https://b.ne.jp", false}, {"https://a.or.jp", "https://b.or.jp", false},
		{"https://a.xx.uk", "https://b.xx.uk", true},     // not one of those
		{"https://a.co.info", "https://b.co.info", true}, // not under a country
		{"https://co.uk", "https://co.uk", true},
		{"https://1.2.3.4", "https://9.9.3.4", false}, {"https://1.2.3.4:1", "https://1.2.3.4:2", true},
		{"https://[2606:4700::1]", "https://[2606:4700::2]", false},
		{"http://localhost:1", "http://localhost:2", true},
		{"", "", false}, {"x", "x", false},
	} {
		if sameSite(c.a, c.b) != c.same || sameSite(c.b, c.a) != c.same {
			t.Errorf("%s and %s: want same %v", c.a, c.b, c.same)
		}
	}
}

// AP-3, CV-2: right before the wire the bytes must be those that were written down,
// and the message the one that was approved; else nothing is written and nothing sent.
func TestLastLookBeforeSending(t *testing.T) {
	body, err := BuildMessage("m-1", "ctx-1", "Cancel A")
	if err != nil {
		t.Fatal(err)
	}
	approved, err := approvalDigest("m-1", "Cancel A")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(op *operation, m *message){
		"other bytes":           func(_ *operation, m *message) { m.Body += " " },
		"another text":          func(_ *operation, m *message) { m.Text = "Cancel B" },
		"another messageId":     func(_ *operation, m *message) { m.WireID = "m-2" },
		"approved another":      func(op *operation, _ *message) { op.approved.Request.Digest = digest([]byte("x")) },
		"recorded as another's": func(_ *operation, m *message) { m.Approved = "" },
	} {
		op := &operation{approved: &approval{Request: ApprovalRequest{Digest: approved}}}
		m := &message{WireID: "m-1", Text: "Cancel A", Body: string(body), BodyDigest: digest(body), Approved: approved, Effect: EffectChange}
		change(op, m)
		// An Agent without a store: one that went on would panic.
		var r *Refusal
		if err := new(Agent).markSending(op, m, false); !errors.As(err, &r) || m.Attempts != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
