package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// Person plays a user in front of a business's pages: from a sign-in link it
// posts the pages' own forms, as a browser without scripts and cookies would. It
// is for demos and tests, with a sandbox or with any Provider whose pages keep to
// plain forms.
type Person struct {
	Login
	// Client carries the requests; one with a timeout of 15 s if nil. Its redirects
	// are not followed but walked.
	Client *http.Client
}

// Consent is what a person saw and did on a consent page.
type Consent struct {
	// Asked are the scopes on the page, with the business's words.
	Asked []Scope
	// Ticked are those that were sent with Allow.
	Ticked []string
	// Approved is what the last page said.
	Approved bool
}

// ErrPage: a page was not what a person could go on with, for example because the
// password was wrong, or the link used up.
var ErrPage = errors.New("sandbox: the page has nothing to go on with")

// Allow signs in behind the link, ticks exactly the scopes given, unticks all
// others and presses Allow. A scope that the page does not have is an error, and
// nothing is pressed.
func (p Person) Allow(ctx context.Context, link string, scopes ...string) (Consent, error) {
	return p.decide(ctx, link, "allow", func(asked []Scope) ([]string, error) {
		for _, id := range scopes {
			if !slices.ContainsFunc(asked, func(s Scope) bool { return s.ID == id }) {
				return nil, fmt.Errorf("%w: it does not ask for %q", ErrPage, id)
			}
		}
		return scopes, nil
	})
}

// AllowAll does the same with every box ticked.
func (p Person) AllowAll(ctx context.Context, link string) (Consent, error) {
	return p.decide(ctx, link, "allow", func(asked []Scope) (all []string, _ error) {
		for _, s := range asked {
			all = append(all, s.ID)
		}
		return all, nil
	})
}

// Deny signs in behind the link and presses Don't allow.
func (p Person) Deny(ctx context.Context, link string) (Consent, error) {
	return p.decide(ctx, link, "deny", func([]Scope) ([]string, error) { return nil, nil })
}

// decide goes from the link to the last page.
func (p Person) decide(ctx context.Context, link, decision string, tick func([]Scope) ([]string, error)) (Consent, error) {
	var c Consent
	login, err := p.open(ctx, http.MethodGet, link, nil)
	if err != nil {
		return c, err
	}
	if !login.hasField("password") {
		return c, fmt.Errorf("%w: no login form behind the link: %s", ErrPage, login.heading)
	}
	login.values.Set("email", p.Email)
	login.values.Set("password", p.Password)
	signedIn, err := p.open(ctx, http.MethodPost, login.action, login.values)
	if err != nil {
		return c, err
	}
	if signedIn.values.Get("assertion") == "" {
		return c, fmt.Errorf("%w: not signed in: %s", ErrPage, signedIn.heading)
	}
	ask, err := p.open(ctx, http.MethodPost, signedIn.action, signedIn.values)
	if err != nil {
		return c, err
	}
	if ask.values.Get("session") == "" || len(ask.boxes) == 0 {
		return c, fmt.Errorf("%w: no consent form: %s", ErrPage, ask.heading)
	}
	c.Asked = ask.boxes
	if c.Ticked, err = tick(c.Asked); err != nil {
		return c, err
	}
	ask.values.Del("scope")
	for _, id := range c.Ticked {
		ask.values.Add("scope", id)
	}
	ask.values.Set("decision", decision)
	last, err := p.open(ctx, http.MethodPost, ask.action, ask.values)
	if err != nil {
		return c, err
	}
	switch status := last.url.Query().Get("status"); status {
	case "approved":
		c.Approved = true
	case "denied":
	default:
		return c, fmt.Errorf("%w: no decision on the last page: %s", ErrPage, last.heading)
	}
	return c, nil
}

// seen is a page as a person reads it: its heading and its first form.
type seen struct {
	url     *url.URL
	heading string
	action  string
	values  url.Values // as the form would send them unchanged, boxes left out
	fields  []string
	boxes   []Scope
}

func (s *seen) hasField(name string) bool { return slices.Contains(s.fields, name) }

const (
	personTimeout   = 15 * time.Second
	personPageLimit = 1 << 20 // bytes
	personRedirects = 5
)

func (p Person) open(ctx context.Context, method, address string, form url.Values) (*seen, error) {
	client := http.Client{Timeout: personTimeout}
	if p.Client != nil {
		client = *p.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for range personRedirects {
		req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
		if err != nil {
			return nil, fmt.Errorf("%w: address is not a URL", ErrPage)
		}
		if method == http.MethodPost {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		resp, err := client.Do(req)
		if err != nil {
			// The error of the client holds the address, which is a sign-in link.
			var detail *url.Error
			if errors.As(err, &detail) {
				err = detail.Err
			}
			return nil, fmt.Errorf("sandbox: page of %s: %w", req.URL.Host, err)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, personPageLimit))
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("sandbox: page of %s: %w", req.URL.Host, err)
		}
		if next, err := resp.Location(); err == nil {
			// A browser goes on with GET after 303, and after 301 and 302 to a POST.
			method, address, form = http.MethodGet, next.String(), nil
			continue
		}
		return readPage(req.URL, body)
	}
	return nil, fmt.Errorf("%w: too many redirects", ErrPage)
}

// readPage reads the heading and the first form of a page.
func readPage(at *url.URL, body []byte) (*seen, error) {
	doc, err := html.Parse(strings.NewReader(string(body)))
	if err != nil {
		return nil, fmt.Errorf("%w: not HTML", ErrPage)
	}
	page := &seen{url: at, values: url.Values{}}
	var form *html.Node
	labels := map[string]string{}
	for n := range doc.Descendants() {
		switch n.DataAtom {
		case atom.H1:
			page.heading = textOf(n)
		case atom.P:
			if attr(n, "role") == "alert" {
				page.heading += ": " + textOf(n)
			}
		case atom.Label:
			labels[attr(n, "for")] = textOf(n)
		case atom.Form:
			if form == nil {
				form = n
			}
		}
	}
	if form == nil {
		return page, nil
	}
	action, err := at.Parse(attr(form, "action"))
	if err != nil {
		return nil, fmt.Errorf("%w: the form goes nowhere", ErrPage)
	}
	page.action = action.String()
	for n := range form.Descendants() {
		name := attr(n, "name")
		if n.DataAtom != atom.Input || name == "" {
			continue
		}
		page.fields = append(page.fields, name)
		if attr(n, "type") == "checkbox" {
			if name == "scope" {
				page.boxes = append(page.boxes, Scope{attr(n, "value"), labels[attr(n, "id")]})
			}
			continue
		}
		page.values.Add(name, attr(n, "value"))
	}
	return page, nil
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
