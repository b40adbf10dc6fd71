package person

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// Page is a page as a person sees it: its heading and its first form. It prints as
// heading and status, without what the form holds.
type Page struct {
	URL     *url.URL
	Status  int    // HTTP
	Heading string // with what the page says went wrong
	// Action is where the first form goes, an absolute URL; empty without a form.
	Action string
	// Values are what the form would send unchanged, boxes left out.
	Values url.Values
	// Boxes are the checkboxes named scope, ticked or not.
	Boxes []Box

	person          Person
	get             bool     // the form's method
	email, password string   // names of the login's fields
	typed           []string // names of all fields for a text
	onward          bool     // the form has nothing to fill in or to decide
}

// Box is a permission on a consent page, with the business's words.
type Box struct {
	ID, Text string
}

// Asks tells whether the page has a box for the scope.
func (p *Page) Asks(scope string) bool {
	return slices.ContainsFunc(p.Boxes, func(b Box) bool { return b.ID == scope })
}

// AsksPassword tells whether the page is a login.
func (p *Page) AsksPassword() bool { return p.password != "" }

// Post sends the form with these values and returns the page that follows. Errors
// wrap [ErrPage] if there is no form.
func (p *Page) Post(ctx context.Context, values url.Values) (*Page, error) {
	if p.Action == "" {
		return nil, fmt.Errorf("%w: it has no form: %s", ErrPage, p)
	}
	if !p.get {
		return p.person.open(ctx, http.MethodPost, p.Action, values)
	}
	address, err := url.Parse(p.Action)
	if err != nil {
		return nil, fmt.Errorf("%w: the form goes nowhere", ErrPage)
	}
	address.RawQuery = values.Encode() // as browsers do: the action's own query goes
	return p.person.open(ctx, http.MethodGet, address.String(), nil)
}

// Answer sends a consent form with a decision, "allow" or "deny", and these scopes
// ticked.
func (p *Page) Answer(ctx context.Context, decision string, scopes ...string) (*Page, error) {
	values := clone(p.Values)
	values.Del("scope")
	for _, id := range scopes {
		values.Add("scope", id)
	}
	values.Set("decision", decision)
	return p.Post(ctx, values)
}

// String is for errors: what the page is, and nothing of its form or address.
func (p *Page) String() string {
	heading := []rune(p.Heading)
	if len(heading) > maxHeading {
		heading = append(heading[:maxHeading], '…')
	}
	if len(heading) == 0 {
		return fmt.Sprintf("a page without a heading (%d)", p.Status)
	}
	return fmt.Sprintf("%q (%d)", string(heading), p.Status)
}

// GoString is String.
func (p *Page) GoString() string { return p.String() }

// Format is String, whatever the verb.
func (p *Page) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(p.String())) }

const maxHeading = 200

// readPage reads the heading and the first form of a page, however loosely it is
// written.
func readPage(at *url.URL, body []byte) (*Page, error) {
	doc, err := html.Parse(strings.NewReader(string(body)))
	if err != nil {
		return nil, fmt.Errorf("%w: not HTML", ErrPage)
	}
	page := &Page{URL: at, Values: url.Values{}}
	var form, latest *html.Node
	var controls []*html.Node
	base, title := at, ""
	labels := map[string]string{}
	for n := range doc.Descendants() {
		switch n.DataAtom {
		case atom.Base:
			if href, err := at.Parse(attr(n, "href")); err == nil {
				base = href
			}
		case atom.Title:
			title = textOf(n)
		case atom.H1:
			page.Heading = textOf(n)
		case atom.Label:
			labels[attr(n, "for")] = textOf(n)
		case atom.Form:
			latest = n
			if form == nil {
				form = n
			}
		case atom.Input, atom.Button:
			if form != nil && belongs(n, form, latest) && !has(n, "disabled") {
				controls = append(controls, n)
			}
		}
		if attr(n, "role") == "alert" {
			page.Heading += ": " + textOf(n)
		}
	}
	if page.Heading == "" || strings.HasPrefix(page.Heading, ": ") {
		page.Heading = title + page.Heading
	}
	if form == nil {
		return page, nil
	}
	action := at // an empty one is the page itself
	if written := strings.TrimSpace(attr(form, "action")); written != "" {
		if action, err = base.Parse(written); err != nil {
			return nil, fmt.Errorf("%w: the form goes nowhere", ErrPage)
		}
	}
	page.Action, page.get = action.String(), strings.EqualFold(attr(form, "method"), "get")
	page.email, page.onward = "email", true
	for _, n := range controls {
		page.readControl(n, labels)
	}
	return page, nil
}

// readControl adds what an input of the form sends. Buttons send nothing unless
// pressed.
func (p *Page) readControl(n *html.Node, labels map[string]string) {
	name, kind := attr(n, "name"), strings.ToLower(attr(n, "type"))
	switch {
	case n.DataAtom == atom.Button, kind == "submit", kind == "image":
		p.onward = p.onward && name == "" // one with a name decides something
		return
	case kind == "button", kind == "reset", kind == "file":
		return
	case kind != "hidden":
		p.onward = false
	}
	if name == "" {
		return
	}
	switch kind {
	case "checkbox", "radio":
		value := attr(n, "value")
		if !has(n, "value") {
			value = "on"
		}
		if kind == "checkbox" && name == "scope" {
			p.Boxes = append(p.Boxes, Box{value, labelOf(n, labels)})
		} else if has(n, "checked") {
			p.Values.Add(name, value)
		}
		return
	case "password":
		if p.password == "" {
			p.password = name
		}
	case "email", "text", "":
		p.typed = append(p.typed, name)
		if p.password == "" { // the account is asked for before it
			p.email = name
		}
	}
	p.Values.Add(name, attr(n, "value"))
}

// belongs tells whether a control is the first form's. A form that opens inside a
// table is closed at once by the parser, and what follows is its own all the same.
func belongs(n, first, latest *html.Node) bool {
	if has(n, "form") {
		return attr(n, "form") == attr(first, "id") && has(first, "id")
	}
	for a := n.Parent; a != nil; a = a.Parent {
		if a.DataAtom == atom.Form {
			return a == first
		}
	}
	return latest == first && first.FirstChild == nil
}

// labelOf is the text of the label that names the input or is around it.
func labelOf(n *html.Node, labels map[string]string) string {
	if id := attr(n, "id"); id != "" && labels[id] != "" {
		return labels[id]
	}
	for a := n.Parent; a != nil; a = a.Parent {
		if a.DataAtom == atom.Label {
			return textOf(a)
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
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
