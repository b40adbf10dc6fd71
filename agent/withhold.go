package agent

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// minWithheld is the length from which a sign-in's code is looked for in what a
// business says: a shorter one would be found in any text.
const minWithheld = 4

// Withholder returns what takes the links and codes of the principal's sign-ins that
// wait now out of a text, however they are written: in other case, with separators
// or invisible characters between their letters. A text without any is returned as
// it is. What a business says of itself or in a reply passes through it before a
// task, or a token that may not sign in, is told (DA-15). If there is an error, they
// must be told nothing.
func (a *Agent) Withholder(ctx context.Context, c Caller) (func(text string) string, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return a.withholder(ctx, c.Principal)
}

func (a *Agent) withholder(ctx context.Context, principal string) (func(text string) string, error) {
	var w withheld
	err := a.store.View(ctx, func(tx Tx) (err error) {
		w, err = a.signInSecrets(tx, principal)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the sign-ins that wait: %w", err)
	}
	return w.hide, nil
}

// withhold takes the links and codes of the principal's pending sign-ins out of what
// a business answers, before anything keeps or shows it, and the characters that
// nobody sees. The business knows them, and a model that reads its words must not
// (DA-15).
func (a *Agent) withhold(reply *Reply, principal string) {
	hide, err := a.withholder(context.Background(), principal)
	if err != nil {
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
func (a *Agent) withholdClaims(tx Tx, principal string, s *receiptSecret) error {
	w, err := a.signInSecrets(tx, principal)
	if err != nil {
		return err
	}
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

// signInSecrets are the links and codes of a principal's pending sign-ins.
func (a *Agent) signInSecrets(tx Tx, principal string) (w withheld, err error) {
	pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
	if err != nil {
		return withheld{}, err
	}
	for _, z := range pending {
		var s authorizationSecret
		if err := a.box.get(tx, z.ID, authorizationPurpose(z), &s); errors.Is(err, errSecretLost) {
			continue
		} else if err != nil {
			return withheld{}, err
		}
		w.link(s.VerificationURIComplete, false)
		w.link(s.VerificationURI, true)
		w.code(s.DeviceCode)
		w.code(s.UserCode)
	}
	return w, nil
}

// withheld is what is taken out of texts. Of a code its letters and digits count, of
// a link all that is no space.
type withheld struct{ links, codes, short []hidden }

// hidden is one spelling of a link or a code, folded.
type hidden struct {
	text  string
	whole bool // no letter or digit of an URL follows it: else it is another link
}

// link adds a link, with or without its scheme. A bare origin is none: where a
// business is, is no secret.
func (w *withheld) link(raw string, whole bool) {
	u, err := url.Parse(raw)
	if len(raw) < minWithheld || err == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" {
		return
	}
	_, bare, _ := strings.Cut(raw, "://")
	for _, form := range []string{raw, bare, unescaped(raw), unescaped(bare)} {
		w.add(&w.links, project(form, inLink).chars, whole)
	}
}

func (w *withheld) code(raw string) {
	c := project(raw, inCode).chars
	switch n := utf8.RuneCountInString(c); {
	case n >= 6:
		w.add(&w.codes, c, false)
	case n >= minWithheld: // "12.34" is no 1234
		w.add(&w.short, c, false)
		w.add(&w.short, project(raw, inShortCode).chars, false) // nor AB.CD only ABCD
	default: // hardly a letter in it
		w.add(&w.links, project(raw, inLink).chars, false)
	}
}

func (w *withheld) add(to *[]hidden, text string, whole bool) {
	h := hidden{text, whole}
	if utf8.RuneCountInString(text) >= minWithheld && !slices.Contains(*to, h) {
		*to = append(*to, h)
	}
}

func inLink(c rune) bool      { return !unicode.IsSpace(c) && c != '\\' }
func inCode(c rune) bool      { return unicode.IsLetter(c) || unicode.IsDigit(c) }
func inShortCode(c rune) bool { return inLink(c) && !unicode.Is(unicode.Pd, c) && c != '_' }

// hide replaces each link and code in a text. Where one shows only once the text's
// escapes are read, or they cannot all be read, the whole text goes.
func (w withheld) hide(text string) string {
	if len(w.links)+len(w.codes)+len(w.short) == 0 || text == "" {
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
	if plain := unescaped(text); plain != text && (len(w.in(plain)) > 0 || unescaped(plain) != plain) {
		return Redacted
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
	slices.SortFunc(found, func(x, y [2]int) int { return x[0] - y[0] })
	return found
}

// maxEscapes is how many escapes in one another are read.
const maxEscapes = 8

// unescaped reads the escapes of URLs and of HTML in a text, one in another too.
func unescaped(text string) string {
	for range maxEscapes {
		plain := html.UnescapeString(text)
		var out strings.Builder
		for i := 0; i < len(plain); i++ {
			if i+2 < len(plain) && plain[i] == '%' {
				if c, err := url.PathUnescape(plain[i : i+3]); err == nil {
					out.WriteString(c)
					i += 2
					continue
				}
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
		case h.whole && to < len(p.of) && wordByte(p.of[to]):
		case last >= 0 && from < found[last][1]:
			found[last][1] = to
		default:
			found = append(found, [2]int{from, to})
		}
	}
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
