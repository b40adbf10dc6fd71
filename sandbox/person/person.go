// Package person plays a user in front of a business's pages: from a sign-in link
// it posts the pages' own forms, as a browser without scripts would. It is for
// demos, tests and suites, with a sandbox or with any Provider whose pages are
// plain forms: the first form of a page is the one to post, the login has a
// password field, the consent page a checkbox "scope" for each permission and takes
// "decision" allow or deny.
//
// [Person.Allow], [Person.AllowAll] and [Person.Deny] go from the link to the end;
// [Person.Open], [Person.LogIn], [Person.SignIn], [Page.Post] and [Page.Answer] go
// step by step.
//
// Pages lead whoever follows them anywhere, so each link, redirect and form is held
// to [RefuseURL], and none of the internet leads to this machine or a private network.
// A password is posted to the origin of the page that asks for it, and nowhere else.
package person

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
)

// Person is a user and what carries their requests.
type Person struct {
	Login
	// UserCode is typed where the pages ask for it, as they do if the link does not
	// hold it (RFC 8628 section 3.3).
	UserCode string
	// Client carries the requests; one with a timeout of 15 s if nil. Its redirects
	// are not followed but walked. Pages that need cookies need its Jar. What names
	// resolve to is for its Transport to mind.
	Client *http.Client
	// Development admits pages on this machine, also by http, and in private
	// networks, wherever the link leads from. It is implied by a link to this machine.
	Development bool
}

// Consent is what a person saw and did on a consent page.
type Consent struct {
	// Asked are the boxes on the page, with the business's words.
	Asked []Box
	// Ticked are the scopes that were sent with Allow.
	Ticked []string
	// Approved is what the last page said.
	Approved bool
}

// ErrPage: a page was not what a person could go on with, for example because the
// password was wrong, or the link used up.
var ErrPage = errors.New("person: cannot go on")

// ErrRefused is an ErrPage: the pages lead where, or in a way that, nobody is led, and
// nothing was sent there.
var ErrRefused = fmt.Errorf("%w: refused", ErrPage)

// ErrElsewhere is an ErrRefused: the password would go to another origin than the page
// that asks for it. Browsers would send it.
var ErrElsewhere = fmt.Errorf("%w", ErrRefused)

// ErrLogin is an ErrPage: after the login comes the login again, mostly because the
// password is wrong.
var ErrLogin = fmt.Errorf("%w: not signed in", ErrPage)

// Allow signs in behind the link, ticks exactly the scopes given, unticks all
// others and presses Allow. A scope that the page does not have is an error, and
// nothing is pressed.
func (p Person) Allow(ctx context.Context, link string, scopes ...string) (Consent, error) {
	return p.decide(ctx, link, "allow", func([]Box) []string { return scopes })
}

// AllowAll does the same with every box ticked.
func (p Person) AllowAll(ctx context.Context, link string) (Consent, error) {
	return p.decide(ctx, link, "allow", func(asked []Box) (all []string) {
		for _, box := range asked {
			all = append(all, box.ID)
		}
		return all
	})
}

// Deny signs in behind the link and presses Don't allow.
func (p Person) Deny(ctx context.Context, link string) (Consent, error) {
	return p.decide(ctx, link, "deny", func([]Box) []string { return nil })
}

// decide goes from the link to the last page.
func (p Person) decide(ctx context.Context, link, decision string, tick func([]Box) []string) (Consent, error) {
	var c Consent
	ask, err := p.SignIn(ctx, link)
	if err != nil {
		return c, err
	}
	c.Asked, c.Ticked = ask.Boxes, tick(ask.Boxes)
	for _, id := range c.Ticked {
		if !ask.Asks(id) {
			return c, fmt.Errorf("%w: it does not ask for %q", ErrPage, id)
		}
	}
	last, err := ask.Answer(ctx, decision, c.Ticked...)
	if err != nil {
		return c, err
	}
	switch last.URL.Query().Get("status") {
	case "approved":
		c.Approved = true
	case "denied":
	default:
		return c, fmt.Errorf("%w: no decision on the last page: %s", ErrPage, last)
	}
	return c, nil
}

