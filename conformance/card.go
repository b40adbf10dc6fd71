package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// card is an Agent Card as the suite found it: what is missing or wrong in it is the
// card's checks to tell, and empty here.
type card struct {
	url    string
	hops   int     // redirects on the way
	answer *answer // the last one
	err    error   // why there is no card
	raw    cardJSON
	wrong  []string // members that are of another type

	name         string
	interfaceURL string
	ambiguous    bool // there are others that fit
	// delegated: the card offers delegation with the URLs that it takes.
	delegated   bool
	deviceURL   string
	tokenURL    string
	refreshURL  string // tokenURL if the card names none
	metadataURL string
	scopes      []Scope // in the card's order
	scopesJSON  jsontext.Value
	oauthScheme string // its name among the card's schemes

	greeted   bool  // what follows is known; see answers
	mute      error // why a greeting brings neither reply nor step-up
	asksFirst bool  // a greeting is answered with a step-up
}

// Scope is a permission as a card states it.
type Scope struct{ ID, Description string }

// cardJSON is what the protocol says of a card.
type cardJSON struct {
	Name, Description, Version *string
	Interfaces                 []struct {
		URL     string `json:"url"`
		Binding string `json:"protocolBinding"`
		Version string `json:"protocolVersion"`
	}
	Capabilities *struct {
		Streaming bool `json:"streaming"`
		Push      bool `json:"pushNotifications"`
		Extended  bool `json:"extendedAgentCard"`
	}
	Schemes      map[string]schemeJSON
	Requirements []struct {
		Schemes map[string]jsontext.Value `json:"schemes"`
	}
	InputModes, OutputModes []string
	Skills                  []struct {
		ID          *string  `json:"id"`
		Name        *string  `json:"name"`
		Description *string  `json:"description"`
		Tags        []string `json:"tags"`
	}
}

// read decodes a card member by member, so that a wrong one spoils no other, and
// returns the names of those that are wrong.
func (c *cardJSON) read(members map[string]jsontext.Value) (wrong []string) {
	for _, m := range []struct {
		name string
		into any
	}{
		{"name", &c.Name}, {"description", &c.Description}, {"version", &c.Version},
		{"supportedInterfaces", &c.Interfaces}, {"capabilities", &c.Capabilities},
		{"securitySchemes", &c.Schemes}, {"securityRequirements", &c.Requirements},
		{"defaultInputModes", &c.InputModes}, {"defaultOutputModes", &c.OutputModes}, {"skills", &c.Skills},
	} {
		if raw, ok := members[m.name]; ok && json.Unmarshal(raw, m.into) != nil {
			wrong = append(wrong, m.name)
		}
	}
	return wrong
}

type schemeJSON struct {
	HTTP *struct {
		Scheme string `json:"scheme"`
		Format string `json:"bearerFormat"`
	} `json:"httpAuthSecurityScheme"`
	OAuth *struct {
		Flows struct {
			DeviceCode *struct {
				Device  string         `json:"deviceAuthorizationUrl"`
				Token   string         `json:"tokenUrl"`
				Refresh string         `json:"refreshUrl"`
				Scopes  jsontext.Value `json:"scopes"`
			} `json:"deviceCode"`
		} `json:"flows"`
		Metadata string `json:"oauth2MetadataUrl"`
	} `json:"oauth2SecurityScheme"`
}

// identity tells whether the scheme is the PA-JWT's.
func (s schemeJSON) identity() bool {
	return s.HTTP != nil && strings.EqualFold(s.HTTP.Scheme, "Bearer") && s.HTTP.Format == "JWT"
}

