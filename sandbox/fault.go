package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2"
)

// Fault is a way in which the sandbox breaks the protocol or fails on demand, so
// that one can see what a personal agent, or a suite, makes of it. See
// [Sandbox.SetFaults].
type Fault struct {
	// Name is what is said to switch it on: NAME, or NAME=ARG if it takes one.
	Name string `json:"name"`
	// About is what happens, in a few words. It names the ARG in capitals, with the
	// default in brackets behind it. "(allowed)" at its end says that the protocol
	// allows it.
	About string `json:"about"`
	// Value says what ARG is: empty if the fault takes none, words between "|" if
	// it is one of them. SECONDS are whole seconds of the wall clock, whatever
	// [Params.Scaled] did to other times.
	Value string `json:"-"`
	// Default is what ARG is if it is left out. Empty: it depends on the brand or
	// the turn, as About says.
	Default string `json:"-"`
}

// Faults are all of them, in the order of the protocol: card, metadata, keys,
// sign-in, token, message, step-up, receipt; then those that leave a rule out
// (lax-) or add one (strict-), and the others of a Provider that is not careful.
func Faults() []Fault { return slices.Clone(allFaults) }

var allFaults = slices.Concat(faultTable, laxFaults)

// FaultHeader names, in a request, faults for this request alone, if
// [Config.FaultHeader] allows it: one spec in each, as [Sandbox.SetFaults] takes
// them. They go before those that are on for all.
const FaultHeader = "X-Sandbox-Fault"

// What ARG can be.
const (
	valueURL       = "URL" // absolute
	valueURI       = "URI" // whatever it is
	valueText      = "TEXT"
	valueMember    = "MEMBER" // of a JSON object
	valueType      = "TYPE"   // of a body
	valueCode      = "CODE"   // of OAuth
	valueScope     = "SCOPE"
	valueScopeText = "SCOPE:TEXT"
	valueSeconds   = "SECONDS"
	valueBytes     = "BYTES"
	valueStatus    = "STATUS"
	valueRedirect  = "301|302|303|307|308|http|internal|javascript|loop|many|no-location|userinfo"
)

// elsewhereOrigin is an origin that nobody has (RFC 2606).
const elsewhereOrigin = "https://elsewhere.example"

// maxFaultNumber bounds counts, seconds and bytes.
const maxFaultNumber = 1_000_000

// activeFault is a fault that is on.
type activeFault struct {
	name, value string // value is the default if none was said
	hasValue    bool
	left        int // how often it still applies; negative: always
}

