package agent

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// minWithheld is the length from which a sign-in's code is looked for in what a
// business says: a shorter one would be found in any text.
const minWithheld = 4

// Withholder returns what takes the links and codes of the principal's sign-ins that
// wait now out of a text of a business (its id), however they are written: in other
// case, with separators or invisible characters between their letters. Those of another
// business's sign-ins it takes out in their exact form alone, for what one business
// picks as a code is a word of others. Of a text from nobody knows whom (business is
// empty) all go. A text without any is returned as it is. What a business says of itself
// or in a reply passes through it before a task, or a token that may not sign in, is
// told (DA-15). If there is an error, they must be told nothing.
func (a *Agent) Withholder(ctx context.Context, c Caller) (func(business, text string) string, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w, err := a.waitingSignIns(ctx, c.Principal)
	if err != nil {
		return nil, err
	}
	return w.hide, nil
}

func (a *Agent) waitingSignIns(ctx context.Context, principal string) (w signIns, err error) {
	err = a.store.View(ctx, func(tx Tx) error {
		w, err = a.signInSecrets(tx, principal)
		return err
	})
	if err != nil {
		return w, fmt.Errorf("read the sign-ins that wait: %w", err)
	}
	return w, nil
}

// withhold takes the links and codes of a business's own pending sign-ins out of what
// it answers, before anything keeps or shows it, and the characters that nobody sees.
// The business knows them, and a model that reads its words must not (DA-15). Those of
// others are held back when the answer is told.
func (a *Agent) withhold(reply *Reply, principal, business string) {
	var hide func(string) string
	if w, err := a.waitingSignIns(context.Background(), principal); err == nil {
		hide = w.of(business).hide
	} else {
		hide = func(text string) string {
			if text != "" {
				return Redacted
			}
			return ""
		}
	}
	m, s := &reply.Message, &reply.StepUp
	for _, text := range []*string{&m.Text, &m.MessageID, &s.Text, &s.TaskID, &reply.ErrorText, &reply.ErrorReason} {
		*text = Visible(hide(*text))
	}
	s.MissingScopes = slices.Clone(s.MissingScopes)
	for i := range s.MissingScopes {
		s.MissingScopes[i] = hide(s.MissingScopes[i])
	}
	for _, id := range []*string{&m.ContextID, &s.ContextID} { // one that is changed is none (CV-7)
		if *id != hide(*id) {
			*id = ""
		}
	}
}

// withholdClaims does the same to what is shown of a receipt.
func (a *Agent) withholdClaims(tx Tx, r *receipt, s *receiptSecret) error {
	all, err := a.signInSecrets(tx, r.Principal)
	if err != nil {
		return err
	}
	w := all.of(r.Business)
	s.rewrite(func(text string) string { return Visible(w.hide(text)) })
	return nil
}

// rewrite changes all that a business says in a receipt.
func (s *receiptSecret) rewrite(hide func(text string) string) {
	s.Actions, s.ScopesUsed, s.Problems = slices.Clone(s.Actions), slices.Clone(s.ScopesUsed), slices.Clone(s.Problems)
	for i := range s.Actions {
		s.Actions[i] = Action{hide(s.Actions[i].Tool), hide(s.Actions[i].ArgsHash)}
	}
	for i := range s.ScopesUsed {
		s.ScopesUsed[i] = hide(s.ScopesUsed[i])
	}
	for i := range s.Problems {
		s.Problems[i].Detail = hide(s.Problems[i].Detail)
	}
}

// signIns are what belongs to a principal's pending sign-ins.
type signIns struct {
	waiting []signInSecret
	homes   map[string]string // origin of each business, by id
}

// signInSecret is what belongs to one of them.
type signInSecret struct {
	business string
	withheld withheld
	exact    []exactly
}