// load reads the cards once.
func (r *run) load(ctx context.Context) error {
	if r.loaded {
		return nil
	}
	for _, address := range r.cfg.Cards {
		c := &card{url: address}
		c.answer, c.err = r.fetchCard(ctx, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.err == nil {
			c.err = c.parse()
		}
		r.cards = append(r.cards, c)
	}
	r.choose()
	r.loaded = true
	return nil
}

// choose leaves out the cards that nothing is checked of, if there are more than two.
func (r *run) choose() {
	if len(r.cards) <= 2 {
		return
	}
	all := r.cards
	r.cards = nil
	var had [2]bool
	for _, c := range all {
		kind := 0
		if c.delegated {
			kind = 1
		}
		switch {
		case c.err != nil: // card-served tells
		case had[kind]:
			r.leftOut = append(r.leftOut, c)
			continue
		default:
			had[kind] = true
		}
		r.cards = append(r.cards, c)
	}
}

// brand is what is said to a card's brand.
func (r *run) brand(c *card) Brand {
	if b, ok := r.cfg.Brands[c.url]; ok {
		return b
	}
	var b Brand
	var of, all []string // how the brands close whose scopes the card has, and all
	scopes := c.scopeIDs()
	for _, address := range slices.Sorted(maps.Keys(r.cfg.Brands)) {
		other := r.cfg.Brands[address]
		asks := slices.DeleteFunc(slices.Clone(other.Asks), func(a Ask) bool { return !slices.Contains(scopes, a.Scope) })
		if b.Asks = append(b.Asks, asks...); len(asks) > 0 {
			of = append(of, other.Closes)
		}
		all = append(all, other.Closes)
	}
	if len(of) == 0 {
		of = all
	}
	if of = slices.Compact(of); len(of) == 1 {
		b.Closes = of[0]
	}
	return b
}

// askable is a *ConfigError if a message was given for a scope that no card has.
func (r *run) askable(ctx context.Context) error {
	if len(r.cfg.Asks) == 0 {
		return nil
	}
	if err := r.load(ctx); err != nil {
		return fmt.Errorf("conformance: %w", err)
	}
	r.answered(true) // as far as the checks know: card-served tells
	known := map[string]bool{}
	for _, c := range slices.Concat(r.cards, r.leftOut) {
		if c.err != nil {
			return nil // nobody knows
		}
		for _, id := range c.scopeIDs() {
			known[id] = true
		}
	}
	for _, ask := range r.cfg.Asks {
		if len(known) > 0 && !known[ask.Scope] { // none: card-delegation tells
			return &ConfigError{"Asks", fmt.Sprintf("no card has the scope %q: they have %s", ask.Scope, listed(slices.Sorted(maps.Keys(known))))}
		}
	}
	return nil
}

// maxRedirects is how many redirects an agent follows to a card.
const maxRedirects = 10

// redirectError: a card's redirects lead where no agent follows.
type redirectError struct{ reason string }

func (e *redirectError) Error() string { return e.reason }

func redirected(format string, args ...any) error {
	return &redirectError{fmt.Sprintf(format, args...)}
}

// fetchCard follows the redirects from a card's URL, as long as they may be followed.
func (r *run) fetchCard(ctx context.Context, c *card) (*answer, error) {
	for address := c.url; c.hops <= maxRedirects; c.hops++ {
		a, err := r.do(ctx, call{method: http.MethodGet, url: address})
		if err != nil || a.status < 300 || a.status > 399 || a.status == http.StatusNotModified {
			return a, err
		}
		location := a.header.Get("Location")
		base, err := url.Parse(address)
		if err != nil {
			return nil, redirected("the card's URL does not parse")
		}
		next, err := base.Parse(location)
		if location == "" || err != nil {
			return nil, redirected("%s: %d without a Location to follow", a.asked, a.status)
		}
		address = next.String()
		if reason := r.refuseURL(address); reason != "" {
			return nil, redirected("%s: %d to a URL that %s", a.asked, a.status, reason)
		}
	}
	return nil, redirected("GET %s: more than %d redirects", r.short(c.url), maxRedirects)
}

// refuseURL says why an agent does not use a URL that a Provider names; empty if it
// does.
func (r *run) refuseURL(raw string) string {
	if strings.Contains(raw, "#") {
		return "has a fragment"
	}
	return person.RefuseURL(raw, r.cfg.Development)
}

// parse reads what the run needs of a card, as far as it is there.
func (c *card) parse() error {
	if c.answer.status != http.StatusOK {
		return c.answer.not("200 with a card")
	}
	var members map[string]jsontext.Value
	if err := c.answer.object(&members); err != nil {
		return err
	}
	c.wrong = c.raw.read(members)
	if c.raw.Name != nil {
		c.name = *c.raw.Name
	}
	for _, i := range c.raw.Interfaces {
		if i.Binding != "HTTP+JSON" || i.Version != "1.0" {
			continue
		}
		if c.interfaceURL == "" {
			c.interfaceURL = i.URL
		}
		c.ambiguous = c.ambiguous || i.URL != c.interfaceURL
	}
	for name, s := range c.raw.Schemes {
		if s.OAuth == nil || s.OAuth.Flows.DeviceCode == nil {
			continue
		}
		flow := s.OAuth.Flows.DeviceCode
		c.delegated, c.oauthScheme = true, name
		c.deviceURL, c.tokenURL, c.refreshURL, c.metadataURL = flow.Device, flow.Token, flow.Refresh, s.OAuth.Metadata
		if c.refreshURL == "" {
			c.refreshURL = c.tokenURL
		}
		c.scopesJSON, c.scopes = flow.Scopes, orderedScopes(flow.Scopes)
	}
	return nil
}

// orderedScopes reads a card's scopes in their order.
func orderedScopes(raw jsontext.Value) []Scope {
	var texts map[string]string
	if json.Unmarshal(raw, &texts) != nil {
		return nil
	}
	var scopes []Scope
	for d := jsontext.NewDecoder(strings.NewReader(string(raw))); ; {
		t, err := d.ReadToken()
		if err != nil {
			return scopes
		}
		if t.Kind() == '"' && d.StackDepth() == 1 {
			if _, n := d.StackIndex(1); n%2 == 1 { // a member's name
				scopes = append(scopes, Scope{t.String(), texts[t.String()]})
			}
		}
	}
}

// usable tells whether a card has an interface URL that an agent would call.
func (r *run) usable(c *card) bool { return r.refuseURL(c.interfaceURL) == "" }

// identity is the card that the Identity checks run with: one without delegation if
// there is one.
func (r *run) identity(ctx context.Context) (*card, error) {
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	var found *card
	for _, c := range r.cards {
		if r.usable(c) && (found == nil || found.delegated && !c.delegated) {
			found = c
		}
	}
	if found == nil {
		return nil, notRun("no card with an interface URL was had: see card-served and card-interface")
	}
	return found, nil
}

// delegated is the card that the Delegated checks run with.
func (r *run) delegated(ctx context.Context) (*card, error) {
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	had := false
	for _, c := range r.cards {
		if c.delegated && r.usable(c) {
			if r.refuseURL(c.deviceURL)+r.refuseURL(c.tokenURL)+r.refuseURL(c.metadataURL) != "" || len(c.scopes) == 0 {
				return nil, notRun("the card's delegation is not complete: see card-delegation and card-origins")
			}
			return c, nil
		}
		had = had || r.usable(c)
	}
	if !had {
		return nil, notRun("no card with an interface URL was had: see card-served and card-interface")
	}
	return nil, notRun("no card with delegation was given")
}

// offersDelegation is the card with delegation, however complete.
func (r *run) offersDelegation(ctx context.Context) (*card, error) {
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	for _, c := range r.cards {
		if c.delegated {
			return c, nil
		}
	}
	return nil, notRun("no card with delegation was had")
}
