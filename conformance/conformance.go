// Package conformance is a black-box suite for PACT 1.0 Providers: it plays a
// personal agent, its issuer and its user against a running one and checks what the
// protocol demands of it, Identity and Delegated.
//
// [Run] does the [Checks] one after the other, in the order of the protocol, and
// returns a [Result] for each. What the protocol leaves open is not checked: texts,
// further members and headers, and how long things live are the Provider's.
//
// The suite needs two issuers that the Provider takes; it serves both itself, at
// [Config.Issuers]. It says and asks harmless things, but it does write: it opens
// conversations, and grants that it never uses again. Do not run it against a
// business that is open.
package conformance

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// Config says whom to check and with what. Cards and Audience are required.
type Config struct {
	// Cards are the URLs of Agent Cards of the Provider, at least one. The first that has
	// delegation is checked for Delegated, and the first that has none for Identity; a
	// card that is alone is checked for both, or for Identity only. Of more than two
	// the rest is left out.
	Cards []string
	// Audience is what PA-JWTs for this Provider have as aud.
	Audience string

	// Login is a user who can sign in with the brand that has delegation. Without
	// it what needs a grant is not run. Other is another user; it is needed by few.
	Login, Other Login
	// Asks are messages that need a scope of the card each, for step-ups: one that is
	// answered without its scope fails. By default the scope's own description is said,
	// and proves nothing. Closes is a message that ends a conversation, if there is one.
	Asks   []Ask
	Closes string
	// Brands are the same for the brand of one card, by its URL. Of these, Asks and
	// Closes win. A card of another URL is told the Asks whose scope it has, and how
	// those brands, or all of them, close, if that is one text.
	Brands map[string]Brand

	// Issuers are where the suite serves the issuers of its two agents.
	Issuers [2]Endpoint

	// Slow waits for things to expire for as long as the Provider says they live;
	// else that is done only if it takes less than a minute.
	Slow bool
	// Only are ids or sections of the checks to run; all if empty.
	Only []string
	// Timeout bounds each request; 10 s if zero.
	Timeout time.Duration
	// Development admits http on loopback in what the Provider names, which must be
	// https otherwise. It is implied if all Cards are on loopback.
	Development bool

	// Report gets each result as soon as it is there, if not nil.
	Report func(Result)

	// Now and Sleep are the clock; the real one if nil.
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
}

// Login is what a user signs in with; it prints without the password.
type Login = person.Login

// Ask is a message that a brand cannot answer without a scope.
type Ask struct {
	Scope string `json:"scope"`
	Text  string `json:"text"`
}

// Brand is what is said to one brand.
type Brand struct {
	Asks   []Ask
	Closes string
}

// Endpoint is where one of the suite's issuers listens and how others reach it.
type Endpoint struct {
	// Listen is a host:port; a free port of 127.0.0.1 if empty.
	Listen string
	// URL is the origin under which the Provider reaches it, and so the issuer; http://
	// and the address listened on if empty.
	URL string
}

// ConfigError is a Config that cannot work.
type ConfigError struct {
	Field  string // such as "Audience" or "Issuers[1].URL"
	Reason string // what is wrong with it, and how to mend it
}

func (e *ConfigError) Error() string { return "conformance: " + e.Field + ": " + e.Reason }

// Check is one thing that the protocol demands.
type Check struct {
	ID          string `json:"id"`          // such as "auth-expired"
	Section     string `json:"section"`     // such as "identity"
	Requirement string `json:"requirement"` // what must hold, in one sentence
	Source      string `json:"source"`      // where the protocol says so
	// Delegated checks are of the profile Delegated, others of Identity.
	Delegated bool `json:"delegated"`
	// Slow checks wait until something expires; see [Config.Slow].
	Slow bool `json:"slow"`
}

// Status is how a check ended.
type Status string

// The ways in which a check ends.
const (
	Passed Status = "passed"
	Failed Status = "failed"
	// NotRun: something that the check needs was not there. It does not speak
	// against the Provider.
	NotRun Status = "not-run"
)

// Result is a check and how it ended.
type Result struct {
	Check
	Status Status `json:"status"`
	// Detail says of a failure what was asked, what came, and what the protocol
	// says; of a check that did not run, why; else it is a remark, mostly empty. It
	// has a line for each finding, and neither tokens nor codes.
	Detail string        `json:"detail"`
	Took   time.Duration `json:"-"`
}

// Section is a part of the protocol.
type Section struct {
	Name  string // as in [Check.Section]
	Title string
}

// section is a Section with its checks.
type section struct {
	Section
	checks []check
}

// check is a Check and how it is done: nil if the requirement is met, an error
// wrapping errNotRun if that cannot be told.
type check struct {
	Check
	do func(context.Context, *run) error
}

