package signer

import (
	"strings"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// ProbeReason is the reason of the kill that pactctl probe setup throws, for good, on
// an audience of nobody's: by it a probe proves that what is killed is refused.
const ProbeReason = "pactctl probe: proves that a killed audience is refused"

// OfProbe says whether an entry is that standing kill. It is listed, but apart: it
// stops nobody, and is in force when all is well. Anybody can write its reason on the
// kill of a real audience: so the audience must begin as the probe's own do, and that of
// a setup under another name is told as any kill is.
func OfProbe(e *signerv1.KillEntry) bool {
	return e.GetScope().GetKind() == "audience" && strings.HasPrefix(e.GetScope().GetValue(), "urn:pact:probe") && e.GetExpires() == nil && e.GetReason() == ProbeReason
}