// LogIn opens the link and signs in; it returns the page that follows the login,
// whatever it is. Errors wrap [ErrPage] if there is no login behind the link.
func (p Person) LogIn(ctx context.Context, link string) (*Page, error) {
	page, err := p.Open(ctx, link)
	if err != nil {
		return nil, err
	}
	if page.password == "" {
		return nil, fmt.Errorf("%w: no login form behind the link: %s", ErrPage, page)
	}
	values := clone(page.Values)
	values.Set(page.email, p.Email)
	values.Set(page.password, p.Password)
	return page.Post(ctx, values)
}

// SignIn opens the link, signs in and goes on to the page that asks for consent.
// Errors wrap [ErrPage] if the pages do not lead there.
func (p Person) SignIn(ctx context.Context, link string) (*Page, error) {
	page, err := p.LogIn(ctx, link)
	for pages := 1; err == nil; pages++ {
		values := clone(page.Values)
		switch {
		case len(page.Boxes) > 0:
			return page, nil
		case page.password != "":
			return nil, fmt.Errorf("%w: %s", ErrLogin, page)
		case p.UserCode != "" && len(page.typed) == 1:
			values.Set(page.typed[0], p.UserCode)
		case !page.onward:
			return nil, fmt.Errorf("%w: no consent form: %s", ErrPage, page)
		}
		if pages == maxPages {
			return nil, fmt.Errorf("%w: no consent form within %d pages of the login", ErrPage, maxPages)
		}
		page, err = page.Post(ctx, values)
	}
	return nil, err
}

const (
	timeout      = 15 * time.Second
	maxPage      = 1 << 20 // bytes
	maxPages     = 5       // from the login to the consent page
	maxRedirects = 5
)

// Open gets the page behind an address, through redirects. Errors wrap [ErrPage] if
// it, or one that it leads to, may not be opened.
func (p Person) Open(ctx context.Context, address string) (*Page, error) {
	if u, err := url.Parse(address); err == nil && Loopback(u.Hostname()) {
		p.Development = true
	}
	if reason := p.refuse(nil, address); reason != "" {
		return nil, fmt.Errorf("%w: the link %s", ErrRefused, reason)
	}
	return p.open(ctx, http.MethodGet, address, nil, nil)
}

// open requests an address that is not refused, and goes through redirects. The form
// goes on to no other origin than home, if that is not nil.
func (p Person) open(ctx context.Context, method, address string, form url.Values, home *url.URL) (*Page, error) {
	client := http.Client{Timeout: timeout}
	if p.Client != nil {
		client = *p.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for range maxRedirects + 1 {
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
			return nil, fmt.Errorf("person: page of %s: %w", req.URL.Host, err)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("person: page of %s: %w", req.URL.Host, err)
		}
		next, err := resp.Location()
		if err != nil || resp.StatusCode < 300 || resp.StatusCode > 399 {
			page, err := readPage(req.URL, body)
			if err != nil {
				return nil, err
			}
			page.Status, page.person = resp.StatusCode, p
			return page, nil
		}
		address = next.String()
		if reason := p.refuse(req.URL, address); reason != "" {
			return nil, fmt.Errorf("%w: %s redirects to a URL that %s", ErrRefused, req.URL.Host, reason)
		}
		// A browser goes on with GET after 303, and after 301 and 302 to a POST.
		if resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
			method, form, home = http.MethodGet, nil, nil
		}
		if home != nil && origin(next) != origin(home) {
			return nil, fmt.Errorf("%w: %s redirects the password to another origin than the page that asks for it (%d)", ErrElsewhere, req.URL.Host, resp.StatusCode)
		}
	}
	return nil, fmt.Errorf("%w: too many redirects", ErrPage)
}

func clone(v url.Values) url.Values {
	c := url.Values{}
	for name, values := range v {
		c[name] = slices.Clone(values)
	}
	return c
}
