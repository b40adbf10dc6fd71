package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

const fromCard = "Agent Card and transport"

var cardChecks = []check{
	{Check{ID: "card-served", Requirement: "a GET by anybody is 200 with one JSON object", Source: fromCard}, insist(checkCardServed)},
	{Check{ID: "card-redirects", Requirement: "redirects are few, by https, and end at a card", Source: fromCard}, checkCardRedirects},
	{Check{ID: "card-unknown-brand", Requirement: "the card of a brand that is not there is 404", Source: fromCard}, checkCardUnknownBrand},
	{Check{ID: "card-fields", Requirement: "every required member is there, of its type", Source: fromCard}, eachCard(checkCardFields)},
	{Check{ID: "card-interface", Requirement: "an interface has HTTP+JSON, 1.0, an absolute URL", Source: fromCard}, eachCard(checkCardInterface)},
	{Check{ID: "card-identity", Requirement: "a requirement names a bearer-JWT scheme alone", Source: fromCard}, eachCard(checkCardIdentity)},
	{Check{ID: "card-capabilities", Requirement: "streaming, push and the extended card are false", Source: fromCard}, eachCard(checkCardCapabilities)},
	{Check{ID: "card-delegation", Requirement: "delegation has URLs, scopes and a requirement", Source: fromCard, Delegated: true}, checkCardDelegation},
	{Check{ID: "card-origins", Requirement: "the OAuth URLs are on the interface's origin", Source: fromCard, Delegated: true}, checkCardOrigins},
}

func checkCardServed(ctx context.Context, r *run) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	var f findings
	for _, c := range r.cards {
		f.add("", c.err)
	}
	if err := f.err(); err != nil {
		return err
	}
	r.sayCards()
	return nil
}

// sayCards notes which card is checked for what.
func (r *run) sayCards() {
	if len(r.cards) < 2 {
		return
	}
	identity, _ := r.identity(context.Background()) // they are loaded
	delegated, _ := r.offersDelegation(context.Background())
	for _, c := range r.cards {
		var as []string
		if c == identity {
			as = append(as, "Identity")
		}
		if c == delegated {
			as = append(as, "Delegated")
		}
		if len(as) == 0 {
			as = append(as, "the card alone")
		}
		r.remark("%s is checked for %s", clip(c.title()), strings.Join(as, " and "))
	}
	if len(r.leftOut) > 0 {
		names := make([]string, len(r.leftOut))
		for i, c := range r.leftOut {
			names[i] = clip(c.title())
		}
		r.remark("left out: %s", strings.Join(names, ", "))
	}
}

// title is the brand's name, or where the card is.
func (c *card) title() string {
	if c.name != "" {
		return c.name
	}
	return c.url
}

// eachCard does a check for every card that there is.
func eachCard(do func(*run, *card) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := r.load(ctx); err != nil {
			return err
		}
		var f findings
		there := 0
		for _, c := range r.cards {
			if c.err != nil {
				continue
			}
			there++
			what := ""
			if len(r.cards) > 1 {
				what = clip(c.title())
			}
			f.add(what, do(r, c))
		}
		if there == 0 {
			return notRun("there is no card: see card-served")
		}
		return f.err()
	}
}

func checkCardRedirects(ctx context.Context, r *run) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	var f findings
	there := false
	for _, c := range r.cards {
		var bad *redirectError
		switch {
		case errors.As(c.err, &bad):
			there = true
			f.add("", c.err)
		case c.err == nil:
			there = true
		}
	}
	if !there {
		return notRun("there is no card: see card-served")
	}
	return f.err()
}

// noBrand stands for a brand that the Provider does not have.
const noBrand = "no-such-brand"

// unknownBrand is the interface URL of a brand that the Provider does not have.
func (c *card) unknownBrand() (string, error) {
	u, err := url.Parse(c.interfaceURL)
	if err != nil || strings.Trim(u.Path, "/") == "" {
		return "", notRun("the interface URL has no brand's id in its path")
	}
	return c.interfaceURL[:strings.LastIndexByte(strings.TrimSuffix(c.interfaceURL, "/"), '/')+1] + noBrand, nil
}

func checkCardUnknownBrand(ctx context.Context, r *run) error {
	c, err := r.identity(ctx)
	if err != nil {
		return err
	}
	nowhere, err := c.unknownBrand()
	if err != nil {
		return err
	}
	a, err := r.do(ctx, call{method: http.MethodGet, url: nowhere + "/.well-known/agent-card.json"})
	if err != nil {
		return err
	}
	return a.wants(http.StatusNotFound)
}

