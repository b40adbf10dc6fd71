package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// EV-8: where a receipt is called verified it is said what that does not mean.
func TestVerifiedSaysWhatItMeans(t *testing.T) {
	var out bytes.Buffer
	for verdict, want := range map[agent.Verdict]bool{agent.VerdictVerified: true, agent.VerdictInvalid: false} {
		out.Reset()
		printReceipt(&printer{w: &out}, agent.ReceiptView{ID: "r-1", Verdict: verdict})
		text := out.String()
		if strings.Contains(text, "signed this claim") != want || strings.Contains(text, "not mean that money moved") != want || strings.Contains(text, "names no message") != want {
			t.Errorf("%s:\n%s", verdict, text)
		}
	}
	// After a send: what it says, not what it did.
	if text := evidenceText(agent.EvidenceView{Verdict: agent.VerdictVerified}); !strings.Contains(text, "what it says it did") {
		t.Error(text)
	}
	if text := evidenceText(agent.EvidenceView{Verdict: agent.VerdictNeedsReview, Issues: []string{"x"}}); !strings.HasPrefix(text, "Evidence needs review (x).") {
		t.Error(text)
	}
	out.Reset()
	printReceipt(&printer{w: &out, zone: time.UTC}, agent.ReceiptView{Verdict: agent.VerdictInvalid, ScopesUsed: []string{"x"}, Time: testNow, Actions: []agent.Action{{Tool: "pay"}}})
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, "action (unproven) pay") || !strings.Contains(text, "permissions (unproven) x") || !strings.Contains(text, "time (unproven) ") || strings.Contains(text, "signed") {
		t.Error(text)
	}
	a, stdout, _ := testApp("", false)
	if code := a.run(t.Context(), []string{"receipts", "--help"}); code != 0 || !strings.Contains(strings.Join(strings.Fields(stdout.String()), " "), "It does not mean that money moved") {
		t.Errorf("help, %d:\n%s", code, stdout)
	}
}

// EV-5: the verdict on record and the new one stand side by side.
func TestReceiptChecksAreToldApart(t *testing.T) {
	var out bytes.Buffer
	printChecks(&printer{w: &out}, []agent.ReceiptView{{
		ID: "r-1", Verdict: agent.VerdictInvalid, Issues: []string{"signature"}, Business: "b-1", BusinessName: "Air",
		Recheck: &agent.EvidenceView{Verdict: agent.VerdictVerified},
	}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Join(strings.Fields(lines[0]), " ") != "ID VERDICT NOW BUSINESS ISSUES" ||
		strings.Join(strings.Fields(lines[1]), " ") != "r-1 invalid verified b-1 signature" {
		t.Errorf("got\n%s", out.String())
	}
}