// signInSecrets reads them.
func (a *Agent) signInSecrets(tx Tx, principal string) (w signIns, err error) {
	pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
	if err != nil || len(pending) == 0 {
		return signIns{}, err
	}
	businesses, err := find[business](tx, Query{Principal: principal})
	if err != nil {
		return signIns{}, err
	}
	w.homes = map[string]string{}
	for _, b := range businesses {
		w.homes[b.ID] = or(b.Card.Origin, originOf(b.Key))
	}
	for _, z := range pending {
		var s authorizationSecret
		if err := a.box.get(tx, z.ID, authorizationPurpose(z), &s); errors.Is(err, errSecretLost) {
			continue
		} else if err != nil {
			return signIns{}, err
		}
		w.waiting = append(w.waiting, secretOf(z.Business, w.homes[z.Business], s))
	}
	return w, nil
}

func secretOf(business, home string, s authorizationSecret) signInSecret {
	z := signInSecret{business: business}
	z.withheld.home = hostOf(home)
	z.withheld.link(s.VerificationURIComplete, false)
	z.withheld.link(s.VerificationURI, true)
	z.withheld.code(s.DeviceCode)
	z.withheld.code(s.UserCode)
	for _, link := range []string{s.VerificationURIComplete, s.VerificationURI} {
		if u, err := url.Parse(link); err == nil && u.Host != "" && originOf(link) != strings.TrimSuffix(link, "/") {
			z.exact = append(z.exact, exactly{link, hostOf(link)})
		}
	}
	code := func(text string, counts bool) {
		if counts && !strings.ContainsFunc(text, unicode.IsSpace) {
			z.exact = append(z.exact, exactly{text: text})
		}
	}
	code(s.DeviceCode, utf8.RuneCountInString(s.DeviceCode) >= minDeviceCode)
	code(s.UserCode, utf8.RuneCountInString(project(s.UserCode, inCode).chars) >= minWord && !strings.ContainsFunc(s.UserCode, unicode.IsLower))
	return z
}

// of is what belongs to the sign-ins at a business, which is at one origin under
// whatever ids; of all, if it is empty.
func (w signIns) of(business string) (own withheld) {
	for _, z := range w.waiting {
		if business == "" || w.same(z.business, business) {
			own.add(z.withheld)
		}
	}
	return own
}

func (w signIns) same(a, b string) bool {
	return a == b || w.homes[a] != "" && w.homes[a] == w.homes[b]
}

func (w signIns) hide(business, text string) string {
	if len(w.waiting) == 0 || text == "" {
		return text
	}
	text = w.of(business).hide(text)
	if business == "" {
		return text
	}
	home := hostOf(w.homes[business])
	for _, z := range w.waiting {
		if w.same(z.business, business) {
			continue
		}
		for _, e := range z.exact {
			if e.host == "" || e.host != home { // its own address is not another's to hide
				text = e.hide(text)
			}
		}
	}
	return text
}

// From these lengths on a user code and a device code are no word of anybody else's.
const (
	minWord       = 6
	minDeviceCode = 16
)

// exactly is a link or a code as it is written; host is a link's.
type exactly struct{ text, host string }

// hide replaces it where it stands by itself.
func (e exactly) hide(text string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, e.text)
		if !found {
			break
		}
		last, _ := utf8.DecodeLastRuneInString(before)
		next, _ := utf8.DecodeRuneInString(after)
		out.WriteString(before)
		if inCode(last) || inCode(next) {
			out.WriteString(e.text)
		} else {
			out.WriteString(Redacted)
		}
		text = after
	}
	out.WriteString(text)
	return out.String()
}

// withheld is what is taken out of the texts of a business. Of a code its letters and
// digits count, of a link what it leads to, whatever its spelling, and all of it that is
// no space.
type withheld struct {
	home                string // host of the business
	links, codes, short []hidden
	places              []target
}

// hidden is one spelling of a link or a code, folded.
type hidden struct {
	text  string
	whole bool // no letter or digit of an URL follows it: else it is another link
}

func (w *withheld) add(other withheld) {
	w.links, w.codes, w.short = append(w.links, other.links...), append(w.codes, other.codes...), append(w.short, other.short...)
	w.places = append(w.places, other.places...)
}

