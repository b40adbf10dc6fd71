package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

const fromStepUp = "Step-up"

var stepupChecks = []check{
	{Check{ID: "stepup-task", Requirement: "a turn that lacks a scope is a task asking for it", Source: fromStepUp}, checkStepUpTask},
	{Check{ID: "stepup-missing", Requirement: "it asks for what the token lacks, and no more", Source: fromStepUp}, checkStepUpMissing},
	{Check{ID: "stepup-link", Requirement: "its link, if any, leads to consent for them", Source: fromStepUp}, checkStepUpLink},
	{Check{ID: "stepup-done", Requirement: "after consent the turn runs in the same context", Source: fromStepUp}, checkStepUpDone},
}

// stepUp is a message that needs a permission, and the task that says so.
type stepUp struct {
	card *card
	ask  Ask
	task task
	at   string // what was asked, for findings
	// malformed: it is a task, and of which kind cannot be told.
	malformed error
}

type stepUpOrErr struct {
	stepUp *stepUp
	err    error
}

// told are the messages that need a scope of the card each, as the config has them.
func (r *run) told(c *card) []Ask {
	onCard, has := c.scopeIDs(), map[string]bool{}
	var told []Ask
	for _, list := range [][]Ask{r.cfg.Asks, r.brand(c).Asks} {
		for _, ask := range list {
			if slices.Contains(onCard, ask.Scope) && !has[ask.Scope] {
				told = append(told, ask)
			}
		}
		for _, ask := range told {
			has[ask.Scope] = true
		}
	}
	return told
}

// asks are messages that may need a scope each.
func (r *run) asks(c *card) []Ask {
	if told := r.told(c); len(told) > 0 {
		return told
	}
	asks := make([]Ask, len(c.scopes))
	for i, s := range c.scopes {
		asks[i] = Ask{s.ID, s.Description}
	}
	return asks
}

