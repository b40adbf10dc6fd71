package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newRotateCmd puts a new signing key on the schedule.
func newRotateCmd(a *app) *cobra.Command {
	var req signerv1.RotateKeyRequest
	cmd := &cobra.Command{
		Use:     "rotate",
		GroupID: groupOperator,
		Short:   "Put a new signing key on the schedule",
		Long: `Put a new signing key on the schedule: it is published now and signs once every
verifier's cached key set has it. The timeline is shown before anything happens.

--emergency revokes a compromised key and publishes a fresh one in one step.
Tokens of the revoked key are accepted until verifiers' caches run out; the
timeline says when. The command ends when a key signs: at once if the revoked
key was not the one that signed.

It asks first. In a script, say --yes: without a terminal and without --yes it
does nothing and ends with exit code 3.`,
		Example: `  pactctl rotate --dry-run
  pactctl rotate --reason "yearly" --yes   # in a script
  pactctl rotate --to RS256
  pactctl rotate --emergency --compromised KID --reason "key leaked"`,
		Args: cobra.NoArgs,
	}
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Algorithm, "to", "", "`ALGORITHM` of the new key, ES256 or RS256; by default it stays")
	f.BoolVar(&req.Emergency, "emergency", false, "revoke the --compromised key and publish a fresh one at once")
	f.StringVar(&req.CompromisedKid, "compromised", "", "`KID` of the key to revoke")
	f.StringVar(&req.Reason, "reason", "", "why, for the audit log")
	f.BoolVar(&req.DryRun, "dry-run", false, "only show the timeline")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if to := req.Algorithm; to != "" && to != "ES256" && to != "RS256" {
			return usagef("--to %q is unknown: say ES256 or RS256", to)
		}
		switch {
		case req.Emergency && req.CompromisedKid == "":
			return usagef("--emergency revokes a key: name it with --compromised KID, as pactctl keys shows it")
		case !req.Emergency && req.CompromisedKid != "":
			return usagef("--compromised goes with --emergency, which revokes that key")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			return rotate(ctx, a, s, &req)
		})
	}
	return cmd
}

// rotate shows the plan, asks, and does it.
func rotate(ctx context.Context, a *app, s *operator, req *signerv1.RotateKeyRequest) error {
	req.Issuer = s.issuer
	dry := req.DryRun
	req.DryRun = true
	plan, err := s.RotateKey(ctx, req)
	if err != nil {
		return err
	}
	if dry {
		return a.print(messageJSON(plan), func(p *printer) { printPlan(p, plan) })
	}
	if !a.yes {
		p := a.printer(a.stderr)
		printPlan(p, plan)
		p.line("")
		question := fmt.Sprintf("Rotate the key of %s?", plan.Issuer)
		if req.Emergency {
			question = fmt.Sprintf("Revoke key %s of %s for good?", req.CompromisedKid, plan.Issuer)
		}
		if err := a.confirm(ctx, question); err != nil {
			return err
		}
	}
	req.DryRun, req.Issuer = false, plan.Issuer
	done, err := s.RotateKey(ctx, req)
	if err != nil {
		return unanswered(err, "the rotation may be done all the same: see pactctl keys")
	}
	err = a.print(messageJSON(done), func(p *printer) {
		if a.yes {
			printPlan(p, done)
			p.line("")
		}
		if req.Emergency {
			p.line("Key %s is revoked (revision %d).", req.CompromisedKid, done.Revision)
			return
		}
		p.say(0, "Key %s is on the schedule (revision %d).", done.Kid, done.Revision)
		p.line("Follow it with: pactctl keys")
	})
	if err != nil || !req.Emergency {
		return err
	}
	signs, err := waitSigning(ctx, a, s, req, done)
	if err != nil || a.output == "json" {
		return err
	}
	p := a.printer(a.stdout)
	switch {
	case signs == done.Kid:
		p.say(0, "Key %s signs: every replica serves it.", signs)
	case done.Kid == "":
		p.say(0, "Key %s signs.", signs)
	default:
		p.say(0, "Key %s signs; the fresh key %s takes over later.", signs, done.Kid)
	}
	return p.err
}

// How often a fresh key is looked at, and how long it may take to sign: a replica
// that is silent for longer than the staleness bound neither signs nor serves.
const (
	signingPoll = 250 * time.Millisecond
	signingWait = 3 * time.Minute
)

// waitSigning waits until a key signs that is not the revoked one, and returns its
// kid. If the revoked key was not the one that signs, that is so at once; else it is
// when every replica serves the fresh key.
func waitSigning(ctx context.Context, a *app, s *operator, req *signerv1.RotateKeyRequest, done *signerv1.RotateKeyResponse) (string, error) {
	// The text of err is kept and its kind is not: "interrupted" alone would not say
	// that the key is revoked.
	unknown := func(err error) error {
		return fmt.Errorf("key %s is revoked (revision %d), but it is not known whether a key signs; see pactctl keys: %v", req.CompromisedKid, done.Revision, err)
	}
	tick := time.NewTicker(signingPoll)
	defer tick.Stop()
	end := time.NewTimer(signingWait)
	defer end.Stop()
	for first := true; ; first = false {
		resp, err := s.ListKeys(ctx, &signerv1.ListKeysRequest{Issuer: done.Issuer})
		if err != nil {
			return "", unknown(err)
		}
		for _, k := range resp.Keys {
			// A replica that has not heard of the revocation yet says that the key signs.
			if k.State == "signing" && k.Kid != req.CompromisedKid {
				return k.Kid, nil
			}
		}
		if first {
			a.note("Waiting until every replica serves the fresh key: no key signs before that.")
		}
		select {
		case <-ctx.Done():
			return "", unknown(errors.New("interrupted"))
		case <-end.C:
			return "", unknown(fmt.Errorf("none did within %v", signingWait))
		case <-tick.C:
		}
	}
}

// printPlan writes a rotation's timeline and notes.
func printPlan(p *printer, plan *signerv1.RotateKeyResponse) {
	p.line("%s, new key: %s", plan.Issuer, plan.Algorithm)
	p.line("")
	for n, e := range plan.Timeline {
		if n == 0 || e.Kid != plan.Timeline[n-1].Kid {
			p.line("  %s", or(e.Kid, "new key"))
		}
		what := e.Event
		if e.Detail != "" {
			what += ": " + e.Detail
		}
		p.hanging(fmt.Sprintf("    %-30s  ", p.plan(e.Time)), what)
	}
	for _, n := range plan.Notes {
		p.line("")
		p.paragraph(n, 2)
	}
}

// plan is a time of a schedule, to the minute, with how far away it is. "-" if unset.
func (p *printer) plan(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return "-"
	}
	t := ts.AsTime()
	return fmt.Sprintf("%s (%s)", p.clock(t, toMinute), p.ago(t))
}