// sections are all, in the order of the protocol.
func sections() []section {
	return []section{
		{Section{"card", "Agent Card"}, cardChecks},
		{Section{"identity", "Identity: the PA-JWT"}, identityChecks},
		{Section{"routes", "Routes"}, routeChecks},
		{Section{"messages", "Messages"}, messageChecks},
		{Section{"metadata", "OAuth metadata"}, metadataChecks},
		{Section{"oauth", "OAuth calls"}, oauthChecks},
		{Section{"signin", "Sign-in and consent"}, signinChecks},
		{Section{"token", "Token endpoint"}, tokenChecks},
		{Section{"refresh", "Refresh"}, refreshChecks},
		{Section{"delegation", "Delegated turns"}, delegationChecks},
		{Section{"stepup", "Step-up"}, stepupChecks},
		{Section{"receipts", "Receipts"}, receiptChecks},
	}
}

// delegatedFrom is the first section of the profile Delegated; what follows is too.
const delegatedFrom = "metadata"

// Sections are the parts of the suite, in the order of the protocol.
func Sections() []Section {
	var all []Section
	for _, s := range sections() {
		all = append(all, s.Section)
	}
	return all
}

// Checks are all checks, in the order of the protocol.
func Checks() []Check {
	var all []Check
	for _, c := range everyCheck() {
		all = append(all, c.Check)
	}
	return all
}

func everyCheck() []check {
	var all []check
	delegated := false
	for _, s := range sections() {
		delegated = delegated || s.Name == delegatedFrom
		for _, c := range s.checks {
			c.Section = s.Name
			c.Delegated = c.Delegated || delegated
			all = append(all, c)
		}
	}
	return all
}

// Run does the checks and returns a result for each, in order. What a Provider does
// wrong, or not at all, is in the results. The error is of a Config that cannot work,
// a *[ConfigError], or of a context that ended; results so far come with it.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	selected, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.askable(ctx); err != nil {
		return nil, err
	}
	var results []Result
	for _, c := range selected {
		result := r.result(ctx, c)
		if ctx.Err() != nil {
			return results, fmt.Errorf("conformance: %w", ctx.Err())
		}
		results = append(results, result)
		if cfg.Report != nil {
			cfg.Report(result)
		}
	}
	return results, nil
}

const defaultTimeout = 10 * time.Second

// complete fills in what was left out and selects the checks.
func (cfg *Config) complete() ([]check, error) {
	if len(cfg.Cards) == 0 {
		return nil, &ConfigError{"Cards", "none is given: give the URL of at least one card"}
	}
	local := true
	for _, card := range cfg.Cards {
		u, err := url.Parse(card)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, &ConfigError{"Cards", fmt.Sprintf("%q is not the URL of a card, such as https://brand.example/.well-known/agent-card.json", card)}
		}
		local = local && person.Loopback(u.Hostname())
	}
	cfg.Development = cfg.Development || local
	if cfg.Audience == "" {
		return nil, &ConfigError{"Audience", "it is missing: it is what the Provider gave out to agents' issuers"}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Timeout < 0 {
		return nil, &ConfigError{"Timeout", fmt.Sprintf("%v is not positive", cfg.Timeout)}
	}
	for i, e := range cfg.Issuers {
		if e.URL != "" && !isOrigin(e.URL) {
			return nil, &ConfigError{field(i, "URL"), fmt.Sprintf("%q is not an origin such as https://agent.example, without a path or trailing slash", e.URL)}
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	return choose(cfg.Only)
}

// choose returns the checks of the ids and sections given, all without any.
func choose(only []string) ([]check, error) {
	all := everyCheck()
	if len(only) == 0 {
		return all, nil
	}
	for _, name := range only {
		if !slices.ContainsFunc(all, func(c check) bool { return c.ID == name || c.Section == name }) {
			return nil, &ConfigError{"Only", fmt.Sprintf("there is no check or section %q", name)}
		}
	}
	return slices.DeleteFunc(all, func(c check) bool {
		return !slices.Contains(only, c.ID) && !slices.Contains(only, c.Section)
	}), nil
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isOrigin tells whether a URL is a bare origin.
func isOrigin(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && raw == u.Scheme+"://"+u.Host
}

// field names a field of an issuer's endpoint.
func field(issuer int, name string) string { return fmt.Sprintf("Issuers[%d].%s", issuer, name) }

// listen opens the endpoint of issuer number n and returns the origin under which it is
// reached.
func (e Endpoint) listen(n int) (net.Listener, string, error) {
	address := e.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, "", &ConfigError{field(n, "Listen"), err.Error()}
	}
	origin := e.URL
	if origin == "" {
		if addr, ok := l.Addr().(*net.TCPAddr); ok && addr.IP.IsUnspecified() {
			_ = l.Close()
			return nil, "", &ConfigError{field(n, "URL"), fmt.Sprintf("it is missing: %q, which is listened on, names no host", e.Listen)}
		}
		origin = "http://" + l.Addr().String()
	}
	return l, origin, nil
}
