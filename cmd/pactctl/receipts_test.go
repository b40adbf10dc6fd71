package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// EV-5: the verdict on record and the new one stand side by side.
func TestReceiptChecksAreToldApart(t *testing.T) {
	var out bytes.Buffer
	printChecks(&printer{w: &out}, []agent.ReceiptView{{
		ID: "r-1", Verdict: agent.VerdictInvalid, Issues: []string{"signature"}, BusinessName: "Air",
		Recheck: &agent.EvidenceView{Verdict: agent.VerdictVerified},
	}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Join(strings.Fields(lines[0]), " ") != "ID VERDICT NOW BUSINESS ISSUES" ||
		strings.Join(strings.Fields(lines[1]), " ") != "r-1 invalid verified Air signature" {
		t.Errorf("got\n%s", out.String())
	}
}
