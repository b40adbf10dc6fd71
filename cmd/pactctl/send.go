package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newSendCmd sends one message.
func newSendCmd(a *app) *cobra.Command {
	var req agent.SendRequest
	cmd := &cobra.Command{
		Use:   "send --business BUSINESS --message TEXT",
		Short: "Send a business a message and judge its answer",
		Long: `Send a business a message and judge its answer.

What may change something is shown whole first - message, destination, effect,
permissions, digest - and you are asked. --yes confirms what this command line
asks for, once. You are asked again only if effect or permissions come to differ
from that, because the business asks for one more permission, or if the token
that it gives can do more than the effect. The effect is computed: declaring
inspect lowers nothing.

Exit codes: 0 answered, 1 failed (the reason says how), 3 you must sign in or
approve, 130 interrupted. After outcome_unknown do not repeat it by another
route.`,
		Example: `  pactctl send --business larkline.example --message "Is LK 204 on time?"
  pactctl send --business larkline.example --scope flights:upcoming:read \
      --message "Show my upcoming flights"
  pactctl send --business larkline.example --message "Rebook me onto LK 318" \
      --effect change --scope flights:rebook --yes`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := notEmpty(cmd, "business", "scope", "conversation"); err != nil {
			return err
		}
		if req.Business == "" {
			return usagef("--business is required: an id, a domain or a card's URL")
		}
		if !cmd.Flags().Changed("message") {
			return usagef("--message TEXT is required (- reads it from stdin)")
		}
		if req.Message == "-" {
			text, err := io.ReadAll(io.LimitReader(a.stdin, maxLine+1))
			if err != nil {
				return fmt.Errorf("--message -: %w", err)
			}
			if len(text) > maxLine {
				return refused(tooLong)
			}
			req.Message = strings.TrimRight(string(text), "\r\n")
		}
		if utf8.RuneCountInString(req.Message) > maxMessage {
			return refused(tooLong)
		}
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			r, err := ag.Send(ctx, c, req)
			if err != nil {
				return err
			}
			return p.ended(r, func(pr *printer) { printReply(pr, r) })
		})
	}
	f := cmd.Flags()
	f.StringVar(&req.Business, "business", "", "`BUSINESS`: its id, domain or card's URL")
	f.StringVar(&req.Message, "message", "", "`TEXT` to send, - for stdin")
	req.Effect = "inspect"
	f.Var((*effectFlag)(&req.Effect), "effect", "what it does, in your words: `inspect or change`")
	f.StringSliceVar(&req.Scopes, "scope", nil, "permission `ID` that it needs; may be repeated")
	f.StringVar(&req.Conversation, "conversation", "", "`ID` of a conversation to continue")
	return cmd
}

// maxMessage is how many characters a message has at most (AD-1, CP-3).
const maxMessage = 4000

// tooLong is a message that is not read whole, or not sent.
var tooLong = &agent.Refusal{
	Status: agent.StatusFailed, Reason: agent.ReasonMessageTooLong,
	Detail: "message: it has more than 4000 characters, and 4000 is the most",
}

func printReply(p *printer, r agent.Result) {
	printText(p, r.Reply)
	if e := r.Evidence; e != nil {
		p.line("")
		p.say(0, "%s (receipt %s)", evidenceText(*e), e.Receipt)
	}
	p.line("conversation %s", r.Conversation)
}

// evidenceText says what a verdict means, and no more (EV-8).
func evidenceText(e agent.EvidenceView) string {
	switch e.Verdict {
	case agent.VerdictVerified:
		return "The business signed for what it says it did."
	case agent.VerdictMissing:
		return "Evidence missing: the business signed nothing for this turn. Changes there are held back; inspections still work."
	case agent.VerdictUnverifiable:
		return fmt.Sprintf("Evidence %s: the business's keys were not to be had. Changes there are held back until pactctl receipts verify %s succeeds.", e.Verdict, e.Receipt)
	}
	return fmt.Sprintf("Evidence %s (%s). Changes there are held back; inspections still work.", verdictWords(e.Verdict), strings.Join(e.Issues, ", "))
}

// verdictWords is a verdict in a sentence.
func verdictWords(v agent.Verdict) string { return strings.ReplaceAll(string(v), "_", " ") }

