package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// What the demo's owner says and allows.
const (
	readFlights = "flights:upcoming:read"
	rebook      = "flights:rebook"

	askBook    = "Do you have The Sea Atlas?"
	askFlights = "Show my upcoming flights."
	askRebook  = "Rebook my next flight onto LK 318."
	askBack    = "Rebook my next flight onto LK 204."
)

// owner is the agent's owner, at their command line.
func (d *demo) owner() agent.Caller {
	return agent.Caller{
		Principal: principal, Origin: agent.OriginOwnerCLI, Human: agent.HumanInteractive,
		Approve: func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
			d.owned.Lock()
			defer d.owned.Unlock()
			d.approvals = append(d.approvals, r)
			return !d.decline, nil
		},
		SignIn: d.signIn,
	}
}

// signIn signs in at the business and allows what was asked for: the simulated
// user, or with --browser the person at the terminal.
func (d *demo) signIn(ctx context.Context, s agent.SignIn) error {
	if d.browser {
		d.screen.clear()
		p := d.app.printer(d.app.stderr)
		p.line("")
		p.line("  Open this in your browser, sign in and press Allow:")
		p.raw("    " + s.Link.Reveal())
		p.fields("    email", d.ready.Login.Email, "    password", d.ready.Login.Password)
		p.line("")
		d.screen.busy("waits for you")
		return p.err
	}
	ids := make([]string, len(s.Scopes))
	for i, scope := range s.Scopes {
		ids[i] = scope.ID
	}
	c, err := person.Person{Login: d.ready.Login}.Allow(ctx, s.Link.Reveal(), ids...)
	d.owned.Lock()
	defer d.owned.Unlock()
	d.consents = append(d.consents, c)
	return err
}

// asked tells whether the simulated user was asked for just these permissions,
// the last time; a person's browser is not looked into.
func (d *demo) asked(scopes ...string) bool {
	if d.browser {
		return true
	}
	d.owned.Lock()
	defer d.owned.Unlock()
	if len(d.consents) == 0 {
		return false
	}
	var ids []string
	for _, s := range d.consents[len(d.consents)-1].Asked {
		ids = append(ids, s.ID)
	}
	return sameIDs(ids, scopes)
}

