package sandbox

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2"
)

// Misbehaviour is a switch that makes the sandbox break the protocol or fail, so
// that one can see what a personal agent makes of it.
type Misbehaviour struct {
	// Name is what [Sandbox.Misbehave] takes.
	Name string `json:"name"`
	// Value says what follows the "=": empty for a switch that takes nothing, in
	// brackets if it can be left out. SECONDS are whole seconds of the wall clock,
	// whatever [Params.Scaled] did to other times.
	Value string `json:"value,omitempty"`
	// Does is what happens, in one line.
	Does string `json:"does"`
}

// Misbehaviours are all switches, in the order of the protocol: card, metadata,
// sign-in, token, message, step-up, receipt, keys.
func Misbehaviours() []Misbehaviour { return slices.Clone(misbehaviours) }

// What can follow the "=" of a switch.
const (
	valueOrigin    = "[URL]"
	valueURI       = "URI"
	valueText      = "TEXT"
	valueCode      = "CODE"
	valueScope     = "SCOPE"
	valueSomeScope = "[SCOPE]"
	valueScopeText = "SCOPE:TEXT"
	valueSeconds   = "SECONDS"
	valueStatus    = "STATUS"
)

// misbehaviours is the table of switches. What each does is where its name is taken.
var misbehaviours = []Misbehaviour{
	{"card-token-origin", valueOrigin, "the card's tokenUrl is on another origin"},
	{"card-device-origin", valueOrigin, "the card's deviceAuthorizationUrl is on another origin"},
	{"card-scope-text", valueScopeText, "the card describes that permission with TEXT"},
	{"card-name", valueText, "the card names the business TEXT"},
	{"card-second-scheme", "", "the card lists a second bearer-JWT scheme, for the same token"},
	{"card-no-provider", "", "the card has no provider"},
	{"card-malformed", "", "the card is cut off in the middle"},
	{"card-max-age", valueSeconds, "the card may be kept that long"},
	{"card-no-store", "", "the card may not be kept"},

	{"metadata-jwks-origin", valueOrigin, "jwks_uri of the OAuth metadata is on another origin"},
	{"metadata-issuer-origin", valueOrigin, "issuer of the OAuth metadata is on another origin"},
	{"metadata-token-slash", "", "token_endpoint of the OAuth metadata ends in a slash"},
	{"metadata-status", valueStatus, "the OAuth metadata is answered with that status and no body"},

	{"device-uri", valueURI, "verification_uri is URI as it is, such as javascript:alert(1)"},
	{"device-complete-uri", valueURI, "verification_uri_complete is URI as it is"},
	{"device-no-complete", "", "there is no verification_uri_complete"},
	{"device-interval", valueSeconds, "that interval is announced, and no poll is too early"},
	{"device-expires", valueSeconds, "that expires_in is announced; the code itself lives on"},
	{"device-429", valueSeconds, "a sign-in start is answered 429 with that Retry-After"},
	{"device-error", valueCode, "a sign-in start is answered with that OAuth error"},

	{"poll-slow-down", "", "a poll is answered slow_down"},
	{"poll-429", valueSeconds, "a poll is answered 429 with that Retry-After"},
	{"poll-status", valueStatus, "a poll is answered with that status and server_error"},
	{"poll-pending", "", "a poll is answered authorization_pending, also after the user decided"},
	{"poll-error", valueCode, "a poll is answered with that OAuth error"},

	{"grant-aud", valueText, "the delegation token, also a refreshed one, has that aud"},
	{"grant-client-id", valueText, "the delegation token has that client_id"},
	{"grant-iss", valueText, "the delegation token has that iss"},
	{"grant-scope", "", "the delegation token has other scopes than the answer that brings it"},
	{"grant-signature", "", "one bit of the delegation token's signature is wrong"},
	{"grant-extra", valueScope, "a sign-in gives a scope that was not asked for"},
	{"access-ttl", valueSeconds, "the delegation token lives that long"},
	{"refresh-narrow", valueScope, "a refresh drops that scope"},
	{"refresh-wide", valueScope, "a refresh adds that scope"},
	{"refresh-keep", "", "a refresh brings no new refresh token, and the old one stays good"},
	{"refresh-error", valueCode, "a refresh is answered with that OAuth error"},

	{"identity-401", "", "a good PA-JWT is refused"},
	{"replay-401", "", "a PA-JWT is refused when it comes a second time"},
	{"delegation-401", "", "a good delegation token is refused"},

	{"drop-before", "", "a message is read, nothing runs, and the connection closes"},
	{"status", valueStatus, "a message is answered with that status and no body; nothing runs"},
	{"too-many", valueSeconds, "a message is answered 429 with that Retry-After; nothing runs"},
	{"still-running", "", "the reply says that the work still runs and asks for another message; nothing runs"},
	{"no-reply", "", "a message runs once, its reply is stored, and the answer is that there is none yet"},
	{"drop-after", "", "a message runs, its reply is stored, and the connection closes"},
	{"slow", valueSeconds, "the answer to a message comes that much later"},
	{"envelope-bare", "", "an A2A error has no details, and so no reason"},
	{"reply-role-user", "", "the reply's role is ROLE_USER; the stored reply is right"},
	{"reply-context", "", "the answer is in another contextId; the stored reply is right"},
	{"reply-no-context", "", "the answer has no contextId; the stored reply is right"},
	{"reply-json", "", "the answer is application/json instead of application/a2a+json"},
	{"reply-garbage", "", "the answer is not JSON; the stored reply is right"},

	{"step-up-first", valueSomeScope, "a turn without delegation is asked for that scope, else the card's first"},
	{"step-up-no-message-id", "", "the message of a step-up has no messageId"},
	{"step-up-no-link", "", "a step-up has no link"},
	{"step-up-link", valueURI, "a step-up's link is URI as it is"},
	{"step-up-more", valueScope, "a step-up misses that scope too"},
	{"step-up-again", "", "a turn is asked for what it was asked for before, although it has it"},

	{"receipt-bit", "", "one bit of the receipt's signature is wrong"},
	{"receipt-envelope", "", "the claims beside the receipt are not the signed ones"},
	{"receipt-replay", "", "the receipt is the previous one of that user"},
	{"receipt-scope", "", "the receipt uses a scope outside the grant"},
	{"receipt-late", "", "the receipt is dated 6 minutes ahead"},
	{"receipt-unknown-kid", "", "the receipt is signed with a key that is not published"},
	{"receipt-none", "", "there is no receipt"},
	{"receipt-form", "", "the receipt lacks its ts"},
	{"receipt-grant", "", "the receipt is about another grant"},
	{"receipt-user", "", "the receipt is about another user"},
	{"receipt-no-claims", "", "the receipt comes without the claims beside it"},
	{"jwks-down", "", "the brand's JWKS is answered 503"},
}

