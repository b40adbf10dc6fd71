package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// scopeFlags say what a kill stops and what a resume lifts.
type scopeFlags struct {
	all                                   bool
	issuer                                string
	audience, subject, device, credential string
}

func (f *scopeFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.all, "all", false, "everything in the deployment")
	fs.StringVar(&f.issuer, "issuer", "", "everything of the issuer `URL`; with another scope flag, the issuer that it is in")
	fs.StringVar(&f.audience, "audience", "", "tokens for one `AUDIENCE`")
	fs.StringVar(&f.subject, "subject", "", "one `SUBJECT`")
	fs.StringVar(&f.device, "device", "", "one device, by its key's `THUMBPRINT`")
	fs.StringVar(&f.credential, "credential", "", "one credential, by its `ID`")
	cmd.MarkFlagsMutuallyExclusive("all", "audience", "subject", "device", "credential")
	cmd.MarkFlagsMutuallyExclusive("all", "issuer")
	cmd.MarkFlagsOneRequired("all", "issuer", "audience", "subject", "device", "credential")
}

// scope is what the flags say. known is the context's issuer, which names an issuer
// but is never a scope by itself.
func (f *scopeFlags) scope(known string) (*signerv1.Scope, error) {
	if f.all {
		return &signerv1.Scope{Kind: "all"}, nil
	}
	for _, s := range []struct{ kind, value string }{
		{"audience", f.audience}, {"subject", f.subject}, {"device", f.device}, {"credential", f.credential},
	} {
		if s.value != "" {
			return &signerv1.Scope{Kind: s.kind, Value: s.value, Issuer: or(f.issuer, known)}, nil
		}
	}
	if f.issuer == "" {
		return nil, usagef("the scope flag has an empty value")
	}
	return &signerv1.Scope{Kind: "issuer", Value: f.issuer}, nil
}

// scopeWords names a scope in a sentence.
func scopeWords(s *signerv1.Scope) string {
	switch {
	case s.GetKind() == "all":
		return "everything"
	case s.GetKind() == "issuer":
		return "issuer " + or(s.Value, s.Issuer)
	case s.Issuer == "":
		return s.Kind + " " + s.Value
	}
	return fmt.Sprintf("%s %s of %s", s.Kind, s.Value, s.Issuer)
}

// newKillCmd throws the kill switch.
func newKillCmd(a *app) *cobra.Command {
	var (
		scope scopeFlags
		req   signerv1.KillRequest
		until time.Duration
	)
	cmd := &cobra.Command{
		Use:     "kill",
		GroupID: groupOperator,
		Short:   "Stop issuing tokens, at once",
		Long: `Stop issuing tokens, and show replica by replica when that is effective.

A kill stops issuing. Tokens that are out already are accepted until they
expire; the command says until when. --withdraw-keys also revokes the signing
keys and publishes fresh ones (only with --all or --issuer).

It is effective when every replica has confirmed it. A replica that is silent
signs nothing once its permit has run out, which takes 3 seconds and a bit; the
wait ends then too.

--issuer alone stops that issuer; with another scope flag it says which issuer
that scope is in. If the wait is interrupted the kill stands: go on waiting with
pactctl kill status --wait EPOCH.

It asks first. In a script, say --yes: without a terminal and without --yes it
does nothing and ends with exit code 3.`,
		Example: `  pactctl kill --all --reason "incident 12"
  pactctl kill --all --reason "incident 12" --yes   # in a script
  pactctl kill --device THUMBPRINT --reason "lost phone" --for 24h
  pactctl kill --all --withdraw-keys --reason "keys leaked"
  pactctl kill status`,
		Args: unknownCommand,
	}
	t := newTarget(cmd)
	scope.add(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Reason, "reason", "", "why, for the audit log (required)")
	f.Var((*days)(&until), "for", "lift the switch by itself after this `DURATION`, such as 15m, 24h or 7d")
	f.BoolVar(&req.WithdrawKeys, "withdraw-keys", false, "also revoke the signing keys and publish fresh ones")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(req.Reason) == "" {
			return usagef("--reason is required: it goes to the audit log")
		}
		if req.WithdrawKeys && !scope.all && (scope.issuer == "" || scope.audience+scope.subject+scope.device+scope.credential != "") {
			return usagef("--withdraw-keys goes only with --all or with --issuer alone")
		}
		if until > 0 {
			req.For = durationpb.New(until)
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			var err error
			if req.Scope, err = scope.scope(s.issuer); err != nil {
				return err
			}
			return kill(ctx, a, s, &req)
		})
	}
	cmd.AddCommand(newKillStatusCmd(a, t))
	return cmd
}

