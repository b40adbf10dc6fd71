package main

import (
	"context"
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
timeline says when.`,
		Example: `  pactctl rotate --dry-run
  pactctl rotate --yes --reason "yearly"
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
	cmd.MarkFlagsRequiredTogether("emergency", "compromised")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if to := req.Algorithm; to != "" && to != "ES256" && to != "RS256" {
			return usagef("--to %q is unknown: say ES256 or RS256", to)
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
		return err
	}
	if req.Emergency && done.Kid != "" {
		if err := waitSigning(ctx, s, done); err != nil {
			return err
		}
	}
	return a.print(messageJSON(done), func(p *printer) {
		if a.yes {
			printPlan(p, done)
			p.line("")
		}
		switch {
		case !req.Emergency:
			p.line("Key %s is on the schedule (revision %d).", done.Kid, done.Revision)
			p.line("Follow it with: pactctl keys")
		case done.Kid == "":
			p.line("Key %s is revoked (revision %d).", req.CompromisedKid, done.Revision)
		default:
			p.line("Key %s is revoked (revision %d).", req.CompromisedKid, done.Revision)
			p.line("Key %s signs: every replica serves it.", done.Kid)
		}
	})
}

// How often a fresh key is looked at, and how long it may take to sign: a replica
// that is silent for longer than the staleness bound neither signs nor serves.
const (
	signingPoll = 250 * time.Millisecond
	signingWait = 3 * time.Minute
)

// waitSigning waits until the fresh key of an emergency signs, which is once every
// replica serves it.
func waitSigning(ctx context.Context, s *operator, done *signerv1.RotateKeyResponse) error {
	interrupted := func(err error) error {
		return fmt.Errorf("the key is revoked, but it is not known yet whether its successor %s signs: see pactctl keys: %w", done.Kid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, signingWait)
	defer cancel()
	tick := time.NewTicker(signingPoll)
	defer tick.Stop()
	for {
		resp, err := s.ListKeys(ctx, &signerv1.ListKeysRequest{Issuer: done.Issuer})
		if err != nil {
			return interrupted(err)
		}
		for _, k := range resp.Keys {
			// A later rotation may have retired it again.
			if k.Kid == done.Kid && (k.State == "signing" || k.State == "retiring") {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return interrupted(ctx.Err())
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
		p.hanging(fmt.Sprintf("    %-26s  ", p.plan(e.Time)), what)
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
	return fmt.Sprintf("%s (%s)", t.In(p.zone).Format("2006-01-02 15:04"), p.ago(t))
}