func checkCardFields(_ *run, c *card) error {
	var f findings
	for _, name := range c.wrong {
		f.add("", fmt.Errorf("%s is of another type", name))
	}
	missing := func(name string, there bool) {
		if !there && !slices.Contains(c.wrong, name) {
			f.add("", fmt.Errorf("%s is missing", name))
		}
	}
	raw := &c.raw
	missing("name", filled(raw.Name))
	missing("description", filled(raw.Description))
	missing("version", filled(raw.Version))
	missing("supportedInterfaces", raw.Interfaces != nil)
	missing("capabilities", raw.Capabilities != nil)
	missing("securitySchemes", raw.Schemes != nil)
	missing("securityRequirements", raw.Requirements != nil)
	missing("defaultInputModes", raw.InputModes != nil)
	missing("defaultOutputModes", raw.OutputModes != nil)
	missing("skills", raw.Skills != nil)
	for i, s := range raw.Skills {
		if !filled(s.ID) || !filled(s.Name) || s.Description == nil || s.Tags == nil {
			f.add("", fmt.Errorf("skills[%d]: must have id, name, description and tags", i))
		}
	}
	return f.err()
}

func filled(s *string) bool { return s != nil && strings.TrimSpace(*s) != "" }

func checkCardInterface(r *run, c *card) error {
	if c.interfaceURL == "" {
		return errors.New(`supportedInterfaces: no url with protocolBinding "HTTP+JSON" and protocolVersion "1.0"`)
	}
	if reason := r.refuseURL(c.interfaceURL); reason != "" {
		return fmt.Errorf("supportedInterfaces: the url of HTTP+JSON 1.0 %s", reason)
	}
	if c.ambiguous {
		return errors.New("supportedInterfaces: several urls have HTTP+JSON and 1.0: an agent takes the one that has")
	}
	return nil
}

func checkCardIdentity(_ *run, c *card) error {
	alone, there := false, false
	for name, s := range c.raw.Schemes {
		if !s.identity() {
			continue
		}
		there = true
		for _, q := range c.raw.Requirements {
			_, named := q.Schemes[name]
			alone = alone || named && len(q.Schemes) == 1
		}
	}
	switch {
	case !there:
		return errors.New(`securitySchemes: no httpAuthSecurityScheme with scheme "Bearer" and bearerFormat "JWT"`)
	case !alone:
		return errors.New("securityRequirements: no entry names the bearer-JWT scheme alone")
	}
	return nil
}

func checkCardCapabilities(_ *run, c *card) error {
	if c.raw.Capabilities == nil {
		return notRun("the card has no capabilities: see card-fields")
	}
	var f findings
	for _, m := range []struct {
		name string
		on   bool
	}{
		{"streaming", c.raw.Capabilities.Streaming},
		{"pushNotifications", c.raw.Capabilities.Push},
		{"extendedAgentCard", c.raw.Capabilities.Extended},
	} {
		if m.on {
			f.add("", fmt.Errorf("capabilities.%s is true: must be false", m.name))
		}
	}
	return f.err()
}

func checkCardDelegation(ctx context.Context, r *run) error {
	c, err := r.offersDelegation(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, m := range []struct{ name, value string }{
		{"deviceAuthorizationUrl", c.deviceURL}, {"tokenUrl", c.tokenURL}, {"oauth2MetadataUrl", c.metadataURL},
	} {
		if m.value == "" {
			f.add("", fmt.Errorf("the OAuth scheme has no %s", m.name))
		}
	}
	var texts map[string]string
	if json.Unmarshal(c.scopesJSON, &texts) != nil || len(texts) == 0 {
		f.add("", errors.New("scopes of the deviceCode flow: must be an object of ids with their descriptions"))
	}
	both := false
	for _, q := range c.raw.Requirements {
		_, named := q.Schemes[c.oauthScheme]
		for name, s := range c.raw.Schemes {
			_, with := q.Schemes[name]
			both = both || named && with && s.identity() && len(q.Schemes) == 2
		}
	}
	if !both {
		f.add("", errors.New("securityRequirements: no entry names the bearer-JWT scheme together with the OAuth scheme"))
	}
	return f.err()
}

func checkCardOrigins(ctx context.Context, r *run) error {
	c, err := r.offersDelegation(ctx)
	if err != nil {
		return err
	}
	if c.interfaceURL == "" {
		return notRun("the card has no interface URL: see card-interface")
	}
	var f findings
	for _, m := range []struct{ name, value string }{
		{"deviceAuthorizationUrl", c.deviceURL}, {"tokenUrl", c.tokenURL}, {"refreshUrl", c.refreshURL}, {"oauth2MetadataUrl", c.metadataURL},
	} {
		if m.value == "" {
			continue // card-delegation says so
		}
		if reason := r.refuseURL(m.value); reason != "" {
			f.add("", fmt.Errorf("%s %s", m.name, reason))
		} else if originOf(m.value) != originOf(c.interfaceURL) {
			f.add("", fmt.Errorf("%s is on %s: must be on the interface's origin, %s, where agents send their tokens", m.name, originOf(m.value), originOf(c.interfaceURL)))
		}
	}
	return f.err()
}

// originOf is the origin of a URL, in lower case; empty if it has none.
func originOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return ""
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	return u.Scheme + "://" + host
}
