package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pactsigner/pactsigner/agent"
)

// systemPolicies is where the administrator of a machine puts a policy.
const systemPolicies = "/etc/pactsigner/policies.json"

// policyFiles is the administrator's policy for a profile: of the machine, of the
// profile, and of the file that PACT_POLICIES names, which must exist then. Each can
// only narrow (PO-6).
func policyFiles(profile string) func() (agent.Policy, error) {
	return policiesOf(os.Getenv("PACT_POLICIES"), systemPolicies, filepath.Join(profile, "policies.json"))
}

func policiesOf(required string, optional ...string) func() (agent.Policy, error) {
	if required == "" {
		return agent.PolicyFiles(optional...)
	}
	read := agent.PolicyFiles(append(optional, required)...)
	return func() (agent.Policy, error) {
		p, err := read()
		if last := len(p.Sources) - 1; err == nil && !p.Sources[last].Read {
			err = fmt.Errorf("policy file %s: PACT_POLICIES names it, and it does not exist", required)
			p.Sources[last].Problem = err.Error()
		}
		return p, err
	}
}
