package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

// newApprovalsCmd shows what waits for the owner's word, and takes it.
func newApprovalsCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("approvals", "Decide on what waits for your word")
	cmd.Long = `Decide on what waits for your word.

What may change something and was asked for where you could not be asked - by an
assistant, off a terminal, through the control plane - waits here: whole, for an
hour. Approving sends exactly what is shown, once.`
	cmd.Example = `  pactctl approvals list
  pactctl approvals approve approval-3f9k2m
  pactctl approvals deny approval-3f9k2m`
	cmd.Aliases = []string{"approval"}
	p := newProfile(a, cmd)
	cmd.AddCommand(newApprovalsListCmd(p), newApprovalsShowCmd(p), newApprovalsApproveCmd(p), newApprovalsDenyCmd(p))
	return cmd
}

func newApprovalsListCmd(p *profile) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what waits for you, newest first",
		Example: `  pactctl approvals list
  pactctl approvals list --all -o json | jq '.approvals[].state'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Approvals(ctx, c, all)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"approvals": list}, func(pr *printer) { printApprovals(pr, list, p.limit != nil) })
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what is decided or over")
	return cmd
}

// printApprovals writes approvals; running: an agent runs, which sends what is approved.
func printApprovals(p *printer, list []agent.ApprovalView, running bool) {
	if len(list) == 0 {
		p.line("Nothing waits for you.")
	}
	for _, v := range list {
		when := "asked " + p.ago(v.Created)
		switch {
		case v.State == agent.ApprovalPending:
			when = "expires " + p.ago(v.Expires)
		case v.State == agent.ApprovalApproved:
			when = "not sent yet, expires " + p.ago(v.Expires)
		case !v.Decided.IsZero():
			when = "decided " + p.ago(v.Decided)
		}
		p.labelled(v.ID+"  ", because(v.State, v.Reason)+", "+when)
		what := v.Effect.String()
		if who := byAnother(v.Actor); who != "" {
			what += ", asked for by " + who
		}
		p.say(4, "%s: %s", businessOf(v.Business, v.BusinessName), what)
		if v.Reason == agent.ReasonApproverRevoked {
			p.say(4, "approved by %s, which was revoked before it was sent", or(byAnother(v.DecidedBy), "you"))
		}
		switch approved := v.State == agent.ApprovalApproved; {
		case approved && v.Authorization != "":
			p.say(4, "waits for %s: pactctl approvals approve %s", v.Authorization, v.ID)
		case approved && running:
			p.say(4, "the running agent sends it when it can")
		case approved:
			p.say(4, "send it with: pactctl approvals approve %s", v.ID)
		}
		p.line("    %s", p.text(agent.WrittenOut(strings.Join(strings.Fields(v.Message), " ")), 4))
	}
}

func newApprovalsShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show the whole of what waits, or what became of it",
		Example: `  pactctl approvals show approval-3f9k2m
  pactctl approvals show approval-3f9k2m -o json | jq -r .digest`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.Approval(ctx, c, args[0])
				if err != nil {
					return noApproval(args[0], err)
				}
				where, err := whereItGoes(ctx, ag, c, v)
				if err != nil {
					return err
				}
				return p.app.print(v, func(pr *printer) {
					printAsked(pr, v)
					where(pr)
					printApproval(pr, requestOf(v), p.app.width)
				})
			})
		},
	}
}

func noApproval(id string, err error) error {
	return notThere(err, "approval", id, "approvals list --all")
}

// printAsked writes what is to be known of an approval beside what is decided on.
func printAsked(p *printer, v agent.ApprovalView) {
	decided := "decided"
	if v.State == agent.ApprovalPending {
		decided = "approved"
	}
	p.fields(
		"approval", v.ID,
		"state", v.State,
		"reason", v.Reason,
		"asked for by", or(byAnother(v.Actor), "you"),
		"conversation", v.Conversation,
		"asked", p.at(v.Created),
		"expires", expires(p, v),
		decided, p.at(v.Decided),
		"by", byAnother(v.DecidedBy),
		"sent as", v.SentMessage,
		"sign-in", v.Authorization,
		"in its place", v.Next,
	)
}

// whereItGoes tells what the same words mean another thing by: what the business said
// last in the conversation that an approval goes on with, and a host that speaks of the
// permissions in its place.
func whereItGoes(ctx context.Context, ag personal, c agent.Caller, v agent.ApprovalView) (func(*printer), error) {
	elsewhere := ""
	known, err := ag.Businesses(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, b := range known {
		if b.ID == v.Business {
			elsewhere = b.CardElsewhere()
		}
	}
	conversation, err := ag.Conversation(ctx, c, v.Conversation)
	lost := errors.Is(err, agent.ErrNotFound)
	if err != nil && !lost {
		return nil, err
	}
	return func(p *printer) {
		if elsewhere != "" {
			p.say(0, "What the business says of itself and its permissions comes from another host: %s", elsewhere)
		}
		switch said, goesOn := agent.LastWords(conversation, nil); {
		case lost || !goesOn:
		case said == "":
			p.say(0, "It goes on with that conversation, in which the business said nothing yet.")
		default:
			p.say(0, "It goes on with that conversation, in which the business said last:")
			for _, line := range agent.WrittenOutLines(said) {
				p.line("  %s", line)
			}
		}
	}, nil
}

// expires is when nobody can decide any more, while that matters.
func expires(p *printer, v agent.ApprovalView) string {
	if v.State != agent.ApprovalPending && v.State != agent.ApprovalApproved {
		return ""
	}
	return p.at(v.Expires)
}

func newApprovalsApproveCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "approve ID",
		Short: "Approve what waits, and send exactly that",
		Long: `Approve what waits, and send exactly that: it is shown whole and asked about;