// stepUp says the asks without delegation until one draws a step-up.
func (r *run) stepUp(ctx context.Context) (*stepUp, error) {
	if r.stepUps == nil {
		s, err := r.drawStepUp(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.stepUps = &stepUpOrErr{s, err}
	}
	return r.stepUps.stepUp, r.stepUps.err
}

func (r *run) drawStepUp(ctx context.Context) (*stepUp, error) {
	c, err := r.delegated(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.accepted(ctx); err != nil {
		return nil, err
	}
	last := ""
	for _, ask := range r.asks(c) {
		a, err := r.send(ctx, c, say{text: ask.Text})
		if err != nil {
			return nil, lacking("no step-up was drawn", err)
		}
		if t, err := a.task(); err == nil {
			return &stepUp{card: c, ask: ask, task: t, at: a.asked}, nil
		} else if a.isTask() {
			return &stepUp{card: c, ask: ask, at: a.asked, malformed: errors.New("its members are not of the right types")}, nil
		}
		last = a.summary()
	}
	return nil, notRun("no message drew a step-up (the last answer is %s): give for each scope a message that needs it", last)
}

// wellFormed is a step-up that can be gone on with.
func (r *run) wellFormed(ctx context.Context) (*stepUp, error) {
	s, err := r.stepUp(ctx)
	if err != nil {
		return nil, err
	}
	if s.malformed != nil || s.task.Status.State != stateAuthRequired {
		return nil, notRun("the step-up is not as it must be: see stepup-task")
	}
	return s, nil
}

func checkStepUpTask(ctx context.Context, r *run) error {
	if err := r.unenforced(ctx); err != nil {
		return err
	}
	s, err := r.stepUp(ctx)
	if err != nil {
		return err
	}
	err = s.malformed
	if err == nil {
		err = judgeTask(s.task, s.card.scopeIDs())
	}
	if err != nil {
		return fmt.Errorf("%s: 200 with a task: %w", s.at, err)
	}
	return nil
}

// unenforced says the messages that need a scope each, for whoever runs the suite says
// so, and looks for one that is answered without.
func (r *run) unenforced(ctx context.Context) error {
	c, err := r.delegated(ctx)
	if err != nil {
		return err
	}
	told := r.told(c)
	if len(told) == 0 {
		return nil // a scope's description need not draw a step-up
	}
	if _, err := r.accepted(ctx); err != nil {
		return err
	}
	var f findings
	for _, ask := range told {
		a, err := r.send(ctx, c, say{text: ask.Text})
		if err != nil {
			return lacking("nothing could be said", err)
		}
		if _, err := a.reply(); err == nil {
			f.add("", ranWithout(a, ask))
		}
	}
	return f.err()
}

// ranWithout is the finding of a turn that ran though it lacks a scope.
func ranWithout(a *answer, ask Ask) error {
	return fmt.Errorf("%s: 200 with a reply to the message that needs %s, without that scope: must be a step-up", a.asked, clip(ask.Scope))
}

// judgeTask looks at a step-up.
func judgeTask(t task, onCard []string) error {
	var f findings
	say := func(format string, args ...any) { f.add("", fmt.Errorf(format, args...)) }
	if t.ID == "" {
		say("it has no id")
	}
	if t.ContextID == "" {
		say("it has no contextId")
	}
	if t.Status.State != stateAuthRequired {
		say("status.state is %q: must be %s", clip(t.Status.State), stateAuthRequired)
	}
	switch m := t.Status.Message; {
	case m == nil:
		say("status.message is missing")
	case m.MessageID == "":
		say("status.message has no messageId")
	case m.Role != "ROLE_AGENT":
		say("status.message has the role %q: must be ROLE_AGENT", clip(m.Role))
	case m.ContextID != "" && m.ContextID != t.ContextID:
		say("status.message is in another context than the task")
	case len(m.Parts) == 0:
		say("status.message has no parts")
	}
	if len(t.Metadata.Missing) == 0 {
		say("pact.missingScopes is missing or empty")
	}
	if unknown := beyond(t.Metadata.Missing, onCard); len(unknown) > 0 {
		say("pact.missingScopes has %s, which is not on the card", listed(unknown))
	}
	return f.err()
}

// maxNarrow is how many messages are tried with a token that lacks their scope.
const maxNarrow = 3

// checkStepUpMissing says an ask with a token of all scopes but the one it needs. Then
// just that one lacks.
func checkStepUpMissing(ctx context.Context, r *run) error {
	s, err := r.wellFormed(ctx)
	if err != nil {
		return err
	}
	all := s.card.scopeIDs()
	if len(all) < 2 {
		return notRun("the card has one scope: no token has less of them")
	}
	tried := 0
	for _, ask := range r.narrowAsks(s, all) {
		if tried++; tried > maxNarrow {
			break
		}
		g, err := r.grant(ctx, without(all, ask.Scope)...)
		if err != nil {
			return err
		}
		a, err := r.delegatedSend(ctx, s.card, g, say{text: ask.Text})
		if err != nil {
			return err
		}
		if a.status == http.StatusUnauthorized {
			return notRun("the token is not taken: see delegation-accepted")
		}
		t, err := a.task()
		if err != nil {
			if _, replied := a.reply(); replied == nil && slices.Contains(r.told(s.card), ask) {
				return ranWithout(a, ask)
			}
			continue // it does without that scope
		}
		return judgeMissing(t.Metadata.Missing, []string{ask.Scope}, g.ticked)
	}
	return notRun("no message drew a step-up with a token that has the other scopes: give for each scope a message that needs it")
}

// narrowAsks are the asks by the scope that each needs, the one that drew a step-up
// first.
func (r *run) narrowAsks(s *stepUp, all []string) []Ask {
	var asks []Ask
	for _, scope := range s.task.Metadata.Missing {
		asks = append(asks, Ask{scope, s.ask.Text})
	}
	asks = append(asks, r.asks(s.card)...)
	seen := map[Ask]bool{}
	return slices.DeleteFunc(asks, func(a Ask) bool {
		again := seen[a]
		seen[a] = true
		return again || !slices.Contains(all, a.Scope)
	})
}

// judgeMissing holds the scopes that a step-up asks for to those that the token lacks.
func judgeMissing(missing, lacks, has []string) error {
	var held []string
	for _, id := range setOf(missing) {
		if slices.Contains(has, id) {
			held = append(held, id)
		}
	}
	switch {
	case len(held) > 0:
		return fmt.Errorf("pact.missingScopes has %s, which the token has: must be what lacks", listed(held))
	case !sameSet(missing, lacks):
		return fmt.Errorf("pact.missingScopes is %s: must be %s, all that the token lacks", listed(missing), listed(lacks))
	}
	return nil
}

func checkStepUpLink(ctx context.Context, r *run) error {
	s, err := r.wellFormed(ctx)
	if err != nil {
		return err
	}
	if s.task.Metadata.Link == nil {
		return notRun("the step-up has no link, and need not")
	}
	if reason := r.refuseURL(*s.task.Metadata.Link); reason != "" {
		return fmt.Errorf("pact.verificationUriComplete %s", reason)
	}
	if _, err := r.fullGrant(ctx); err != nil { // the pages do not lead there from any link
		return err
	}
	// The second one is asked for when the first is used up.
	for _, which := range []string{"the link", "after its consent was answered, the link of another step-up"} {
		t, err := r.draw(ctx, s)
		if err != nil {
			return err
		}
		if t.Metadata.Link == nil {
			return notRun("the step-up has no link now, and need not")
		}
		if err := r.walkLink(ctx, *t.Metadata.Link, t.Metadata.Missing); err != nil {
			return fmt.Errorf("%s: %w", which, err)
		}
	}
	return nil
}

// walkLink signs in behind a step-up's link, looks at what it asks for, and declines.
func (r *run) walkLink(ctx context.Context, link string, missing []string) error {
	if reason := r.refuseURL(link); reason != "" {
		return fmt.Errorf("pact.verificationUriComplete %s", reason)
	}
	page, err := r.signIn(ctx, link, "", r.cfg.Login)
	if err != nil {
		if errors.Is(err, person.ErrPage) {
			return fmt.Errorf("pact.verificationUriComplete leads to no consent page: %w", err)
		}
		return err
	}
	var lacks []string
	for _, id := range missing {
		if !page.Asks(id) {
			lacks = append(lacks, id)
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("the consent page has no box for %s, which the step-up asks for", listed(lacks))
	}
	return r.press(ctx, page, "deny")
}

// maxStepUps is how often a turn may be asked for more.
const maxStepUps = 3

func checkStepUpDone(ctx context.Context, r *run) error {
	s, err := r.wellFormed(ctx)
	if err != nil {
		return err
	}
	if err := judgeTask(s.task, s.card.scopeIDs()); err != nil {
		return notRun("the step-up is not as it must be: see stepup-task")
	}
	// One of its own, so that the context has seen nothing but this.
	t, err := r.draw(ctx, s)
	if err != nil {
		return err
	}
	var have []string
	for range maxStepUps {
		have = setOf(append(have, t.Metadata.Missing...))
		g, err := r.grant(ctx, have...)
		if err != nil {
			return err
		}
		a, err := r.delegatedSend(ctx, s.card, g, say{text: s.ask.Text, contextID: t.ContextID})
		if err != nil {
			return err
		}
		next, err := a.task()
		if err != nil { // it ran, or should have
			m, err := a.reply()
			switch {
			case a.status == http.StatusUnauthorized:
				return notRun("the token is not taken: see delegation-accepted")
			case err != nil:
				return fmt.Errorf("with a token that has %s: %w", listed(have), err)
			case m.ContextID != t.ContextID:
				return fmt.Errorf("%s: the reply is in another context than the step-up", a.asked)
			}
			return nil
		}
		if len(beyond(next.Metadata.Missing, have)) == 0 {
			return fmt.Errorf("%s: asked again for %s, which the token has", a.asked, listed(next.Metadata.Missing))
		}
		if next.ContextID != t.ContextID {
			return fmt.Errorf("%s: the next step-up is in another context", a.asked)
		}
		t = next
	}
	return fmt.Errorf("message:send: still a step-up with a token that has %s", listed(have))
}