// link adds a link, with or without its scheme, and what is secret in it by itself.
// The bare origin of the business is none: where it is, is no secret.
func (w *withheld) link(raw string, whole bool) {
	if len(raw) < minWithheld {
		return
	}
	u, err := url.Parse(raw)
	if err == nil && u.Host != "" {
		at := target{hostOf(raw), cleanPath(fold(unescaped(u.EscapedPath()))), fold(or(u.RawQuery, u.Fragment))}
		if at.path == "" && at.query == "" && at.host == w.home {
			return
		}
		if at.path != "" || at.host != w.home {
			at.query = "" // whatever the query, it is where the sign-in is
		}
		if !slices.Contains(w.places, at) {
			w.places = append(w.places, at)
		}
		for _, part := range secretParts(u, w.home) {
			w.spell(&w.codes, part, false)
		}
		if strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" {
			return // the host has links of other kinds, too
		}
	}
	_, bare, _ := strings.Cut(raw, "://")
	for _, form := range []string{raw, bare, unescaped(raw), unescaped(bare)} {
		w.spell(&w.links, project(form, inLink).chars, whole)
	}
}

func (w *withheld) code(raw string) {
	c := project(raw, inCode).chars
	switch n := utf8.RuneCountInString(c); {
	case n >= 6:
		w.spell(&w.codes, c, false)
	case n >= minWithheld: // "12.34" is no 1234
		w.spell(&w.short, c, false)
		w.spell(&w.short, project(raw, inShortCode).chars, false) // nor AB.CD only ABCD
	default: // hardly a letter in it
		w.spell(&w.links, project(raw, inLink).chars, false)
	}
}

func (w *withheld) spell(to *[]hidden, text string, whole bool) {
	h := hidden{text, whole}
	if utf8.RuneCountInString(text) >= minWithheld && !slices.Contains(*to, h) {
		*to = append(*to, h)
	}
}

func inLink(c rune) bool      { return !unicode.IsSpace(c) && c != '\\' }
func inCode(c rune) bool      { return unicode.IsLetter(c) || unicode.IsDigit(c) }
func inShortCode(c rune) bool { return inLink(c) && !unicode.Is(unicode.Pd, c) && c != '_' }

// hide replaces each link and code in a text. Where one shows only once the text's
// escapes are read or its tags are left out, or they cannot all be, the whole text goes.
func (w withheld) hide(text string) string {
	if len(w.links)+len(w.codes)+len(w.short)+len(w.places) == 0 || text == "" {
		return text
	}
	var out strings.Builder
	at := 0
	for _, f := range w.in(text) {
		if f[0] >= at {
			out.WriteString(text[at:f[0]])
			out.WriteString(Redacted)
		}
		at = max(at, f[1])
	}
	out.WriteString(text[at:])
	text = out.String()
	plain := text
	for range 2 { // a tag in an escape, and an escape with a tag in it
		for _, read := range []func(string) string{unescaped, untagged} {
			next := read(plain)
			if next != plain && (len(w.in(next)) > 0 || read(next) != next) {
				return Redacted
			}
			plain = next
		}
	}
	return text
}

// in is where in a text any of them stands, in order.
func (w withheld) in(text string) (found [][2]int) {
	for _, l := range []struct {
		counts func(rune) bool
		all    []hidden
	}{{inLink, w.links}, {inCode, w.codes}, {inShortCode, w.short}} {
		if len(l.all) == 0 {
			continue
		}
		p := project(text, l.counts)
		for _, h := range l.all {
			found = append(found, p.find(h)...)
		}
	}
	found = append(found, w.placesIn(text)...)
	slices.SortFunc(found, func(x, y [2]int) int { return x[0] - y[0] })
	return found
}

// maxEscapes is how many escapes in one another are read.
const maxEscapes = 8

// unescaped reads the escapes of URLs, of HTML and of JSON and programs in a text, one in
// another too.
func unescaped(text string) string {
	for range maxEscapes {
		plain := html.UnescapeString(text)
		var out strings.Builder
		for i := 0; i < len(plain); i++ {
			if c, n := escape(plain[i:]); n > 0 {
				out.WriteString(c)
				i += n - 1
				continue
			}
			out.WriteByte(plain[i])
		}
		if out.String() == text {
			break
		}
		text = out.String()
	}
	return text
}