// maxSwitch bounds counts and seconds.
const maxSwitch = 1_000_000

// fault is a switch that is on.
type fault struct {
	name, value string
	hasValue    bool
	left        int // how often it still applies; negative: always
}

// String is the spec of what is left.
func (f fault) String() string {
	s := f.name
	if f.hasValue {
		s += "=" + f.value
	}
	if f.left >= 0 {
		s += "*" + strconv.Itoa(f.left)
	}
	return s
}

// count is the "*N" at the end of a spec.
var count = regexp.MustCompile(`\*([0-9]+)$`)

// parseFault reads a spec: name, name=value, each with or without *N behind it.
func parseFault(spec string) (fault, error) {
	f := fault{left: -1}
	if !utf8.ValidString(spec) {
		return f, errors.New("it is not UTF-8")
	}
	rest := spec
	if at := count.FindStringSubmatchIndex(spec); at != nil {
		n, err := strconv.Atoi(spec[at[2]:at[3]])
		if err != nil || n < 1 || n > maxSwitch {
			return f, fmt.Errorf("the count must be *1 to *%d", maxSwitch)
		}
		f.left, rest = n, spec[:at[0]]
	}
	f.name, f.value, f.hasValue = strings.Cut(rest, "=")
	i := slices.IndexFunc(misbehaviours, func(m Misbehaviour) bool { return m.Name == f.name })
	if i < 0 {
		return f, unknownSwitch(f.name)
	}
	return f, checkValue(misbehaviours[i], f)
}

// unknownSwitch says which names were near.
func unknownSwitch(name string) error {
	family, _, _ := strings.Cut(name, "-")
	var near []string
	for _, m := range misbehaviours {
		if family != "" && (m.Name == family || strings.HasPrefix(m.Name, family+"-")) {
			near = append(near, m.Name)
		}
	}
	if near == nil {
		return errors.New("there is no such switch; pactctl sandbox misbehave --list shows all")
	}
	return fmt.Errorf("there is no such switch; near it are %s", strings.Join(near, ", "))
}

