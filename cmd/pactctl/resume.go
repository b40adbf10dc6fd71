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
and nothing changes.

--all lifts every entry, whatever its scope.`,
		Example: `  pactctl resume --all --reason "incident 12 is over"
  pactctl resume --device THUMBPRINT --reason "phone found"`,
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
	if len(held) == 0 {
		return fmt.Errorf("nothing is stopped for %s: see pactctl kill status", scopeWords(req.Scope))
	}
	p := a.printer(a.stderr)
	for _, e := range held {
		printKillEntry(p, e)
	}
	question := "Lift this entry?"
	if len(held) > 1 {
		question = fmt.Sprintf("Lift these %d entries?", len(held))
	}
	if err := a.confirm(ctx, question); err != nil {
		return err
	}
	resp, err := s.Resume(ctx, req)
	if err != nil {
		if reason(err) == "ENTRIES_NOT_SHOWN" {
			return actf("%w", err)
		}
		return err
	}
	return a.print(messageJSON(resp), func(p *printer) {
		p.line("Lifted %s, epoch %d.", strings.Join(resp.EntryIds, ", "), resp.Epoch)
		if !resp.DurableInCustody {
			p.line("Not yet durable in custody: custody is away.")
		}
	})
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