--yes answers. An operation that still waits for your word goes on by itself;
else it is sent from here, and its answer judged.

If you must sign in first, a terminal shows the link and waits. Elsewhere the
approval stays and the exit code is 3: approve it again on a terminal, where
nothing is asked twice. What differs from what was approved, because the
business asks for more, is asked about anew. Ctrl-C before it is sent takes your
word back: it waits for you again.

Exit codes: 0 answered, or left to who asked for it; 1 failed; 3 you must sign
in or approve more; 130 interrupted.`,
		Example: `  pactctl approvals approve approval-3f9k2m
  pactctl approvals approve approval-3f9k2m --yes -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.goOn = "pactctl approvals approve " + args[0]
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				return p.approve(ctx, ag, c, args[0])
			})
		},
	}
}

func (p *profile) approve(ctx context.Context, ag personal, c agent.Caller, id string) error {
	v, err := ag.Approval(ctx, c, id)
	if err != nil {
		return noApproval(id, err)
	}
	if p.limit != nil && !p.limit.Decides() { // before a question whose answer would not count
		return refused(&agent.Refusal{
			Status: agent.StatusBlocked, Reason: control.ReasonScopeRequired,
			Detail: fmt.Sprintf("to approve needs the scope %s, and the token used here has %s", control.ScopeAdmin, p.limit.Scope()),
		})
	}
	switch v.State {
	case agent.ApprovalPending:
		where, err := whereItGoes(ctx, ag, c, v)
		if err != nil {
			return err
		}
		printAsked(p.app.aside(), v)
		where(p.app.aside())
		p.showApproval(requestOf(v))
		if err := p.app.confirm(ctx, "Send it?"); err != nil {
			return err
		}
	case agent.ApprovalApproved:
		p.app.note("%s is approved already, and goes on.", v.ID)
	}
	c.Confirmed = false // --yes was the answer to that question, and is none to another (AP-1)
	r, err := ag.Decide(ctx, c, agent.Decision{ID: v.ID, Approve: true, Digest: v.Digest})
	if err != nil {
		return noApproval(id, err)
	}
	if ctx.Err() != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer cancel()
		if v, err := ag.Approval(bounded, c, id); err == nil && v.State == agent.ApprovalPending {
			p.stopped = "nothing was sent, and the word is taken back; decide anew with"
		}
	}
	return p.endedWith(r, p.approveError(id, r), func(pr *printer) {
		if r.Status == agent.StatusReplied {
			printReply(pr, r)
			return
		}
		pr.say(0, "%s is approved%s.", id, clause(r.Detail))
	})
}

// approveError is what an approved operation ended with, and what a person can do.
func (p *profile) approveError(id string, r agent.Result) error {
	remedy := ""
	switch {
	case r.Status == agent.StatusNeedsUserAction && r.Authorization != nil:
		r.Detail, remedy = "", ": go on with: pactctl approvals approve "+id
	case r.Status == agent.StatusApprovalRequired && r.Approval != nil && r.Approval.ID != "":
		remedy = ": go on with: pactctl approvals approve " + r.Approval.ID
	}
	return p.resultErrorWith(r, p.app.hints.text(remedy))
}

// clause is a detail behind a sentence's end.
func clause(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + strings.TrimSuffix(detail, ".")
}

// orApprove is how else a result that needs the owner's word gets it.
func orApprove(r agent.Result) string {
	if r.Approval == nil || r.Approval.ID == "" {
		return ""
	}
	return fmt.Sprintf("approve it with pactctl approvals approve %s, or ", r.Approval.ID)
}

func newApprovalsDenyCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "deny ID",
		Short:   "Say no to what waits: it is never sent",
		Example: `  pactctl approvals deny approval-3f9k2m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				r, err := ag.Decide(ctx, c, agent.Decision{ID: args[0]})
				if err != nil {
					return noApproval(args[0], err)
				}
				return p.ended(r, func(pr *printer) { pr.line("%s is denied: nothing is sent.", args[0]) })
			})
		},
	}
}