// escape reads an escape that a text begins with, and how long it is; 0: there is none.
func escape(text string) (string, int) {
	switch {
	case len(text) < 3:
	case text[0] == '%' && text[1] == 'u' && len(text) > 5:
		if c, err := strconv.ParseUint(text[2:6], 16, 16); err == nil {
			return string(rune(c)), 6
		}
	case text[0] == '%':
		if c, err := url.PathUnescape(text[:3]); err == nil {
			return c, 3
		}
	case text[0] == '\\' && text[1] == 'u' && text[2] == '{':
		digits, _, closed := strings.Cut(text[3:min(len(text), 12)], "}")
		if c, err := strconv.ParseUint(digits, 16, 21); err == nil && closed {
			return string(rune(c)), len(digits) + 4
		}
	case text[0] == '\\' && strings.IndexByte("uUx", text[1]) >= 0:
		if c, _, rest, err := strconv.UnquoteChar(text[:min(len(text), 10)], 0); err == nil {
			return string(c), min(len(text), 10) - len(rest)
		}
	}
	return "", 0
}

var tag = regexp.MustCompile(`<[^<>]*>`)

// untagged is a text without what looks like a tag of HTML, one in another too.
func untagged(text string) string {
	for range maxEscapes {
		plain := tag.ReplaceAllString(text, "")
		if plain == text {
			break
		}
		text = plain
	}
	return text
}

// projection is what counts of a text, folded, and where in it each byte of that
// stands.
type projection struct {
	of, chars string
	from, to  []int
}

func project(text string, counts func(rune) bool) projection {
	p := projection{of: text}
	var chars strings.Builder
	folded(text, func(c rune, from, to int) {
		if !counts(c) {
			return
		}
		n, _ := chars.WriteRune(lookalike(c))
		for range n {
			p.from, p.to = append(p.from, from), append(p.to, to)
		}
	})
	p.chars = chars.String()
	return p
}

// find is where in the text h stands, what overlaps as one.
func (p projection) find(h hidden) (found [][2]int) {
	for at := 0; ; at++ {
		i := strings.Index(p.chars[at:], h.text)
		if i < 0 {
			return found
		}
		at += i
		from, to := p.from[at], p.to[at+len(h.text)-1]
		switch last := len(found) - 1; {
		case h.whole && goesOn(p.of[to:]):
		case last >= 0 && from < found[last][1]:
			found[last][1] = to
		default:
			found = append(found, [2]int{from, to})
		}
	}
}

