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
	"unicode/utf16"
	"unicode/utf8"

	htmltext "golang.org/x/net/html"
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
		s.MissingScopes[i] = truncate(hide(s.MissingScopes[i]), maxURLInput)
	}
	for _, id := range []*string{&m.ContextID, &s.ContextID} { // one that is changed is none (CV-7), a longer one is not kept
		if len(*id) <= maxURLInput && *id != hide(*id) {
			*id = ""
		}
	}
	for _, id := range []*string{&s.TaskID, &reply.ErrorReason} { // they come in any length
		*id = truncate(*id, maxScopeID)
	}
	reply.cut() // not before: the beginning of a code is not found
}

// withholdClaims makes what a receipt says by a verdict that which is shown of it, and does
// the same to that. It returns the sign-ins that it looked for. A receipt can say much, so
// it does so before the store is locked: withholdSince does the rest.
func (a *Agent) withholdClaims(ctx context.Context, r *receipt, s *receiptSecret, e Evidence) (signIns, error) {
	w, err := a.waitingSignIns(ctx, r.Principal)
	if err != nil {
		return w, err
	}
	s.Problems = e.Problems
	if e.Claims != nil {
		s.Actions, s.ScopesUsed = e.Claims.Actions, e.Claims.ScopesUsed
	}
	w.rewrite(r, s)
	return w, nil
}

// withholdSince does it once more, for the sign-ins that began since.
func (a *Agent) withholdSince(tx Tx, r *receipt, s *receiptSecret, before signIns) error {
	w, err := a.signInSecrets(tx, r.Principal, before.ids...)
	if err == nil && len(w.waiting) > 0 {
		w.rewrite(r, s)
	}
	return err
}

func (w signIns) rewrite(r *receipt, s *receiptSecret) {
	own := w.of(r.Business)
	s.rewrite(func(text string) string { return Visible(own.hide(text)) })
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
	ids     []string // of all of them, with a secret or without
	waiting []signInSecret
	homes   map[string]string // origin of each business, by id
}

// signInSecret is what belongs to one of them.
type signInSecret struct {
	business string
	withheld withheld
	exact    []exactly
}

// signInSecrets reads them, but for those of these ids.
func (a *Agent) signInSecrets(tx Tx, principal string, but ...string) (w signIns, err error) {
	pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
	pending = slices.DeleteFunc(pending, func(z *authorization) bool { return slices.Contains(but, z.ID) })
	if err != nil || len(pending) == 0 {
		return signIns{}, err
	}
	businesses, err := find[business](tx, Query{Principal: principal})
	if err != nil {
		return signIns{}, err
	}
	w.homes = map[string]string{}
	known := map[string]published{}
	for _, b := range businesses {
		w.homes[b.ID] = or(b.Card.Origin, originOf(b.Key))
		known[b.ID] = published{b.Card.Name, []string{b.Card.InterfaceURL, b.Key, b.FinalURL, b.Metadata.Issuer}}
	}
	for _, z := range pending {
		w.ids = append(w.ids, z.ID)
		var s authorizationSecret
		if err := a.box.get(tx, z.ID, authorizationPurpose(z), &s); errors.Is(err, errSecretLost) {
			continue
		} else if err != nil {
			return signIns{}, err
		}
		w.waiting = append(w.waiting, secretOf(z.Business, w.homes[z.Business], known[z.Business], s))
	}
	return w, nil
}

// published is what a business's own card tells everybody: its name and URLs.
type published struct {
	name string
	urls []string
}