func checkValue(m Misbehaviour, f fault) error {
	optional := strings.HasPrefix(m.Value, "[")
	switch {
	case m.Value == "" && f.hasValue:
		return fmt.Errorf("it takes no value; write %s", m.Name)
	case m.Value == "":
		return nil
	case !f.hasValue && optional:
		return nil
	case f.value == "":
		return fmt.Errorf("its value is missing; write %s=%s", m.Name, strings.Trim(m.Value, "[]"))
	}
	number, err := strconv.Atoi(f.value)
	digits := err == nil && strconv.Itoa(number) == f.value
	switch m.Value {
	case valueSeconds:
		if !digits || number < 0 || number > maxSwitch {
			return fmt.Errorf("SECONDS must be 0 to %d", maxSwitch)
		}
	case valueStatus:
		if !digits || number < 200 || number > 599 {
			return errors.New("STATUS must be 200 to 599")
		}
	case valueScope, valueSomeScope, valueCode:
		if !scopeID.MatchString(f.value) {
			return fmt.Errorf("%s must be printable ASCII without spaces, quotes and backslashes", strings.Trim(m.Value, "[]"))
		}
	case valueScopeText:
		if id, text, ok := strings.Cut(f.value, ":"); !ok || id == "" || text == "" {
			return fmt.Errorf("write %s=SCOPE:TEXT", m.Name)
		}
	}
	return nil
}

// faults are the switches that are on.
type faults struct {
	mu   sync.Mutex
	list []*fault
	seen *lru.Cache[string, struct{}] // hashes of PA-JWTs, while replay-401 is on
}

// set replaces what is on.
func (f *faults) set(list []*fault) {
	// New fails only for a size under one.
	seen, _ := lru.New[string, struct{}](limitedKeys)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.seen = list, seen
}

// take uses a switch once, if it is on, and returns its value.
func (f *faults) take(name string) (value string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.list {
		if x.name == name && x.left != 0 {
			x.left = max(x.left-1, -1)
			return x.value, true
		}
	}
	return "", false
}

// on tells, without using it, whether a switch is on whose name begins so.
func (f *faults) on(prefix string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.list, func(x *fault) bool { return x.left != 0 && strings.HasPrefix(x.name, prefix) })
}

// number takes a switch whose value is a number.
func (f *faults) number(name string) (n int, on bool) {
	v, on := f.take(name)
	n, _ = strconv.Atoi(v) // checkValue did
	return n, on
}

// active are the specs of what is on and not used up.
func (f *faults) active() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	specs := []string{}
	for _, x := range f.list {
		if x.left != 0 {
			specs = append(specs, x.String())
		}
	}
	return specs
}

// replayed tells whether a PA-JWT came before, since switches were set last.
func (f *faults) replayed(token string) bool {
	f.mu.Lock()
	seen := f.seen
	f.mu.Unlock()
	if seen == nil {
		return false
	}
	before, _ := seen.ContainsOrAdd(hashOf(token), struct{}{})
	return before
}

// Misbehave makes the sandbox misbehave as the specs say, at once and in place of
// what was on before; without any it behaves again. A spec is "name" or
// "name=value" of [Misbehaviours]; "*N" behind it lets it happen the next N times
// only. The error names the spec that cannot be and what to write; nothing has
// changed then. It is safe for concurrent use.
func (s *Sandbox) Misbehave(specs ...string) error {
	list, names := []*fault{}, map[string]bool{}
	for _, spec := range specs {
		f, err := parseFault(spec)
		if err == nil && names[f.name] {
			err = errors.New("it is there twice; keep one")
		}
		if err == nil && f.name == "card-scope-text" {
			if _, _, ok := s.scopeText(f.value); !ok {
				err = errors.New("no card here has that scope")
			}
		}
		if err != nil {
			return fmt.Errorf("sandbox: misbehave: %q: %w", spec, err)
		}
		names[f.name] = true
		list = append(list, &f)
	}
	s.faults.set(list)
	return nil
}

// scopeText splits a SCOPE:TEXT. Scopes hold colons too: the longest that a card
// here has counts.
func (s *Sandbox) scopeText(value string) (id, text string, ok bool) {
	for _, b := range s.brands {
		for _, scope := range b.Scopes {
			if words, found := strings.CutPrefix(value, scope.ID+":"); found && len(scope.ID) > len(id) && words != "" {
				id, text, ok = scope.ID, words, true
			}
		}
	}
	return id, text, ok
}