// goesOn reports whether the path of a link that ends here goes on in a text.
func goesOn(text string) bool {
	return text != "" && (wordByte(text[0]) || text[0] == '/' && len(text) > 1 && wordByte(text[1]))
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// target is where a link leads, in folded letters: it has many spellings.
type target struct {
	host, path string
	query      string // that must be in it; empty: whatever the query
}

// everything counts.
func everything(rune) bool { return true }

func fold(text string) string { return project(text, everything).chars }

// maxHost and maxPlace are up to how many bytes of a text are read as a host, and as the
// rest of a link: more has no link that can be opened in place of one of maxSignInText.
const (
	maxHost  = 260
	maxPlace = 2 * maxSignInText
)

// hosts finds what may be a host in a folded text.
var hosts = regexp.MustCompile(`[\pL\pN._-]+|\[[0-9a-f:.]+\]`)

// placesIn is where in a text a link stands that leads to one of the places. A link
// behind another host is found too, as part of its path.
func (w withheld) placesIn(text string) (found [][2]int) {
	if len(w.places) == 0 {
		return nil
	}
	p := project(text, everything)
	end := 0
	for _, at := range hosts.FindAllStringIndex(p.chars, -1) {
		if at[0] < end || at[1]-at[0] > maxHost {
			continue
		}
		name := canonicalHost(p.chars[at[0]:at[1]])
		for _, l := range w.places {
			if l.host != name {
				continue
			}
			if n, leads := l.reached(p.chars[at[1]:min(len(p.chars), at[1]+maxPlace)]); leads {
				from := at[0]
				before := strings.TrimRight(p.chars[:from], `/\`)
				for _, scheme := range []string{"http:", "https:"} {
					if strings.HasSuffix(before, scheme) {
						from = len(before) - len(scheme)
					}
				}
				end = max(at[1]+n, at[0]+1)
				found = append(found, [2]int{p.from[from], p.to[end-1]})
				break
			}
		}
	}
	return found
}

// ends are the characters that a link ends at, and behind are those that are hardly part
// of it at its end.
const (
	ends   = " \t\r\n<>\"'`"
	behind = ".,;:!?)]}*_"
)

// reached reports whether what stands behind a host leads to the place, and how much of
// it does.
func (l target) reached(rest string) (int, bool) {
	if i := strings.IndexAny(rest, ends); i >= 0 {
		rest = rest[:i]
	}
	rest = strings.TrimRight(rest, behind)
	at := rest
	if strings.HasPrefix(at, ":") { // a port
		at = strings.TrimLeft(at[1:], "0123456789")
	}
	path, query := at, ""
	if i := strings.IndexAny(at, "?#"); i >= 0 {
		path, query = at[:i], at[i:]
	}
	if path != "" && path[0] != '/' && path[0] != '\\' {
		path, rest = "", "" // a host by itself, and more behind it
	}
	path = cleanPath(path)
	more, under := strings.CutPrefix(path, l.path)
	switch {
	case !under, l.path == "" && path != "", goesOn(more):
		return 0, false
	}
	return len(rest), strings.Contains(query, l.query)
}

// cleanPath is a path as a server reads it, without a slash at its end.
func cleanPath(raw string) string {
	return strings.TrimRight(path.Clean("/"+strings.ReplaceAll(raw, `\`, "/")), "/")
}

// hostOf is the canonical host of a link; empty if it has none.
func hostOf(link string) string {
	u, err := url.Parse(link)
	if err != nil || u.Host == "" {
		return ""
	}
	return canonicalHost(fold(u.Hostname()))
}

// canonicalHost is a folded host in the one form for all its spellings.
func canonicalHost(name string) string {
	name = strings.TrimPrefix(strings.Trim(name, ".-_[]"), "www.")
	if strings.Contains(name, "xn--") {
		if plain, err := idna.ToUnicode(name); err == nil {
			name = fold(plain)
		}
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.IsLoopback() {
		return "localhost"
	}
	return name
}

// signInWords are the words of which links to sign in by are made, beside their secrets.
var signInWords = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`access account accounts activate activation agent agents api app apps approve auth authenticate
		authentication authorisation authorise authorization authorize client code com complete confirm connect connection consent
		customer customers default device devices enter flow grant html id identity in index link login my oauth oauth oidc
		pact pair pairing portal public realms request secure session sign signin sso start tenant token user users v
		verification verify web well known`) {
		words[w] = true
	}
	return words
}()

// secretParts are the parts of a link that may be its secret: of its path, query and
// fragment what is no word of signInWords; if there is none, of its host.
func secretParts(u *url.URL, home string) (parts []string) {
	add := func(part string) {
		part = unescaped(part)
		if c := project(part, inCode).chars; utf8.RuneCountInString(c) >= minWord && !plainWords(part) {
			parts = append(parts, c)
		}
	}
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		add(part)
	}
	for _, list := range []string{u.RawQuery, u.EscapedFragment()} {
		for _, part := range strings.FieldsFunc(list, func(c rune) bool { return strings.ContainsRune("&;/?", c) }) {
			if name, value, ok := strings.Cut(part, "="); ok && value != "" {
				part = value
			} else {
				part = name
			}
			add(part)
		}
	}
	if len(parts) > 0 {
		return parts
	}
	name := strings.ToLower(strings.Trim(u.Hostname(), "."))
	under, own := strings.CutSuffix(name, "."+home)
	if !own { // the name of another site is no secret
		under = strings.TrimSuffix(name, site(u.String()))
	}
	for label := range strings.SplitSeq(under, ".") {
		add(label)
	}
	return parts
}

// plainWords reports whether a part of a link is made of signInWords, and hardly a digit.
func plainWords(part string) bool {
	digits := 0
	for _, c := range part {
		if unicode.IsDigit(c) {
			digits++
		}
	}
	words := strings.FieldsFunc(strings.ToLower(part), func(c rune) bool { return !unicode.IsLetter(c) })
	return digits <= 2 && !slices.ContainsFunc(words, func(w string) bool { return !signInWords[w] })
}
