package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// delegatedState is what the sections of the profile Delegated share in a run. Each
// is made when the first check needs it.
type delegatedState struct {
	metadataTried bool
	metadataCame  *answer
	metadataErr   error
	keys          *jwks.Set
	keysErr       error
	pagesSilent   int            // pages in a row that did not come
	silentAt      map[string]int // by OAuth endpoint: requests in a row without an answer
	fruitless     time.Duration  // waited for codes that stay undecided
	waiting       *device        // a code that nobody decides
	waitingErr    error
	grants        map[string]grantOrErr
	rotating      *rotating
	stepUps       *stepUpOrErr
	turns         *turnsOrErr
}

// lacking is why a check cannot be done for want of something that another check is
// about.
func lacking(what string, err error) error {
	if err == nil || errors.Is(err, errNotRun) {
		return err
	}
	return notRun("%s: %v", what, err)
}

// party is a user of an issuer: as whom the suite calls.
type party struct {
	issuer *issuer
	sub    string
}

// newParty is a user that nobody has seen, so that no earlier consent counts.
func newParty(i *issuer) party { return party{i, "user-" + newID()} }

func (r *run) tokenOf(p party) string { return r.token(p.issuer, claim("sub", p.sub)) }

// grant is what a user allowed an agent.
type grant struct {
	party
	device *device
	ticked []string // on the consent page
	answer *answer  // that brought the tokens
	tokens
	received time.Time
}

type grantOrErr struct {
	grant *grant
	err   error
}

// obtain goes the whole way: it asks for the scopes, signs in with the login, ticks
// the scopes and collects the tokens.
func (r *run) obtain(ctx context.Context, c *card, p party, login Login, asked, ticked []string) (*grant, error) {
	d, err := r.startDevice(ctx, c, p, asked...)
	if err != nil {
		return nil, err
	}
	page, err := r.consentPage(ctx, d, login)
	if err != nil {
		return nil, err
	}
	if _, err := page.Answer(ctx, "allow", ticked...); err != nil {
		return nil, r.pageError(ctx, err)
	}
	return r.redeem(ctx, c, d, ticked)
}

// redeem collects the tokens of a code that the user approved.
func (r *run) redeem(ctx context.Context, c *card, d *device, ticked []string) (*grant, error) {
	a, err := r.collect(ctx, c, d)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, a.not("200 with tokens, for the user has allowed it")
	}
	g := &grant{party: d.party, device: d, ticked: ticked, answer: a, received: r.now()}
	if err := a.object(&g.tokens); err != nil || g.Access == "" {
		return nil, a.not("200 with an access_token")
	}
	return g, nil
}

// grant is a grant of exactly these scopes for the run's subject, made once; it is not
// spent or revoked by the checks that use it.
func (r *run) grant(ctx context.Context, scopes ...string) (*grant, error) {
	key := strings.Join(scopes, " ")
	if had, ok := r.grants[key]; ok && (had.err != nil || !r.runsOut(had.grant)) {
		return had.grant, had.err
	}
	g, err := r.makeGrant(ctx, scopes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if r.grants == nil {
		r.grants = map[string]grantOrErr{}
	}
	r.grants[key] = grantOrErr{g, err}
	return g, err
}

func (r *run) makeGrant(ctx context.Context, scopes []string) (*grant, error) {
	c, p, err := r.agent(ctx)
	if err != nil {
		return nil, err
	}
	p.sub = r.subject
	g, err := r.obtain(ctx, c, p, r.cfg.Login, scopes, scopes)
	if err != nil {
		return nil, lacking("no grant was to be had", err)
	}
	return g, nil
}

// runsOut tells whether a token is of no use for much longer.
func (r *run) runsOut(g *grant) bool {
	life := time.Duration(g.ExpiresIn) * time.Second
	return life > 0 && r.now().After(g.received.Add(life-min(life/2, maxWait)))
}

// grantAll is a delegation token of all scopes of the card for the run's subject.
func (r *run) grantAll(ctx context.Context) (string, error) {
	g, err := r.fullGrant(ctx)
	if err != nil {
		return "", err
	}
	return g.Access, nil
}

func (r *run) fullGrant(ctx context.Context) (*grant, error) {
	c, err := r.delegated(ctx)
	if err != nil {
		return nil, err
	}
	return r.grant(ctx, c.scopeIDs()...)
}

func (c *card) scopeIDs() []string {
	ids := make([]string, len(c.scopes))
	for i, s := range c.scopes {
		ids[i] = s.ID
	}
	return ids
}

// agent is the card with delegation and a new user of the first issuer.
func (r *run) agent(ctx context.Context) (*card, party, error) {
	c, err := r.delegated(ctx)
	if err != nil {
		return nil, party{}, err
	}
	i, err := r.accepted(ctx)
	if err != nil {
		return nil, party{}, err
	}
	return c, newParty(i), nil
}

// user plays somebody in front of the Provider's pages, with a browser of their own.
func (r *run) user(login Login, userCode string) person.Person {
	jar, _ := cookiejar.New(nil) // never fails
	return person.Person{
		Login: login, UserCode: userCode, Development: r.cfg.Development,
		Client: &http.Client{Transport: r.client.Transport, Timeout: r.cfg.Timeout, Jar: jar},
	}
}

// link is where the user goes for a code; it may be opened. Without a link that holds
// the code, it is the one where the code is typed (RFC 8628 section 3.3).
func (r *run) link(d *device) (string, error) {
	name, link := "verification_uri_complete", d.Complete
	if link == "" {
		name, link = "verification_uri", d.URI
	}
	if reason := r.refuseURL(link); reason != "" {
		return "", notRun("%s %s: see device-response", name, reason)
	}
	return link, nil
}

// consentPage signs in behind a code's link and goes on to the consent page.
func (r *run) consentPage(ctx context.Context, d *device, login Login) (*person.Page, error) {
	link, err := r.link(d)
	if err != nil {
		return nil, err
	}
	return r.signIn(ctx, link, d.UserCode, login)
}

// signIn goes from a link to the consent page.
func (r *run) signIn(ctx context.Context, link, userCode string, login Login) (*person.Page, error) {
	if login.Email == "" {
		return nil, notRun("nobody can sign in: no login was given")
	}
	if r.pagesSilent >= maxEndpointSilence {
		return nil, notRun("the sign-in pages were not answered: see signin-pages")
	}
	page, err := r.user(login, userCode).SignIn(ctx, link)
	if errors.Is(err, person.ErrLogin) {
		err = fmt.Errorf("%w: are --email and --password right?", err)
	}
	return page, r.pageError(ctx, err)
}

// maxEndpointSilence is how many requests in a row the pages, or an OAuth endpoint, may
// leave without an answer. What needs them is not run then: others do answer.
const maxEndpointSilence = 2

// pageError counts the pages that do not come.
func (r *run) pageError(ctx context.Context, err error) error {
	if near := tooNear(err); near != nil {
		return near
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, person.ErrElsewhere): // as the protocol allows
		r.pagesSilent = 0
		return notRun("the suite does not sign in there: %v", err)
	case err == nil || errors.Is(err, person.ErrPage):
		r.pagesSilent = 0
	default:
		r.pagesSilent++
	}
	return err
}

// without is the list without one.
func without(ids []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(other string) bool { return other == id })
}