func secretOf(business, home string, known published, s authorizationSecret) signInSecret {
	z := signInSecret{business: business}
	z.withheld.home = hostOf(home)
	for _, link := range []string{s.VerificationURIComplete, s.VerificationURI} {
		z.withheld.link(link)
		if u, err := url.Parse(link); err == nil && u.Host != "" && originOf(link) != strings.TrimSuffix(link, "/") {
			z.exact = append(z.exact, exactly{link, hostOf(link)})
		}
	}
	for _, part := range secretParts(s, home, known) {
		spell(&z.withheld.codes, part)
	}
	z.withheld.code(s.DeviceCode)
	z.withheld.code(s.UserCode)
	if utf8.RuneCountInString(s.DeviceCode) >= minDeviceCode && !strings.ContainsFunc(s.DeviceCode, unicode.IsSpace) {
		z.exact = append(z.exact, exactly{text: s.DeviceCode})
	}
	if len(project(s.UserCode, inCode).chars) >= minWord && noWord.MatchString(s.UserCode) {
		z.exact = append(z.exact, exactly{text: s.UserCode})
	}
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

// From these lengths on a user code, a part of a link that looks drawn by lot, and a
// device code are no word of anybody else's.
const (
	minWord       = 6
	minDrawn      = 8
	minDeviceCode = 16
)

// noWord are user codes that are no word, date or sum of others: of capitals with a digit
// among them, or in groups.
var noWord = regexp.MustCompile(`^[A-Z0-9-]*([A-Z]-*[0-9]|[0-9]-*[A-Z])[A-Z0-9-]*$|^[A-Z]{3,8}(-[A-Z]{3,8})+$`)

// exactly is a link or a code as it is written; host is a link's.
type exactly struct{ text, host string }

// hide replaces it where it stands by itself.
func (e exactly) hide(text string) string {
	var out strings.Builder
	done := 0
	for at := 0; ; {
		i := strings.Index(text[at:], e.text)
		if i < 0 {
			out.WriteString(text[done:])
			return out.String()
		}
		from := at + i
		at = from + len(e.text)
		last, _ := utf8.DecodeLastRuneInString(text[:from])
		next, _ := utf8.DecodeRuneInString(text[at:])
		if !inCode(last) && !inCode(next) {
			out.WriteString(text[done:from])
			out.WriteString(Redacted)
			done = at
		}
	}
}

// withheld is what is taken out of the texts of a business. Of a code its letters and
// digits count, of a link what it leads to, whatever its spelling, and all of it that is
// no space.
type withheld struct {
	home                string   // host of the business
	links, codes, short []string // folded; short ones only where they stand by themselves
	places              []target
	odd                 bool // one of the links has characters that a link is hardly written with
}

func (w *withheld) add(other withheld) {
	w.links, w.codes, w.short = append(w.links, other.links...), append(w.codes, other.codes...), append(w.short, other.short...)
	w.places, w.odd = append(w.places, other.places...), w.odd || other.odd
}

// link adds a link, with or without its scheme. The bare origin of the business is none: where it is, is no secret.
func (w *withheld) link(raw string) {
	if len(raw) < minWithheld {
		return
	}
	u, err := url.Parse(raw)
	if err == nil && u.Host != "" {
		at := target{host: hostOf(raw), path: strings.TrimRight(path.Clean("/"+fold(unescaped(u.EscapedPath()))), "/")}
		bare := at.path == "" && u.RawQuery == "" && u.Fragment == ""
		if bare && at.host == w.home {
			return
		}
		at.asked = at.path == "" && at.host == w.home
		w.odd = w.odd || strings.ContainsFunc(fold(unescaped(raw)), odd)
		if !slices.Contains(w.places, at) {
			w.places = append(w.places, at)
		}
		if bare {
			return // the host has links of other kinds, too
		}
	}
	_, bare, _ := strings.Cut(raw, "://")
	for _, form := range []string{raw, bare, unescaped(raw), unescaped(bare)} {
		spell(&w.links, project(form, inLink).chars)
	}
}

func (w *withheld) code(raw string) {
	c := project(raw, inCode).chars
	switch n := utf8.RuneCountInString(c); {
	case n >= 6:
		spell(&w.codes, c)
	case n >= minWithheld: // "12.34" is no 1234
		spell(&w.short, c)
		spell(&w.short, project(raw, inShortCode).chars) // nor AB.CD only ABCD
	case n == 0 && !strings.ContainsFunc(raw, unicode.IsSymbol): // its "????" asks something
	default: // hardly a letter in it
		spell(&w.links, project(raw, inLink).chars)
	}
}

func spell(to *[]string, text string) {
	if utf8.RuneCountInString(text) >= minWithheld && !slices.Contains(*to, text) {
		*to = append(*to, text)
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
	for _, without := range []func(string) string{untagged, rendered} {
		plain := text
		for range 2 { // a tag in an escape, and an escape with a tag in it
			for _, read := range []func(string) string{unescaped, without} {
				next := read(plain)
				if next != plain && (len(w.in(next)) > 0 || read(next) != next) {
					return Redacted
				}
				plain = next
			}
		}
	}
	return text
}

// in is where in a text any of them stands, in order.
func (w withheld) in(text string) (found [][2]int) {
	for _, l := range []struct {
		counts func(rune) bool
		all    []string
		part   func(p projection, from, to int) bool // of something else
	}{{inLink, w.links, projection.inLink}, {inCode, w.codes, nil}, {inShortCode, w.short, projection.inWord}} {
		if len(l.all) == 0 {
			continue
		}
		p := project(text, l.counts)
		for _, text := range l.all {
			found = append(found, p.find(text, l.part)...)
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
	case len(text) < 2:
	case text[0] == '%' && text[1] == 'u' && len(text) > 5:
		if c, err := strconv.ParseUint(text[2:6], 16, 16); err == nil {
			return string(rune(c)), 6
		}
	case text[0] == '%' && len(text) > 2:
		if c, err := url.PathUnescape(text[:3]); err == nil {
			return c, 3
		}
	case strings.HasPrefix(text, `\u{`):
		n := 3 + run(text[3:], "0123456789abcdefABCDEF") // any number of zeros
		if c, err := strconv.ParseUint(text[3:n], 16, 21); err == nil && strings.HasPrefix(text[n:], "}") {
			return string(rune(c)), n + 1
		}
	case text[0] == '\\' && text[1] >= '0' && text[1] <= '7':
		n := 1 + run(text[1:min(len(text), 4)], "01234567")
		if c, err := strconv.ParseUint(text[1:n], 8, 8); err == nil {
			return string(rune(c)), n
		}
	case text[0] == '\\' && strings.IndexByte("uUx", text[1]) >= 0:
		if c, _, rest, err := strconv.UnquoteChar(text[:min(len(text), 10)], 0); err == nil {
			return string(c), min(len(text), 10) - len(rest)
		}
		if c := utf16.DecodeRune(surrogate(text), surrogate(text[min(len(text), 6):])); c != unicode.ReplacementChar {
			return string(c), 12
		}
	}
	return "", 0
}

// run is how many of these characters a text begins with.
func run(text, of string) int { return len(text) - len(strings.TrimLeft(text, of)) }

// surrogate is the half of a character that a text begins with, as JSON escapes it.
func surrogate(text string) rune {
	if !strings.HasPrefix(text, `\u`) || len(text) < 6 {
		return unicode.ReplacementChar
	}
	c, err := strconv.ParseUint(text[2:6], 16, 16)
	if err != nil {
		return unicode.ReplacementChar
	}
	return rune(c)
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

// rendered is a text as a browser shows it, which knows where a tag ends that has a > in
// quotes.
func rendered(text string) string {
	for range maxEscapes {
		if !strings.Contains(text, "<") {
			break
		}
		var plain strings.Builder
		tokens := htmltext.NewTokenizer(strings.NewReader(text))
		for kind := tokens.Next(); kind != htmltext.ErrorToken; kind = tokens.Next() {
			if kind == htmltext.TextToken {
				plain.Write(tokens.Raw())
			}
		}
		if plain.String() == text {
			break
		}
		text = plain.String()
	}
	return text
}

// projection is what counts of a text, folded, and where in it each of its characters
// comes to something.
type projection struct {
	of, chars string
	at        []spot
}

// spot is where a character stands in the text, and what it comes to in chars.
type spot struct{ in, chars int }

// project reads each character but once, however often it stands there: some come to
// many.
func project(text string, counts func(rune) bool) projection {
	p := projection{of: text}
	var chars strings.Builder
	known := map[rune]string{}
	for i, c := range text {
		is, ok := known[c]
		if !ok {
			var all strings.Builder
			folded(string(c), func(c rune, _, _ int) {
				if counts(c) {
					all.WriteRune(lookalike(c))
				}
			})
			is = all.String()
			known[c] = is
		}
		if is != "" {
			p.at = append(p.at, spot{i, chars.Len()})
			chars.WriteString(is)
		}
	}
	p.chars = chars.String()
	return p
}

// from and to are where in the text the character begins and ends that a byte of chars
// is of.
func (p projection) from(i int) int { return p.at[p.character(i)].in }

func (p projection) to(i int) int {
	from := p.from(i)
	_, n := utf8.DecodeRuneInString(p.of[from:])
	return from + n
}

func (p projection) character(i int) int {
	n, found := slices.BinarySearchFunc(p.at, i, func(at spot, i int) int { return at.chars - i })
	if !found {
		n--
	}
	return n
}

// find is where in the text some chars stand that are no part of something else, what
// overlaps as one.
func (p projection) find(chars string, part func(p projection, from, to int) bool) (found [][2]int) {
	for at := 0; ; at++ {
		i := strings.Index(p.chars[at:], chars)
		if i < 0 {
			return found
		}
		at += i
		from, to := p.from(at), p.to(at+len(chars)-1)
		switch last := len(found) - 1; {
		case part != nil && part(p, at, at+len(chars)):
		case last >= 0 && from < found[last][1]:
			found[last][1] = to
		default:
			found = append(found, [2]int{from, to})
		}
	}
}

// inLink reports whether the path of a link goes on behind these chars.
func (p projection) inLink(_, to int) bool { return goesOn(p.of[p.to(to-1):]) }

// inWord reports whether a letter or digit touches these chars.
func (p projection) inWord(from, to int) bool {
	return from > 0 && wordByte(p.chars[from-1]) && p.to(from-1) >= p.from(from) ||
		to < len(p.chars) && wordByte(p.chars[to]) && p.from(to) <= p.to(to-1)
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
	asked      bool // with a query: without one it is the business's home
}

// everything counts.
func everything(rune) bool { return true }

func fold(text string) string { return project(text, everything).chars }

// maxHost is up to how many bytes of a text are read as a host.
const maxHost = 260

// hosts finds what may be a host in a folded text, or some that full stops are between:
// the ideographic one is a dot to browsers.
var hosts = regexp.MustCompile(`[\pL\pN._-]+(?:` + fullStop + `[\pL\pN._-]+)*|\[[0-9a-f:.]+\]`)

const fullStop = "\u3002"

// placesIn is where in a text a link stands that leads to one of the places. A link
// behind another host is found too, as part of its path.
func (w withheld) placesIn(text string) (found [][2]int) {
	if len(w.places) == 0 {
		return nil
	}
	p := project(text, everything)
	all := hosts.FindAllStringIndex(p.chars, -1)
	l := newLinkReader(p.chars)
	for _, run := range slices.Backward(all) {
		for start, to := run[0], run[1]; to > start; {
			last := start // of what full stops are between
			if i := strings.LastIndex(p.chars[start:to], fullStop); i >= 0 {
				last += i + len(fullStop)
			}
			path, asked, end, cut := l.after(to)
			for _, from := range slices.Compact([]int{max(last, to-maxHost), max(start, to-maxHost)}) {
				name, dotted := canonicalHost(p.chars[from:to]), from < last
				t := slices.IndexFunc(w.places, func(t target) bool {
					return (t.host == name || dotted && strings.HasSuffix(name, "."+t.host)) && t.leads(path, asked)
				})
				if t < 0 {
					continue
				}
				if !w.odd {
					end = cut
				}
				before := strings.TrimRight(p.chars[:from], `/\`)
				for _, scheme := range []string{"http:", "https:"} {
					if strings.HasSuffix(before, scheme) {
						from = len(before) - len(scheme)
					}
				}
				found = append(found, [2]int{p.from(from), p.to(max(to, end) - 1)})
				break
			}
			to = last - len(fullStop)
		}
	}
	return found
}

// leads reports whether a path behind its host leads there.
func (t target) leads(path []byte, asked bool) bool {
	n := len(t.path)
	return len(path) >= n && string(path[:n]) == t.path && (n > 0 || len(path) == 0) && (asked || !t.asked) &&
		!goesOn(string(path[n:min(len(path), n+2)]))
}

// ends are the characters that a link ends at, and behind are those that are hardly part
// of it at its end. More of a link comes behind one of more.
const (
	ends   = " \t\r\n<>\"'`"
	behind = ".,;:!?)]}*_"
	more   = "/\\?#&=%"
)

// odd reports a character that a link is hardly written with.
func odd(c rune) bool { return c >= 0x80 || strings.ContainsRune(",;|{}^!*()[]", c) }

// linkReader reads the links in a text from its end to its beginning: so nothing is read
// twice, however many hosts stand in it.
type linkReader struct {
	text  string
	at    int    // it is read from here on
	end   int    // of the link
	piece int    // where the piece of its path ends that is being read
	up    int    // how many pieces those behind it take back: ..
	clean []byte // room for what is read of its path, as a server takes it, from on up to
	from  int
	to    int
	asked bool // it has a query or fragment
	cut   int  // where what is hardly part of it begins: behind an odd character nothing of a link comes
	whole bool // more of it came
}

func newLinkReader(text string) *linkReader {
	n := len(text)
	l := &linkReader{text: text, at: n, clean: make([]byte, n), from: n}
	l.link()
	return l
}

// link begins with a link that ends before what is read.
func (l *linkReader) link() {
	l.end, l.asked, l.whole = len(strings.TrimRight(l.text[:l.at], behind)), false, false
	l.cut = l.end
	l.path(l.end)
}

// path begins with a path that ends there.
func (l *linkReader) path(end int) { l.piece, l.up, l.to = end, 0, l.from }

// after is the path that stands after a host, whether a query does, where they end, and
// where what is hardly part of them begins. It is asked of the last host first.
func (l *linkReader) after(host int) (path []byte, asked bool, end, cut int) {
	for l.at > host {
		l.at--
		c := l.text[l.at]
		switch {
		case l.whole || l.at >= l.end:
		case odd(rune(c)), l.at+1 == l.cut && strings.IndexByte(behind, c) >= 0:
			l.cut = l.at
		default:
			l.whole = strings.IndexByte(more, c) >= 0
		}
		switch {
		case strings.IndexByte(ends, c) >= 0:
			l.link()
		case l.at >= l.end:
		case c == '?' || c == '#':
			l.asked = true
			l.path(l.at)
		case c == '/' || c == '\\':
			switch piece := l.text[l.at+1 : l.piece]; {
			case piece == "" || piece == ".":
			case piece == "..":
				l.up++
			case l.up > 0:
				l.up--
			default:
				l.from -= len(piece) + 1
				copy(l.clean[l.from+copy(l.clean[l.from:], "/"):], piece)
			}
			l.piece = l.at
		}
	}
	if strings.HasPrefix(l.text[host:], ":") { // a port
		host = len(l.text) - len(strings.TrimLeft(l.text[host+1:], "0123456789"))
	}
	if host < l.piece { // more than a host
		return nil, false, 0, 0
	}
	return l.clean[l.from:l.to], l.asked, l.end, l.cut
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
	name = strings.ReplaceAll(name, fullStop, ".")
	name = strings.TrimPrefix(strings.Trim(name, ".-_[]"), "www.")
	if strings.Contains(name, "xn--") {
		if plain, err := idna.ToUnicode(name); err == nil {
			name = fold(plain)
		}
	}
	if strings.Trim(name, "0123456789abcdefx.:") != "" { // no address (UR-3)
		return name
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		if ip = ipv4(name); !ip.IsValid() {
			return name
		}
	}
	if ip = ip.Unmap(); ip.IsLoopback() {
		return "localhost"
	}
	return ip.String()
}

// ipv4 is the address that browsers read in a host of 1-4 numbers, each decimal, octal or
// hexadecimal, of which the last fills what is left.
func ipv4(name string) netip.Addr {
	parts := strings.Split(name, ".")
	if len(parts) > 4 {
		return netip.Addr{}
	}
	var ip uint64
	for i, part := range parts {
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (5 - len(parts))
		}
		n, err := strconv.ParseUint(part, 0, bits)
		if err != nil {
			return netip.Addr{}
		}
		ip = ip<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)})
}

// secretParts are the parts of the links that may be secret by themselves: of the whole
// one what the other has not, which holds no code (RFC 8628), but for words; of the other
// what looks drawn by lot. What the business is called by, where it is and what its card's
// own URLs have are none.
func secretParts(s authorizationSecret, home string, known published) (parts []string) {
	called := project(home+" "+known.name, inCode).chars
	public := map[string]bool{}
	for _, link := range known.urls {
		for _, part := range linkParts(link) {
			public[project(part, inCode).chars] = true
		}
	}
	plain := map[string]bool{}
	for _, part := range linkParts(s.VerificationURI) {
		c := project(part, inCode).chars
		plain[c] = true
		if utf8.RuneCountInString(c) >= minDrawn && strings.ContainsFunc(c, unicode.IsDigit) && strings.ContainsFunc(c, unicode.IsLetter) {
			parts = append(parts, c)
		}
	}
	for _, part := range linkParts(s.VerificationURIComplete) {
		if c := project(part, inCode).chars; utf8.RuneCountInString(c) >= minWord && !plain[c] && !words.MatchString(part) {
			parts = append(parts, c)
		}
	}
	return slices.DeleteFunc(parts, func(c string) bool { return strings.Contains(called, c) || public[c] })
}

// words are made of letters in lower case, or each in a word but its first.
var words = regexp.MustCompile(`^[^\pL\pN]*(\pL[\p{Ll}\p{Lo}]+[^\pL\pN]*)*$`)

// linkParts are the pieces of a link's path, query and fragment, and the labels of its
// host below its site.
func linkParts(link string) []string {
	u, err := url.Parse(link)
	if err != nil {
		return nil
	}
	name := strings.TrimSuffix(strings.ToLower(u.Hostname()), site(link))
	parts := strings.FieldsFunc(u.EscapedPath()+"&"+u.RawQuery+"&"+u.EscapedFragment(), func(c rune) bool { return strings.ContainsRune("&;/?=", c) })
	parts = append(parts, strings.Split(name, ".")...)
	for i := range parts {
		parts[i] = unescaped(parts[i])
	}
	return parts
}
