package main

import (
	"context"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

// newConversationsCmd shows what was said.
func newConversationsCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("conversations", "Show what was said to businesses, and what came of it")
	cmd.Example = `  pactctl conversations list
  pactctl conversations show c-3f9k2m`
	p := newProfile(a, cmd)
	cmd.AddCommand(newConversationsListCmd(p), newConversationsShowCmd(p))
	return cmd
}

func newConversationsListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List conversations, newest first",
		Example: `  pactctl conversations list
  pactctl conversations list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Conversations(ctx, c)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"conversations": list}, func(pr *printer) { printConversations(pr, list) })
			})
		},
	}
}

func printConversations(p *printer, list []agent.ConversationView) {
	if len(list) == 0 {
		p.line("No conversations.")
		return
	}
	var rows [][]string
	for _, v := range list {
		rows = append(rows, []string{v.ID, v.State, p.ago(v.Updated), businessOf(v.Business, v.BusinessName)})
	}
	p.table([]string{"ID", "STATE", "LAST", "BUSINESS"}, rows)
}

func newConversationsShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a conversation, turn by turn",
		Example: `  pactctl conversations show c-3f9k2m
  pactctl conversations show c-3f9k2m -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.Conversation(ctx, c, args[0])
				if err != nil {
					return notThere(err, "conversation", args[0], "conversations list")
				}
				return p.app.print(v, func(pr *printer) { printConversation(pr, v) })
			})
		},
	}
}

func printConversation(p *printer, v agent.ConversationView) {
	p.fields("conversation", v.ID, "with", businessOf(v.Business, v.BusinessName), "state", v.State, "reason", v.Reason, "last", p.at(v.Updated))
	for _, m := range v.Messages {
		p.line("")
		what := m.Effect.String()
		if m.Introduction {
			what = "introduction"
		}
		p.say(0, "%s, %s, %s, %s", stamp(p, m.Created), m.ID, what, strings.TrimSpace(m.State+" "+m.Reason))
		if who := byAnother(m.Actor); who != "" {
			p.say(0, "asked for by %s", who)
		}
		if m.Approval != "" {
			p.line("approved as %s", m.Approval)
		}
		if who := byAnother(m.ReconciledBy); who != "" {
			p.say(0, "asked about again by %s, %s", who, p.ago(m.Reconciled))
		}
		p.line("you")
		printText(p, m.Text)
		if m.Reply != "" {
			p.line("%s", v.BusinessName)
			printText(p, m.Reply)
		}
		if m.Evidence != nil {
			p.line("receipt %s: %s", m.Evidence.Receipt, m.Evidence.Verdict)
		}
	}
}

// byAnother is who acted, if that was not the owner with pactctl: empty then. What a
// program chose as its name, or its task's, stands in quotes: it is no word of ours.
func byAnother(actor string) string {
	switch actor {
	case "", string(agent.OriginOwnerCLI), "owner":
		return ""
	}
	if who, task, ok := strings.Cut(actor, " task "); ok && ofToken.MatchString(who) {
		return who + " task " + quoted(task)
	} else if ok && who == "owner" {
		return "task " + quoted(task)
	}
	if name, ok := strings.CutPrefix(actor, control.DialogActor); ok {
		return "you in a dialog of " + quoted(name)
	}
	if name, ok := strings.CutPrefix(actor, "assistant "); ok {
		return "assistant " + quoted(name)
	}
	return agent.WrittenOut(actor)
}

// ofToken is an actor with a token, whose names have no blanks.
var ofToken = regexp.MustCompile(`^token [A-Za-z0-9._@-]+$`)

// quoted is somebody's word, which ends where the quotes do.
func quoted(s string) string { return `"` + strings.ReplaceAll(agent.WrittenOut(s), `"`, "'") + `"` }

// printText writes a text two columns in, so that no line of it can be taken for one of
// ours, with nothing in it that steers a terminal (RD-4).
func printText(p *printer, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		p.line("  %s", line)
	}
}
