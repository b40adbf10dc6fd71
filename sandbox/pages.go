package sandbox

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

//go:embed pages
var pageFiles embed.FS

var (
	pageStyle, pageStyleHash = readStyle()
	pageTemplates            = template.Must(template.New("").Funcs(template.FuncMap{"visible": visible}).ParseFS(pageFiles, "pages/*.html"))
)

// readStyle returns the stylesheet and the CSP source that allows it inline.
func readStyle() (template.CSS, string) {
	css, err := pageFiles.ReadFile("pages/style.css")
	if err != nil {
		panic(err) // embedded at build
	}
	sum := sha256.Sum256(css)
	return template.CSS(css), "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// visible shows what others say as what it is: a character that is not seen, or that
// turns others around, stands there by its number. The template "said" has it, and
// keeps the direction of what is said from what stands around it.
func visible(said string) string {
	var b strings.Builder
	for i, r := range said {
		switch _, size := utf8.DecodeRuneInString(said[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "⟨%02X⟩", said[i])
		case unicode.In(r, unicode.C, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point):
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// page is what the templates are given. The first form of each page is the one to
// post; on the users' pages its action is absolute and has no "&".
type page struct {
	Style    template.CSS
	Title    string
	State    string // goes before the title in the window's title, "Error:" before that if there is a Problem
	Brand    string // whose page it is; "" if nobody's
	Initials string // of the brand
	Hue      int    // of the brand: a class of the stylesheet
	MadeUp   bool   // the brand is one of those built in
	Action   string // where the form goes; "" without a form

	Problem string // what went wrong
	Wrong   bool   // the problem is with what was typed
	Advice  string // error: what to do now
	Again   *link  // error: a way to do it; else to sign in as somebody else

	ReturnTo string // login
	Email    string
	User     string // name of who is signed in
	Secret   string // assertion or session, base64url

	Asker     string // consent: the issuer that asks
	AskerName string // as it registered itself
	UserCode  string
	Scopes    []Scope
	NotShared []string
	Lasts     string // how long what is allowed lasts

	Approved bool // connected

	Owner *ownerView // the owner's pages
}

// link is a link on a page.
type link struct{ Href, Text string }

// hues is how many colours the stylesheet has for brands.
const hues = 6

// pageOf is a page of a brand, in its colour and with its initials.
func (s *Sandbox) pageOf(b *business, title string) page {
	return page{Title: title, Brand: b.Name, Initials: initialsOf(b.Name), Hue: s.hueOf(b.ID), MadeUp: b.builtIn()}
}

// builtIn tells whether the brand, whose ids are random, is one of this package.
func (b *business) builtIn() bool { return b.ID == LarklineID || b.ID == MarrowID }

// hueOf gives brands that stand together different colours.
func (s *Sandbox) hueOf(brand string) int {
	return max(0, slices.IndexFunc(s.brands, func(b *business) bool { return b.ID == brand })) % hues
}

// initialsOf stand for a logo: the first letters of a name's first two words.
func initialsOf(name string) string {
	var initials []rune
	for _, word := range strings.Fields(name) {
		for _, r := range word {
			if unicode.IsLetter(r) || unicode.IsDigit(r) {
				initials = append(initials, unicode.ToUpper(r))
				break
			}
		}
	}
	return string(initials[:min(2, len(initials))])
}

// show writes a page: never cached or framed, without anything loaded, posting
// nowhere but to its form's origin, and referred from by no more than its own.
func (s *Sandbox) show(w http.ResponseWriter, status int, name string, p page) {
	p.Style = pageStyle
	var body bytes.Buffer
	if err := pageTemplates.ExecuteTemplate(&body, name, p); err != nil {
		s.log.Error("page failed", "page", name, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	// Browsers hold redirects after a post to form-action too: all of ours stay on
	// the origin that was posted to.
	formAction, referrer := "'none'", "origin" // with "no-referrer" a form's Origin would be null
	switch {
	case p.Owner != nil:
		formAction, referrer = "'self'", "same-origin"
	case p.Action != "":
		formAction = sourceOf(originOf(p.Action))
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+pageStyleHash+
		"; form-action "+formAction+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", referrer)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	writeBody(w, status, "text/html; charset=utf-8", body.Bytes())
}

// sourceOf names an origin in a Content-Security-Policy. It has no word for an IPv6
// address (CSP3 section 2.3.1): then it is any host of the scheme.
func sourceOf(origin string) string {
	if scheme, host, _ := strings.Cut(origin, "://"); strings.HasPrefix(host, "[") {
		return scheme + ":"
	}
	return origin
}

// trouble is an error page: what happened, and what to do now.
type trouble struct {
	title, problem, advice string
	again                  *link
}

const askAgain = "Go back to your assistant and ask it for a new link. You can close this page."

var (
	foreignReturn = trouble{title: "This link does not work", advice: askAgain,
		problem: "This sign-in link is not one of ours, or a part of it is missing."}
	foreignSite = trouble{title: "Sent from another website",
		problem: "This form was sent from another website. Nothing was changed by it.",
		advice:  "If you did not mean to send anything, close this page: you are safe. Otherwise go back to your assistant and open its link again."}
	notOurs = trouble{title: "This form could not be read", advice: askAgain,
		problem: "A part of this form is missing. Nothing was allowed by it."}
	notAsked = trouble{title: "Nobody asked for this", advice: askAgain,
		problem: "This form holds a permission that nobody asked for. Nothing was allowed."}
	usedUp = trouble{title: "This page has run out", advice: askAgain,
		problem: "This page waited too long, or was used already. Nothing was changed by it."}
	sentAgain = trouble{title: "This page was used already", advice: "If you have not answered yet, sign in again.",
		problem: "Each page works once, to keep you safe. Sending it again changed nothing."}
	noAsker = trouble{title: "Nobody waits for this any more",
		problem: "The request was answered already, or has run out. Nothing was changed.",
		advice:  "If your assistant still waits, ask it for a new link. Otherwise you can close this page."}
	wrongCodes = trouble{title: "Too many wrong codes", advice: askAgain,
		problem: "Nothing waits for the codes that were typed. Nothing was allowed."}
	noPage = trouble{title: "This address is not complete",
		problem: "A part of this address is missing, so there is nothing to show.",
		advice:  "Go back to your assistant: it knows whether anything was allowed."}
	failed = trouble{title: "Something went wrong here",
		problem: "We could not do this just now. Nothing was allowed by it.",
		advice:  "Wait a moment, then open your assistant’s link again. If this goes on, ask your assistant for a new link."}
)

// showError shows an error page, in the colours of the brand it is about; nil for
// none.
func (s *Sandbox) showError(w http.ResponseWriter, status int, b *business, t trouble) {
	p := page{MadeUp: !slices.ContainsFunc(s.brands, func(b *business) bool { return !b.builtIn() })}
	if b != nil {
		p = s.pageOf(b, "")
	}
	p.Title, p.Problem, p.Advice, p.Again = t.title, t.problem, t.advice, t.again
	s.show(w, status, "error.html", p)
}

// showFailure answers for an error of our own, which the log gets and the user
// does not.
func (s *Sandbox) showFailure(w http.ResponseWriter, b *business, err error) {
	s.log.Error("page failed", "error", err)
	s.showError(w, http.StatusInternalServerError, b, failed)
}

// pageForm reads a form that a page of ours posted: if the browser says from which
// origin, it is one of our two. Only scope may come more than once.
func (s *Sandbox) pageForm(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	for _, origin := range r.Header.Values("Origin") {
		if origin != s.publicURL && origin != s.brandURL {
			s.showError(w, http.StatusForbidden, nil, foreignSite)
			return nil, false
		}
	}
	form, err := readPageForm(w, r)
	if err != nil {
		s.showError(w, http.StatusBadRequest, nil, notOurs)
	}
	return form, err == nil
}

func readPageForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	return parsePageForm(r.Header.Get("Content-Type"), body)
}

func parsePageForm(contentType string, body []byte) (url.Values, error) {
	if mediaType(contentType) != "application/x-www-form-urlencoded" {
		return nil, http.ErrNotSupported
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	for name, values := range form {
		if len(values) > 1 && name != "scope" {
			return nil, http.ErrNotSupported
		}
	}
	return form, nil
}

// userName is how pages call a user, and what they sign in with; the id itself if
// nobody has it any more.
func (s *Sandbox) userName(id string) (name, email string) {
	for _, a := range s.accounts {
		if a.id == id {
			return cmp.Or(a.name, a.email), a.email
		}
	}
	return id, ""
}

// spell says a duration in one unit, as people do, rounded up.
func spell(d time.Duration) string {
	for _, unit := range []struct {
		name string
		long time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}} {
		if d >= 2*unit.long {
			return strconv.Itoa(int((d+unit.long-1)/unit.long)) + " " + unit.name + "s"
		}
	}
	if n := seconds(d); n != 1 {
		return strconv.Itoa(n) + " seconds"
	}
	return "a second"
}
