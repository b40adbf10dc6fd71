package person

import (
	"bytes"
	"cmp"
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
// wrap [ErrPage] if there is no form, and [ErrRefused] if it may not be sent where it
// goes.
func (p *Page) Post(ctx context.Context, values url.Values) (*Page, error) {
	if p.Action == "" {
		return nil, fmt.Errorf("%w: it has no form: %s", ErrPage, p)
	}
	if reason := p.person.refuse(p.URL, p.Action); reason != "" {
		return nil, fmt.Errorf("%w: the form goes to a URL that %s: %s", ErrRefused, reason, p)
	}
	address, err := url.Parse(p.Action)
	if err != nil {
		return nil, fmt.Errorf("%w: the form goes nowhere", ErrPage)
	}
	var home *url.URL // the only origin that may get these values
	if p.password != "" && strings.Join(values[p.password], "") != "" {
		home = p.URL
		switch {
		case p.get:
			return nil, fmt.Errorf("%w: the form would show the password in an address (its method is get): %s", ErrRefused, p)
		case origin(address) != origin(home):
			return nil, fmt.Errorf("%w: the form sends the password to another origin than the page that asks for it: %s", ErrElsewhere, p)
		}
	}
	if !p.get {
		return p.person.open(ctx, http.MethodPost, p.Action, values, home)
	}
	address.RawQuery = values.Encode() // as browsers do: the action's own query goes
	return p.person.open(ctx, http.MethodGet, address.String(), nil, nil)
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
// written, in time that grows with its length and no faster.
func readPage(at *url.URL, body []byte) (*Page, error) {
	doc, err := html.Parse(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: not HTML", ErrPage)
	}
	r := reader{at: at, base: at, labels: map[string]*html.Node{}, texts: map[*html.Node]string{}}
	r.walk(doc, nil, nil)
	page := &Page{URL: at, Values: url.Values{}, Heading: cmp.Or(r.heading, r.title)}
	if r.alert != "" {
		page.Heading += ": " + r.alert
	}
	if r.form == nil {
		return page, nil
	}
	action := at // an empty one is the page itself
	if written := strings.TrimSpace(attr(r.form, "action")); written != "" {
		if action, err = r.base.Parse(written); err != nil {
			return nil, fmt.Errorf("%w: the form goes nowhere", ErrPage)
		}
	}
	page.Action, page.get = action.String(), strings.EqualFold(attr(r.form, "method"), "get")
	page.email, page.onward = "email", true
	for _, c := range r.controls {
		page.readControl(c.node, func() string { return r.labelOf(c) })
	}
	return page, nil
}

// reader collects what a page has, in one walk over it.
type reader struct {
	at, base              *url.URL
	title, heading, alert string     // the first of each that says something
	form, latest          *html.Node // the first form, and the last so far
	controls              []control  // of the first form
	labels                map[string]*html.Node
	texts                 map[*html.Node]string // of labels, as far as asked for
}

// control is an input or a button, and the label around it.
type control struct{ node, label *html.Node }

// walk reads what is inside a node, which is in that form and in that label, if any.
func (r *reader) walk(in, form, label *html.Node) {
	for n := range in.ChildNodes() {
		form, label := form, label
		switch n.DataAtom {
		case atom.Base:
			if href, err := r.at.Parse(attr(n, "href")); err == nil {
				r.base = href
			}
		case atom.Title:
			say(&r.title, n)
		case atom.H1:
			say(&r.heading, n)
		case atom.Label:
			label = n
			if id := attr(n, "for"); r.labels[id] == nil {
				r.labels[id] = n
			}
		case atom.Form:
			form, r.latest = n, n
			if r.form == nil {
				r.form = n
			}
		case atom.Input, atom.Button:
			if r.form != nil && r.belongs(n, form) && !has(n, "disabled") {
				r.controls = append(r.controls, control{n, label})
			}
		}
		if attr(n, "role") == "alert" {
			say(&r.alert, n)
		}
		r.walk(n, form, label)
	}
}

// say notes the text of a node, unless another one said something before.
func say(text *string, n *html.Node) {
	if *text == "" {
		*text = textOf(n)
	}
}

// readControl adds what an input of the form sends. Buttons send nothing unless
// pressed.
func (p *Page) readControl(n *html.Node, label func() string) {
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
			p.Boxes = append(p.Boxes, Box{value, label()})
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

// belongs tells whether a control, in that form if any, is the first form's. A form
// that opens inside a table is closed at once by the parser, and what follows is its
// own all the same.
func (r *reader) belongs(n, in *html.Node) bool {
	switch {
	case has(n, "form"):
		return attr(n, "form") == attr(r.form, "id") && has(r.form, "id")
	case in != nil:
		return in == r.form
	}
	return r.latest == r.form && r.form.FirstChild == nil
}

// labelOf is the text of the label that names the control or is around it.
func (r *reader) labelOf(c control) string {
	label := c.label
	if id := attr(c.node, "id"); id != "" && r.labels[id] != nil {
		label = r.labels[id]
	}
	if label == nil {
		return ""
	}
	text, ok := r.texts[label]
	if !ok {
		text = textOf(label)
		r.texts[label] = text
	}
	return text
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

// What is read of one text, so that texts inside texts cost little.
const (
	maxText  = 2 << 10 // bytes, spaces among them
	maxNodes = 1000
)

// textOf is the text of a node, or its beginning.
func textOf(n *html.Node) string {
	var b strings.Builder
	nodes := 0
	for c := range n.Descendants() {
		if nodes++; nodes > maxNodes || b.Len() == maxText {
			break
		}
		if c.Type == html.TextNode {
			b.WriteString(c.Data[:min(len(c.Data), maxText-b.Len())])
		}
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(b.String()), " "), "")
}
