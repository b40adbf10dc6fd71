package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newResumeCmd lifts the kill switch.
func newResumeCmd(a *app) *cobra.Command {
	var (
		scope scopeFlags
		req   signerv1.ResumeRequest
	)
	cmd := &cobra.Command{
		Use:     "resume",
		GroupID: groupOperator,
		Short:   "Lift the kill switch",
		Long: `Lift what a kill of the same scope stopped. The entries are shown first, and
only those are lifted: one that somebody adds meanwhile makes the command fail,
and nothing changes. It asks first; in a script, say --yes.

--all lifts every entry, whatever its scope: also that of a stolen device, but
not the standing one of pactctl probe setup, which stops nobody. To lift one
scope give its own flag, as the entry has it; an entry for everything goes only
with all others. What must stay stopped for good is ended otherwise: see pactctl
devices invalidate and pactctl credentials revoke.`,
		Example: `  pactctl kill status                         # the entries and their scopes
  pactctl resume --device THUMBPRINT --reason "phone found"
  pactctl resume --issuer URL --reason "incident 11 is over"
  pactctl resume --all --reason "incident 12 is over"
  pactctl resume --all --reason "incident 12 is over" --yes   # in a script`,
		Args: cobra.NoArgs,
	}
	t := newTarget(cmd)
	scope.add(cmd)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(req.Reason) == "" {
			return usagef("--reason is required: it goes to the audit log")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			var err error
			if req.Scope, err = scope.scope(s.issuer); err != nil {
				return err
			}
			return resume(ctx, a, s, &req)
		})
	}
	return cmd
}

// resume shows the entries, asks, and lifts those.
func resume(ctx context.Context, a *app, s *operator, req *signerv1.ResumeRequest) error {
	now, err := s.KillStatus(ctx, &signerv1.KillStatusRequest{})
	if err != nil {
		return err
	}
	var held []*signerv1.KillEntry
	for _, e := range now.Entries {
		if holds(req.Scope, e.Scope) {
			held = append(held, e)
			req.EntryIds = append(req.EntryIds, e.Id)
		}
	}
	var standing []*signerv1.KillEntry
	if req.Scope.Kind == "all" {
		held, standing = withoutProbe(held)
	}
	if len(held) == 0 {
		return fmt.Errorf("nothing is stopped for %s: see pactctl kill status", scopeWords(req.Scope))
	}
	p := a.printer(a.stderr)
	for _, e := range held {
		printKillEntry(p, e)
	}
	p.line("")
	if err := a.confirm(ctx, resumeQuestion(req.Scope, held, s.server)); err != nil {
		return err
	}
	resp, err := s.Resume(ctx, req)
	if err != nil {
		err = unanswered(err, "the entries may be lifted all the same: see pactctl kill status")
		if reason(err) == "ENTRIES_NOT_SHOWN" {
			return actf("%w", err)
		}
		return err
	}
	// Everything can only be lifted with all entries, the probe's too.
	var again []*signerv1.KillEntry
	for _, e := range standing {
		_, err := s.Kill(ctx, &signerv1.KillRequest{Scope: e.Scope, Reason: e.Reason})
		if reason(err) == "INVALID_REQUEST" { // its issuer is served no more, and nobody probes it
			continue
		}
		if err != nil {
			return fmt.Errorf("all is lifted, but the kill that pactctl probe needs is not thrown again: see pactctl kill status, and say pactctl probe setup: %w", err)
		}
		again = append(again, e)
	}
	return a.print(messageJSON(resp), func(p *printer) {
		p.say(0, "Lifted %s, epoch %d.", strings.Join(resp.EntryIds, ", "), resp.Epoch)
		for _, e := range again {
			p.say(0, "%s is killed again, for pactctl probe.", scopeWords(e.Scope))
		}
	})
}

// resumeQuestion asks about entries, and names those whose own scope is narrower than
// the one that was asked for.
func resumeQuestion(scope *signerv1.Scope, held []*signerv1.KillEntry, server string) string {
	var also []string
	for _, e := range held {
		if e.Scope.GetKind() != scope.Kind {
			also = append(also, fmt.Sprintf("%s %s (%s)", e.Scope.GetKind(), e.Scope.GetValue(), e.Id))
		}
	}
	question := fmt.Sprintf("Lift this entry at %s?", server)
	if len(held) > 1 {
		question = fmt.Sprintf("Lift these %d entries at %s?", len(held), server)
	}
	if len(also) > 0 {
		question = fmt.Sprintf("This also lifts the stop of %s. %s", strings.Join(also, ", "), question)
	}
	return question
}

// holds says whether a resume of scope lifts an entry of that scope. An issuer that
// was left empty is any: the signer refuses that if there are several.
func holds(scope, entry *signerv1.Scope) bool {
	if scope.Kind == "all" {
		return true
	}
	want := proto.CloneOf(scope)
	if want.Issuer == "" {
		want.Issuer = entry.Issuer
	}
	return proto.Equal(want, entry)
}
