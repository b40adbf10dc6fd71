package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newReviewCmd shows what waits for the owner's eyes, and settles it.
func newReviewCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("review", "Look at what holds a business back, and settle it")
	cmd.Long = `Look at what holds a business back, and settle it.

Evidence that is not verified holds back what may change something at its
business; an operation whose outcome is unknown holds back everything there.
Both last until you have looked, whatever else is sent.`
	cmd.Example = `  pactctl review list
  pactctl review show r-3f9k2m
  pactctl review acknowledge r-3f9k2m`
	p := newProfile(a, cmd)
	cmd.AddCommand(newReviewListCmd(p), newReviewShowCmd(p), newReviewAcknowledgeCmd(p))
	return cmd
}

func newReviewListCmd(p *profile) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what waits for you, newest first",
		Example: `  pactctl review list
  pactctl review list --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Reviews(ctx, c, all)
				if err != nil {
					return err
				}
				for i := range list {
					list[i].Next = p.app.hints.text(list[i].Next)
				}
				return p.app.print(map[string]any{"reviews": list}, func(pr *printer) { printReviews(pr, list) })
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what is settled")
	return cmd
}

func printReviews(p *printer, list []agent.ReviewItem) {
	if len(list) == 0 {
		p.line("Nothing waits for you.")
		return
	}
	for _, v := range list {
		state := "waits"
		if !v.Open {
			state = "settled"
		}
		p.labelled(v.ID+"  ", state+": "+reviewWhat(v)+", "+p.ago(v.Since))
		p.say(4, "%s", businessOf(v.Business, v.BusinessName))
	}
}

// reviewWhat is what an item is, in a word or two.
func reviewWhat(v agent.ReviewItem) string {
	if v.Kind == agent.ReviewEvidence {
		return "evidence " + verdictWords(v.Verdict)
	}
	return "outcome unknown"
}

func newReviewShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show what waits, and what you can do",
		Example: `  pactctl review show r-3f9k2m
  pactctl review show m-3f9k2m -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.Review(ctx, c, args[0])
				if err != nil {
					return noReview(args[0], err)
				}
				v.Next = p.app.hints.text(v.Next)
				return p.app.print(v, func(pr *printer) { printReview(pr, v) })
			})
		},
	}
}

func noReview(id string, err error) error {
	if errors.Is(err, agent.ErrNotFound) {
		return fmt.Errorf("there is nothing to review by the id %q: pactctl review list lists what waits", id)
	}
	return err
}

func printReview(p *printer, v agent.ReviewItem) {
	p.fields(
		"review", v.ID,
		"what", reviewWhat(v),
		"holds back", holdsBack(v),
		"reason", v.Reason,
		"issues", strings.Join(v.Issues, ", "),
		"business", businessOf(v.Business, v.BusinessName),
		"conversation", v.Conversation,
		"message", v.Message,
		"effect", v.Effect.String(),
		"since", p.at(v.Since),
		"acknowledged", p.at(v.Acknowledged),
		"by", byAnother(v.By),
	)
	for _, problem := range v.Problems {
		p.say(0, "problem: %s", problem)
	}
	p.line("you")
	printText(p, v.Text)
	if v.Reply != "" {
		p.line("%s", or(v.BusinessName, "the business"))
		printText(p, v.Reply)
	}
	if v.Next != "" {
		p.say(0, "Next: %s.", strings.TrimSuffix(v.Next, "."))
	}
}

func holdsBack(v agent.ReviewItem) string {
	switch {
	case !v.Open:
		return "nothing"
	case v.Kind == agent.ReviewEvidence:
		return "what may change something there"
	}
	return "everything there"
}

func newReviewAcknowledgeCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "acknowledge ID",
		Aliases: []string{"ack"},
		Short:   "Say that you looked, so that it holds nothing back any more",
		Long: `Say that you looked, so that it holds nothing back any more. It is recorded, and
changes no verdict: evidence that was not verified stays so, and an operation of
unknown outcome is never sent again.

An operation that the business can still be asked about is asked about first:
pactctl reconcile. Else it shows what it is about, and asks; --yes answers.`,
		Example: `  pactctl review acknowledge r-3f9k2m
  pactctl review acknowledge m-3f9k2m --yes -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.Review(ctx, c, args[0])
				if err != nil {
					return noReview(args[0], err)
				}
				if v.Open && v.Settleable { // else Acknowledge says what comes first
					v.Next = "" // it is what is being done
					printReview(p.app.aside(), v)
					if err := p.app.confirm(ctx, reviewQuestion(v)); err != nil {
						return err
					}
				}
				if v, err = ag.Acknowledge(ctx, c, args[0]); err != nil {
					return noReview(args[0], err)
				}
				v.Next = p.app.hints.text(v.Next)
				return p.app.print(v, func(pr *printer) { printAcknowledged(pr, v) })
			})
		},
	}
}

func reviewQuestion(v agent.ReviewItem) string {
	if v.Kind == agent.ReviewEvidence {
		return fmt.Sprintf("Have you seen for yourself what %s did? The verdict on its evidence stays %s.", or(v.BusinessName, "the business"), v.Verdict)
	}
	return fmt.Sprintf("Do you know what became of it at %s, and will not repeat it unless it was not done?", or(v.BusinessName, "the business"))
}

func printAcknowledged(p *printer, v agent.ReviewItem) {
	switch {
	case v.Acknowledged.IsZero(): // it held nothing back
		p.say(0, "%s holds nothing back.", v.ID)
	case v.Kind == agent.ReviewEvidence:
		p.say(0, "%s is acknowledged: its verdict stays %s, and it holds nothing back any more.", v.ID, v.Verdict)
	default:
		p.say(0, "%s is acknowledged: its outcome stays unknown, and holds nothing back any more.", v.ID)
	}
}