// String is the spec of what is left.
func (f activeFault) String() string {
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
func parseFault(spec string) (activeFault, error) {
	f := activeFault{left: -1}
	if !utf8.ValidString(spec) {
		return f, errors.New("it is not UTF-8")
	}
	rest := spec
	if at := count.FindStringSubmatchIndex(spec); at != nil {
		n, err := strconv.Atoi(spec[at[2]:at[3]])
		if err != nil || n < 1 || n > maxFaultNumber {
			return f, fmt.Errorf("the count must be *1 to *%d", maxFaultNumber)
		}
		f.left, rest = n, spec[:at[0]]
	}
	f.name, f.value, f.hasValue = strings.Cut(rest, "=")
	i := slices.IndexFunc(allFaults, func(known Fault) bool { return known.Name == f.name })
	if i < 0 {
		return f, unknownFault(f.name)
	}
	if !f.hasValue {
		f.value = allFaults[i].Default
		return f, nil
	}
	return f, checkValue(allFaults[i], f.value)
}

// unknownFault says which names were near: one that is a typing mistake away, or those
// of its family.
func unknownFault(name string) error {
	family, _, _ := strings.Cut(name, "-")
	var near, typed []string
	for _, f := range allFaults {
		if distance(strings.ToLower(name), f.Name) <= min(2, len(f.Name)/2) {
			typed = append(typed, f.Name)
		}
		if family != "" && (f.Name == family || strings.HasPrefix(f.Name, family+"-")) {
			near = append(near, f.Name)
		}
	}
	switch {
	case typed != nil:
		return fmt.Errorf("there is no such fault; did you mean %s?", strings.Join(typed, " or "))
	case near != nil:
		return fmt.Errorf("there is no such fault; near it are %s", strings.Join(near, ", "))
	}
	return errors.New("there is no such fault; pactctl sandbox faults shows all")
}

// checkValue checks the ARG of a fault, where one was said.
func checkValue(f Fault, value string) error {
	switch {
	case f.Value == "":
		return fmt.Errorf("it takes no ARG; write %s", f.Name)
	case value == "":
		return fmt.Errorf("its ARG is empty; write %s=%s, or %s alone", f.Name, f.Value, f.Name)
	}
	number, err := strconv.Atoi(value)
	digits := err == nil && strconv.Itoa(number) == value
	switch f.Value {
	case valueSeconds, valueBytes:
		if !digits || number < 0 || number > maxFaultNumber {
			return fmt.Errorf("%s must be 0 to %d", f.Value, maxFaultNumber)
		}
	case valueStatus:
		if !digits || number < 200 || number > 599 {
			return errors.New("STATUS must be 200 to 599")
		}
	case valueScope, valueCode:
		if !scopeID.MatchString(value) {
			return fmt.Errorf("%s must be printable ASCII without spaces, quotes and backslashes", f.Value)
		}
	case valueScopeText:
		if id, text, ok := strings.Cut(value, ":"); !ok || id == "" || text == "" {
			return fmt.Errorf("write %s=SCOPE:TEXT", f.Name)
		}
	case valueURL:
		if u, err := url.Parse(value); err != nil || u.Scheme == "" || u.Host == "" {
			return errors.New("URL must be absolute, such as " + elsewhereOrigin)
		}
	case valueType:
		if mediaType(value) == "" {
			return errors.New("TYPE must be a media type, such as text/html")
		}
	}
	if words := strings.Split(f.Value, "|"); len(words) > 1 && !slices.Contains(words, value) {
		return fmt.Errorf("ARG must be one of %s", strings.Join(words, ", "))
	}
	return nil
}

// faults are those that are on: for all, and in a request's context for that
// request.
type faults struct {
	mu   sync.Mutex
	list []*activeFault
	seen *lru.Cache[string, struct{}] // hashes of PA-JWTs, while replay-401 is on

	links   *lru.Cache[party, string]     // of the first step-ups, while step-up-stale is on
	replies *lru.Cache[party, outMessage] // the last ones
}

// faultsKey is the key of a request's own *faults in its context.
type faultsKey struct{}

// sets are the faults that count: the request's own, then those for all.
func (f *faults) sets(ctx context.Context) []*faults {
	if own, ok := ctx.Value(faultsKey{}).(*faults); ok {
		return []*faults{own, f}
	}
	return []*faults{f}
}

// set replaces what is on for all.
func (f *faults) set(list []*activeFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.seen, f.links = list, nil, nil
}

// take uses a fault once, if it is on, and returns its ARG, or the default.
func (f *faults) take(ctx context.Context, name string) (value string, on bool) {
	for _, set := range f.sets(ctx) {
		if value, on = set.use(name); on {
			return value, true
		}
	}
	return "", false
}

func (f *faults) use(name string) (value string, on bool) {
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

// hit takes a fault whose ARG does not matter. One that lets pass what must be refused
// is asked for where the rule would refuse, and only there.
func (f *faults) hit(ctx context.Context, name string) bool {
	_, on := f.take(ctx, name)
	return on
}

// number takes a fault whose ARG is a number.
func (f *faults) number(ctx context.Context, name string) (n int, on bool) {
	v, on := f.take(ctx, name)
	n, _ = strconv.Atoi(v) // checkValue did
	return n, on
}

// announced is the ARG of a fault, a number, without using it.
func (f *faults) announced(ctx context.Context, name string) (n int, on bool) {
	for _, set := range f.sets(ctx) {
		set.mu.Lock()
		for _, x := range set.list {
			if x.name == name && x.left != 0 && !on {
				n, _ = strconv.Atoi(x.value) // checkValue did
				on = true
			}
		}
		set.mu.Unlock()
	}
	return n, on
}

// on tells, without using it, whether a fault is on whose name begins so.
func (f *faults) on(ctx context.Context, prefix string) bool {
	return slices.ContainsFunc(f.sets(ctx), func(set *faults) bool {
		set.mu.Lock()
		defer set.mu.Unlock()
		return slices.ContainsFunc(set.list, func(x *activeFault) bool { return x.left != 0 && strings.HasPrefix(x.name, prefix) })
	})
}

// active are the specs of what is on for all and not used up.
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

// replayed tells whether a PA-JWT came before, since faults were set last.
func (f *faults) replayed(token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen, _ = lru.New[string, struct{}](limitedKeys) // fails only for a size under one
	}
	before, _ := f.seen.ContainsOrAdd(hashOf(token), struct{}{})
	return before
}

// replyBefore keeps a reply, and returns the one that the party got before.
func (f *faults) replyBefore(p party, reply outMessage) (before outMessage, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.replies == nil {
		f.replies, _ = lru.New[party, outMessage](limitedReplies) // fails only for a size under one
	}
	before, ok = f.replies.Get(p)
	f.replies.Add(p, reply)
	return before, ok
}

// limitedReplies is how many parties' last replies are kept.
const limitedReplies = 1024

// firstLink is the first link that a party was given since faults were set last;
// again is false if it is this one.
func (f *faults) firstLink(p party, link string) (first string, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.links == nil {
		f.links, _ = lru.New[party, string](limitedKeys) // fails only for a size under one
	}
	if first, again, _ = f.links.PeekOrAdd(p, link); !again {
		first = link
	}
	return first, again
}

// SetFaults makes the sandbox do wrong as the specs say, at once and in place of
// what was on before; without any it does right again. A spec is "name" or
// "name=ARG" of [Faults]; "*N" behind it lets it happen the next N times only. The
// error names the spec that cannot be and what to write; nothing has changed then.
// It is safe for concurrent use.
func (s *Sandbox) SetFaults(specs ...string) error {
	list, err := s.parseFaults(specs)
	if err != nil {
		return err
	}
	s.faults.set(list)
	return nil
}

func (s *Sandbox) parseFaults(specs []string) ([]*activeFault, error) {
	list, names := []*activeFault{}, map[string]bool{}
	for _, spec := range specs {
		f, err := parseFault(spec)
		if err == nil && names[f.name] {
			err = errors.New("it is there twice; keep one")
		}
		if err == nil && f.name == "card-scope-text" && f.hasValue {
			if _, _, ok := s.scopeText(f.value); !ok {
				err = errors.New("no card here has that scope")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("sandbox: fault %q: %w", spec, err)
		}
		names[f.name] = true
		list = append(list, &f)
	}
	return list, nil
}

// withFaults gives a request the faults that its header names, if that is
// switched on. A header that cannot be is answered: then ok is false.
func (s *Sandbox) withFaults(w http.ResponseWriter, r *http.Request) (_ *http.Request, ok bool) {
	specs := r.Header.Values(FaultHeader)
	if !s.faultHeader || len(specs) == 0 {
		return r, true
	}
	list, err := s.parseFaults(specs)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, typeJSON, oauthFail("invalid_spec", err.Error()))
		return r, false
	}
	return r.WithContext(context.WithValue(r.Context(), faultsKey{}, &faults{list: list})), true
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

// another is the SCOPE that a fault was told, else one of the brand's that is not
// among those, else one that no brand has.
func (b *business) another(told string, among []string) string {
	if told != "" {
		return told
	}
	for _, id := range b.scopeIDs() {
		if !slices.Contains(among, id) {
			return id
		}
	}
	return strangeScope
}
