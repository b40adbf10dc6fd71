package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/pactsigner/pactsigner/agent"
)

// systemPolicies is where the administrator of a machine puts a policy.
const systemPolicies = "/etc/pactsigner/policies.json"

// policyFiles is the administrator's policy for a profile: of the machine, of the
// profile, and of the file that PACT_POLICIES names, which must exist then. Each can
// only narrow (PO-6).
func policyFiles(profile string) (func() (agent.Policy, error), error) {
	required := os.Getenv("PACT_POLICIES")
	if required != "" {
		var err error
		if required, err = filepath.Abs(required); err != nil {
			return nil, fmt.Errorf("PACT_POLICIES: %w", err)
		}
	}
	return policiesOf(required, systemPolicies, filepath.Join(profile, "policies.json")), nil
}

// countsPolicies refuses a running agent that does not count the file which
// PACT_POLICIES names for this command: what it forbids would be done.
func countsPolicies(ctx context.Context, ag personal, c agent.Caller) error {
	required := os.Getenv("PACT_POLICIES")
	if required == "" {
		return nil
	}
	path, err := filepath.Abs(required)
	if err != nil {
		return fmt.Errorf("PACT_POLICIES: %w", err)
	}
	v, err := ag.Policy(ctx, c)
	if err != nil {
		return fmt.Errorf("PACT_POLICIES: whether the running agent counts %s cannot be told: %w", path, err)
	}
	if slices.ContainsFunc(v.Sources, func(s agent.PolicySource) bool { return s.Path == path && (s.Read || s.Problem != "") }) {
		return nil
	}
	return usagef("PACT_POLICIES is set, and the running agent does not read %s: start it with PACT_POLICIES, or unset that here", path)
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