// newChatCmd sends line by line in one conversation.
func newChatCmd(a *app) *cobra.Command {
	var effect, conversation string
	var scopes []string
	cmd := &cobra.Command{
		Use:   "chat BUSINESS",
		Short: "Talk to a business, line by line, in one conversation",
		Long: `Talk to a business, line by line, in one conversation. Each line is a message,
sent as "pactctl send" does: what may change something is asked about, each
time, so --yes has no place here. An empty line is ignored; /quit or the end of
input ends it, and the conversation that can be gone on with is told. With
-o json there is one result per line. The exit code is that of the last message.`,
		Example: `  pactctl chat larkline.example
  pactctl chat larkline.example --scope flights:upcoming:read`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if a.yes { // AP-1: it would approve messages not written yet
			return usagef("chat takes no --yes: each change is decided on its own; use pactctl send --yes for one")
		}
		if err := notEmpty(cmd, "scope", "conversation"); err != nil {
			return err
		}
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			req := agent.SendRequest{Business: args[0], Effect: effect, Scopes: scopes, Conversation: conversation}
			return p.chat(ctx, ag, c, req)
		})
	}
	f := cmd.Flags()
	effect = "inspect"
	f.Var((*effectFlag)(&effect), "effect", "what each line does, in your words: `inspect or change`")
	f.StringSliceVar(&scopes, "scope", nil, "permission `ID` that the lines need; may be repeated")
	f.StringVar(&conversation, "conversation", "", "`ID` of a conversation to continue")
	return cmd
}

func (p *profile) chat(ctx context.Context, ag personal, c agent.Caller, req agent.SendRequest) error {
	v, err := ag.Discover(ctx, c, agent.ParseBusiness(req.Business)) // whom to talk to comes before what to say
	switch {
	case err != nil:
		return err
	case !v.Supported:
		return refused(&agent.Refusal{Status: agent.StatusUnsupported, Reason: v.Reason, Detail: p.app.hints.text("pactctl discover " + v.ID + " tells why")})
	}
	if p.app.output != "json" {
		defer func() {
			if req.Conversation != "" && ctx.Err() == nil {
				p.app.note("Go on with: pactctl chat %s --conversation %s", v.ID, req.Conversation)
			}
		}()
	}
	prompt := ""
	if p.app.person {
		prompt = "> "
	}
	var last error
	for {
		line, err := p.ask(ctx, prompt)
		switch {
		case err == io.EOF:
			if p.app.person { // the prompt stands there
				fmt.Fprintln(p.app.stderr)
			}
			return last
		case strings.TrimSpace(line) == "/quit":
			return last
		case err != nil && err != errLongLine:
			return err
		case err == nil && strings.TrimSpace(line) == "":
			continue
		}
		r := agent.Result{Status: tooLong.Status, Reason: tooLong.Reason, Detail: tooLong.Detail}
		if err == nil && utf8.RuneCountInString(line) <= maxMessage {
			req.Message = line
			if r, err = ag.Send(ctx, c, req); err != nil {
				return err
			}
		}
		if r.Conversation != "" && r.Reason != agent.ReasonUnresolved { // which names another one's
			req.Conversation = r.Conversation
		}
		last = p.resultErrorWith(r, p.chatRemedy(r))
		if p.app.output == "json" {
			r.Detail = p.app.hints.detail(r)
			b, err := json.Marshal(r)
			if err != nil {
				return fmt.Errorf("encode the result: %w", err)
			}
			if _, err := fmt.Fprintf(p.app.stdout, "%s\n", escaped(b)); err != nil {
				return err
			}
			continue
		}
		if last != nil {
			if ctx.Err() != nil {
				return last
			}
			p.showUndecided(r)
			p.app.note("%v", last)
			last = said(last)
			if r.Status == agent.StatusFailed && r.Reason == agent.ReasonClosed {
				req.Conversation = ""
			}
			continue
		}
		pr := p.app.printer(p.app.stdout)
		printText(pr, r.Reply)
		if r.Evidence != nil {
			p.app.note("%s", evidenceText(*r.Evidence))
		}
		if pr.err != nil {
			return pr.err
		}
	}
}

// chatRemedy is what a person can do about a result in a chat, which takes no --yes.
func (p *profile) chatRemedy(r agent.Result) string {
	if r.Status == agent.StatusApprovalRequired && (p.limit == nil || p.limit.Decides()) {
		return p.app.hints.text(": " + orApprove(r) + "say it on a terminal, or by itself with pactctl send --yes")
	}
	return p.remedy(r)
}

// said is an error that was told already: only its exit code counts.
func said(err error) error { return fmt.Errorf("%w: %w", errSaid, err) }