// kill asks, throws the switch and waits for the barrier.
func kill(ctx context.Context, a *app, s *operator, req *signerv1.KillRequest) error {
	question := fmt.Sprintf("Stop %s at %s?", scopeWords(req.Scope), s.server)
	if req.WithdrawKeys {
		question = fmt.Sprintf("Stop %s at %s, and revoke its signing keys for good?", scopeWords(req.Scope), s.server)
	}
	if err := a.confirm(ctx, question); err != nil {
		return err
	}
	resp, err := s.Kill(ctx, req)
	if err != nil {
		return unanswered(err, "the switch may be thrown all the same: see pactctl kill status")
	}
	text := a.output != "json"
	if text {
		p := a.printer(a.stdout)
		printThrown(p, resp, s.server)
		if p.err != nil {
			return p.err
		}
	}
	barrier, _, err := waitKill(ctx, a, s, resp.Entry.Epoch, text)
	if err != nil {
		return err
	}
	err = a.print(append(messageJSON(resp), member{"barrier", messageJSON(barrier)}), func(p *printer) { printKilled(p, resp, barrier) })
	if err == nil && len(resp.NotWithdrawn) > 0 {
		err = fmt.Errorf("the switch is thrown, but keys were not withdrawn: use pactctl rotate --emergency for %s", strings.Join(resp.NotWithdrawn, ", "))
	}
	return err
}

// printThrown writes the beginning of a kill: what the signer has to say of it is said
// before the wait, for some of it is over when that ends.
func printThrown(p *printer, resp *signerv1.KillResponse, server string) {
	p.say(0, "Switch %s is thrown at %s: %s, epoch %d.", resp.Entry.Id, server, scopeWords(resp.Entry.Scope), resp.Entry.Epoch)
	for _, n := range resp.Notes {
		p.paragraph(n, 0)
	}
}

// printKilled writes the end of a kill.
func printKilled(p *printer, resp *signerv1.KillResponse, b *signerv1.Barrier) {
	at := when(b.EffectiveAt)
	after := max(at.Sub(when(resp.Entry.GetTime())), 0).Round(time.Millisecond)
	p.line("Effective at %s (%s after it was thrown).", p.exact(at), after)
	printReplicas(p, b)
	if until := when(resp.TokensAcceptedUntil); !until.IsZero() {
		p.say(0, "Tokens that are out already can be accepted until %s.", p.at(until))
	}
}

// waitKill follows the barrier until it is effective, with a line for each replica
// as it confirms if show. past: it was effective before the wait began.
func waitKill(ctx context.Context, a *app, s *operator, epoch uint64, show bool) (last *signerv1.Barrier, past bool, err error) {
	stream, err := s.WaitKill(ctx, &signerv1.WaitKillRequest{Epoch: epoch})
	if err == nil {
		last, past, err = followBarrier(a, stream, show)
	}
	if err != nil && reason(err) != "NOT_FOUND" {
		err = fmt.Errorf("%w; the switch stays thrown, go on waiting with: pactctl kill status --wait %d", err, epoch)
	}
	return last, past, err
}

// followBarrier reads a barrier's stream to its end. On a terminal a line tells
// meanwhile who is silent, and for how long that can matter.
func followBarrier(a *app, stream interface {
	Recv() (*signerv1.Barrier, error)
}, show bool) (last *signerv1.Barrier, past bool, err error) {
	w := &waiting{app: a, stdout: a.stdout, stderr: a.stderr}
	if show {
		w = newWaiting(a)
	}
	defer w.close()
	var shown []string
	var until time.Time
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) && last.GetEffective() {
			return last, past, nil
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the signer ended the wait before the switch was effective")
		}
		if err != nil {
			return nil, false, err
		}
		past = last == nil && b.Effective
		if at := when(b.EffectiveAt); last == nil || !at.Equal(when(last.EffectiveAt)) {
			until = at
		}
		last = b
		if !show {
			continue
		}
		p := a.printer(a.stdout)
		for _, replica := range b.Confirmed {
			if !slices.Contains(shown, replica) {
				shown = append(shown, replica)
				p.line("  replica %s confirmed (%d of %d)", replica, len(shown), len(b.Confirmed)+len(b.Silent))
			}
		}
		if p.err != nil {
			return nil, false, p.err
		}
		if !b.Effective {
			showBarrier(a, w, b, until)
		}
	}
}

// showBarrier says what a barrier waits for: silent replicas, until their permits
// have run out, and then only the store.
func showBarrier(a *app, w *waiting, b *signerv1.Barrier, until time.Time) {
	const store = "Waiting until the store enforces it everywhere"
	switch {
	case b.Unsettled != "":
		what := "Waiting: " + b.Unsettled
		w.set(what, time.Time{}, what+".")
	case !until.After(a.now()):
		w.set(store, time.Time{}, store+".")
	case len(b.Silent) > 0:
		w.set("Waiting for "+strings.Join(b.Silent, ", "), until, "")
		w.after(store)
	case len(b.Confirmed) > 0: // all of them
		w.set(store, time.Time{}, "")
	default:
		w.set("Waiting until no permit from before is valid", until, "")
		w.after(store)
	}
}