func sameIDs(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// askedOf are the approvals that the owner was asked for since there were n.
func (d *demo) askedOf(n int) []agent.ApprovalRequest {
	d.owned.Lock()
	defer d.owned.Unlock()
	return slices.Clone(d.approvals[n:])
}

func (d *demo) declines(no bool) {
	d.owned.Lock()
	defer d.owned.Unlock()
	d.decline = no
}

// card is where a brand's card is.
func (d *demo) card(id string) string {
	for _, b := range d.ready.Brands {
		if b.ID == id {
			return b.Card
		}
	}
	return ""
}

// ask sends an inspection to the airline and proves its receipt.
func (d *demo) ask(ctx context.Context, key string) error {
	n := d.turns.count()
	r, err := d.send(ctx, agent.SendRequest{
		Business: d.card(sandbox.LarklineID), Message: askFlights, Effect: "inspect", Scopes: []string{readFlights},
		Conversation: d.conversation,
	})
	if err != nil {
		return err
	}
	if err := replied(r); err != nil {
		return err
	}
	d.conversation = r.Conversation
	return d.prove(
		claim{"the token is signed by key " + short(key), d.wire.last().kid == key},
		claim{"the business carried it out once", len(d.turns.since(n)) == 1},
		claim{"the receipt is verified" + findings(r), verified(r)},
	)
}

// send sends a message to a business. A signer that cannot sign for a moment is
// asked again, as the contract says: nothing was sent.
func (d *demo) send(ctx context.Context, req agent.SendRequest) (agent.Result, error) {
	for {
		r, err := d.agent.Send(ctx, d.owner(), req)
		if err != nil || r.Reason != agent.ReasonSignerUnavailable || r.Status == agent.StatusUnknown {
			return r, err
		}
		if err := pause(ctx); err != nil {
			return r, fmt.Errorf("%s: %w", r.Detail, err)
		}
	}
}

// status asks how the agent is, likewise.
func (d *demo) status(ctx context.Context) (agent.StatusView, error) {
	for {
		v, err := d.agent.Status(ctx, d.owner())
		if err != nil || v.Reason != agent.ReasonSignerUnavailable {
			return v, err
		}
		if err := pause(ctx); err != nil {
			return v, fmt.Errorf("%s: %w", v.Detail, err)
		}
	}
}

// pause waits a moment before something is tried again.
func pause(ctx context.Context) error {
	select {
	case <-time.After(demoPause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// replied is an error unless the business replied.
func replied(r agent.Result) error { return ended(r, agent.StatusReplied, "") }

// ended is an error unless an operation ended so.
func ended(r agent.Result, status agent.Status, reason string) error {
	if r.Status == status && r.Reason == reason {
		return nil
	}
	return fmt.Errorf("it ended as %s %s, not as %s %s: %s", r.Status, r.Reason, status, reason, r.Detail)
}

func verified(r agent.Result) bool {
	return r.Evidence != nil && r.Evidence.Verdict == agent.VerdictVerified
}

// findings is what is wrong with a receipt.
func findings(r agent.Result) string {
	if r.Evidence == nil || verified(r) {
		return ""
	}
	return fmt.Sprintf(" (it is %s: %s)", r.Evidence.Verdict, strings.Join(r.Evidence.Issues, ", "))
}

// short names a key in a line.
func short(kid string) string { return kid[:min(len(kid), 8)] }

// firstLine is how a reply begins.
func firstLine(s string) string {
	first, rest, _ := strings.Cut(s, "\n")
	if rest != "" {
		first += " …"
	}
	return first
}

func (d *demo) enrol(ctx context.Context) (string, error) {
	req := agent.EnrollRequest{SignerURL: d.issuer}
	first, err := d.agent.Enroll(ctx, d.owner(), req)
	if err != nil {
		return "", err
	}
	second, err := d.agent.Enroll(ctx, d.owner(), req)
	if err != nil {
		return "", err
	}
	var devices []*signerv1.Device
	err = d.admin(ctx, func(ctx context.Context, s *operator) error {
		resp, err := s.ListDevices(ctx, &signerv1.ListDevicesRequest{Issuer: d.issuer})
		devices = resp.GetDevices()
		return err
	})
	if err != nil {
		return "", err
	}
	return "a device key made here; enrolled twice, one subject", d.prove(
		claim{"the subject stays", first.Subject != "" && first.Subject == second.Subject},
		claim{"the device key stays", first.Thumbprint != "" && first.Thumbprint == second.Thumbprint},
		claim{"the signer knows this one device", len(devices) == 1 && devices[0].Thumbprint == first.Thumbprint},
	)
}

func (d *demo) register(ctx context.Context) (string, error) {
	var first, second *signerv1.RegisterProviderResponse
	err := d.admin(ctx, func(ctx context.Context, s *operator) (err error) {
		req := &signerv1.RegisterProviderRequest{Issuer: d.issuer, Provider: d.ready.Provider, Name: "demo"}
		if first, err = s.RegisterProvider(ctx, req); err != nil {
			return err
		}
		if second, err = s.RegisterProvider(ctx, req); err != nil {
			return err
		}
		_, err = s.SetAudience(ctx, &signerv1.SetAudienceRequest{
			Issuer: d.issuer, Origin: d.ready.Provider, Audience: d.ready.Audience, Reason: "demo",
		})
		return err
	})
	if err != nil {
		return "", err
	}
	status, err := d.status(ctx)
	if err != nil {
		return "", err
	}
	return "the provider knows the issuer; its audience is set", d.prove(
		claim{"the provider enabled it", first.Enabled},
		claim{"it registers once", first.Created && !second.Created},
		claim{"the agent hears of the audience", status.Ready && status.Audiences[d.ready.Provider] == d.ready.Audience},
	)
}

func (d *demo) discover(ctx context.Context) (string, error) {
	air, err := d.agent.Discover(ctx, d.owner(), agent.DiscoverRequest{CardURL: d.card(sandbox.LarklineID)})
	if err != nil {
		return "", err
	}
	books, err := d.agent.Discover(ctx, d.owner(), agent.DiscoverRequest{CardURL: d.card(sandbox.MarrowID)})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s by its own domain, and %s", air.Name, books.Name), d.prove(
		claim{"the airline's own domain redirects to its provider", len(air.Chain) == 2 && air.Chain[0] != d.ready.Provider && air.Chain[1] == d.ready.Provider},
		claim{"the airline offers permissions", air.Supported && air.Profile == agent.ProfileDelegated && len(air.Scopes) > 0},
		claim{"the bookshop knows callers by identity only", books.Supported && books.Profile == agent.ProfileIdentity},
	)
}

func (d *demo) identity(ctx context.Context) (string, error) {
	n := d.turns.count()
	r, err := d.send(ctx, agent.SendRequest{
		Business: d.card(sandbox.MarrowID), Message: askBook, Effect: "inspect",
	})
	if err != nil {
		return "", err
	}
	if err := replied(r); err != nil {
		return "", err
	}
	d.screen.note("%s", firstLine(r.Reply))
	turns := d.turns.since(n)
	return "Marrow Books knows who asks, and answers", d.prove(
		claim{"it reached the bookshop once, as this issuer's", len(turns) == 1 && turns[0].brand == "Marrow Books" && turns[0].Issuer == d.issuer},
		claim{"without anybody's permission", len(turns) == 1 && turns[0].User == "" && d.wire.last().delegation == "" && r.Evidence == nil},
	)
}

func (d *demo) consent(ctx context.Context) (string, error) {
	r, err := d.agent.Authorize(ctx, d.owner(), agent.AuthorizeRequest{
		Business: d.card(sandbox.LarklineID), Scopes: []string{readFlights}, Purpose: "to see my flights",
	})
	if err != nil {
		return "", err
	}
	if err := ended(r, agent.StatusDone, ""); err != nil {
		return "", err
	}
	return "signed in at the airline and allowed " + readFlights, d.prove(
		claim{"the page asked for that alone", d.asked(readFlights)},
		claim{"and that was granted", r.Grant != nil && sameIDs(r.Grant.Scopes, []string{readFlights})},
	)
}

func (d *demo) inspect(ctx context.Context) (string, error) {
	n := d.turns.count()
	if err := d.ask(ctx, d.signingKey()); err != nil {
		return "", err
	}
	t := d.turns.since(n)[0] // ask proved that there is one
	d.screen.note("%s", firstLine(t.Reply.Text))
	return "flights read with that permission; receipt verified", d.prove(
		claim{"the business knew whose flights", t.User != "" && sameIDs(t.Scopes, []string{readFlights})},
		claim{"the owner need not approve a look", len(d.askedOf(0)) == 0},
	)
}

func (d *demo) stepUp(ctx context.Context) (string, error) {
	n, asked := d.turns.count(), len(d.askedOf(0))
	r, err := d.send(ctx, agent.SendRequest{
		Business: d.card(sandbox.LarklineID), Message: askRebook, Effect: "change", Scopes: []string{readFlights},
		Conversation: d.conversation,
	})
	if err != nil {
		return "", err
	}
	if err := replied(r); err != nil {
		return "", err
	}
	turns, approvals := d.turns.since(n), d.askedOf(asked)
	d.screen.note("%s", firstLine(r.Reply))
	return "a change needs more: " + rebook + " allowed, done", d.prove(
		claim{"the business asked for the missing permission", slices.Equal(r.MissingScopes, []string{rebook})},
		claim{"nothing ran before it was given", len(turns) == 2 && slices.Equal(turns[0].Missing, []string{rebook}) && len(turns[0].Actions) == 0},
		claim{"the page asked for both", d.asked(readFlights, rebook)},
		claim{"the owner approved again, for more", len(approvals) == 2 && approvals[1].Changed && len(approvals[1].Scopes) == 2},
		claim{"it was done once", len(turns) == 2 && len(turns[1].Actions) == 1},
		claim{"the receipt is verified" + findings(r), verified(r)},
	)
}

func (d *demo) change(ctx context.Context) (string, error) {
	req := agent.SendRequest{
		Business: d.card(sandbox.LarklineID), Message: askBack, Effect: "change", Scopes: []string{rebook},
		Conversation: d.conversation,
	}
	n, sent := d.turns.count(), d.wire.count()
	asked := len(d.askedOf(0))
	d.declines(true)
	declined, err := d.send(ctx, req)
	d.declines(false)
	if err != nil {
		return "", err
	}
	if err := ended(declined, agent.StatusDenied, agent.ReasonApprovalDenied); err != nil {
		return "", err
	}
	untouched := d.turns.count() == n && d.wire.count() == sent
	r, err := d.send(ctx, req)
	if err != nil {
		return "", err
	}
	if err := replied(r); err != nil {
		return "", err
	}
	approvals, turns := d.askedOf(asked), d.turns.since(n)
	a := agent.ApprovalRequest{}
	if len(approvals) > 0 {
		a = approvals[len(approvals)-1]
	}
	text, digest := d.wire.last().message()
	d.screen.note("approved  %s", a.Message)
	d.screen.note("to        %s", a.Destination)
	d.screen.note("effect    %s, with %s", a.Effect, rebook)
	d.screen.note("digest    %s", a.Digest)
	return "declined: not sent; approved: sent as approved, and done", d.prove(
		claim{"what the owner declines is not sent", untouched},
		claim{"the owner was asked each time", len(approvals) == 2},
		claim{"the owner saw the whole message", a.Message == askBack && strings.HasPrefix(a.Destination, d.ready.Provider) && a.Effect == agent.EffectChange},
		claim{"and just that was sent", text == a.Message && a.Digest != "" && a.Digest == digest},
		claim{"it was done once", len(turns) == 1 && len(turns[0].Actions) == 1},
		claim{"the receipt is verified" + findings(r), verified(r)},
	)
}