// exact is a time to the millisecond.
func (p *printer) exact(t time.Time) string {
	return p.clock(t, toMilli)
}

// printReplicas writes who confirmed a barrier.
func printReplicas(p *printer, b *signerv1.Barrier) {
	p.line("%s confirmed, %d silent.", plural(len(b.Confirmed), "replica"), len(b.Silent))
	if len(b.Silent) > 0 {
		p.paragraph(fmt.Sprintf("Silent: %s. A silent replica's permit has run out, so that it signs nothing.", strings.Join(b.Silent, ", ")), 0)
	}
}

func newKillStatusCmd(a *app, t *target) *cobra.Command {
	var (
		wait uint64
		req  signerv1.KillStatusRequest
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is stopped, or wait until a kill is effective",
		Example: `  pactctl kill status
  pactctl kill status --history
  pactctl kill status --wait 7`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Uint64Var(&wait, "wait", 0, "wait until the kill of this `EPOCH` is effective")
	cmd.Flags().BoolVar(&req.History, "history", false, "also show what was lifted or has expired")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			if cmd.Flags().Changed("wait") {
				barrier, past, err := waitKill(ctx, a, s, wait, a.output != "json")
				if err != nil {
					return err
				}
				return a.print(messageJSON(barrier), func(p *printer) { printWaited(p, barrier, past) })
			}
			resp, err := s.KillStatus(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(resp), func(p *printer) { printKillStatus(p, resp) })
		})
	}
	return cmd
}

// printWaited writes the end of a barrier. Of one in the past it is known only by
// when it was effective, not when it became so.
func printWaited(p *printer, b *signerv1.Barrier, past bool) {
	if past {
		p.say(0, "Effective since %s at the latest; sooner if every replica confirmed sooner.", p.exact(when(b.EffectiveAt)))
	} else {
		p.line("Effective at %s.", p.exact(when(b.EffectiveAt)))
	}
	printReplicas(p, b)
}

func printKillStatus(p *printer, resp *signerv1.KillStatusResponse) {
	lifted := map[string]*signerv1.KillResume{}
	for _, r := range resp.Resumes {
		for _, id := range r.EntryIds {
			lifted[id] = r
		}
	}
	live, past := []*signerv1.KillEntry{}, []*signerv1.KillEntry{}
	for _, e := range resp.Entries {
		if lifted[e.Id] != nil {
			past = append(past, e)
		} else {
			live = append(live, e)
		}
	}
	live, standing := withoutProbe(live)
	if len(live) == 0 {
		p.line("Nothing is stopped (epoch %d).", resp.Epoch)
	} else {
		p.line("Stopped (epoch %d):", resp.Epoch)
	}
	for _, e := range live {
		printKillEntry(p, e)
	}
	printStanding(p, standing)
	if len(past) > 0 {
		p.line("")
		p.line("Lifted:")
	}
	for _, e := range past {
		printKillEntry(p, e)
		r := lifted[e.Id]
		p.say(6, "lifted by %s, %s, epoch %d", r.Actor, p.at(when(r.Time)), r.Epoch)
		p.paragraph(r.Reason, 6)
	}
}

// withoutProbe parts what is stopped from the probe's standing kill, which stops nobody
// and is in force when all is well.
func withoutProbe(entries []*signerv1.KillEntry) (stops, standing []*signerv1.KillEntry) {
	for _, e := range entries {
		if signer.OfProbe(e) {
			standing = append(standing, e)
		} else {
			stops = append(stops, e)
		}
	}
	return stops, standing
}

// printStanding writes the probe's kills, if there are some.
func printStanding(p *printer, standing []*signerv1.KillEntry) {
	for _, e := range standing {
		p.line("")
		p.say(0, "For pactctl probe, and nobody else, %s is killed (%s).", scopeWords(e.Scope), e.Id)
	}
}

// printKillEntry writes one entry with all that an operator needs to decide on it.
func printKillEntry(p *printer, e *signerv1.KillEntry) {
	p.labelled("  "+e.Id+"  ", scopeWords(&signerv1.Scope{Kind: e.Scope.GetKind(), Value: e.Scope.GetValue()}))
	if e.Scope.GetIssuer() != "" {
		p.say(6, "of %s", e.Scope.Issuer)
	}
	p.say(6, "by %s, %s, epoch %d", e.Actor, p.at(when(e.Time)), e.Epoch)
	if e.Expires != nil {
		p.line("      until %s", p.at(when(e.Expires)))
	}
	p.paragraph(e.Reason, 6)
}
