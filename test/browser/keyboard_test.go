package browser

import (
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp/kb"
)

const space, enter = " ", kb.Enter

// focused is the role and name of what has the focus.
func (b *tab) focused() string {
	b.t.Helper()
	found := do(b, runtime.Evaluate, runtime.EvaluateParams{Expression: "document.activeElement"}).Result
	id := do(b, dom.DescribeNode, dom.DescribeNodeParams{ObjectID: found.ObjectID}).Node.BackendNodeID
	for _, n := range do(b, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{BackendNodeID: id, FetchRelatives: new(false)}).Nodes {
		if n.BackendDOMNodeID == cdp.BackendNodeID(id) {
			return saidOf(n.Role) + " " + saidOf(n.Name)
		}
	}
	return ""
}

// tabTo presses Tab until something has the focus.
func (b *tab) tabTo(what string) {
	b.t.Helper()
	var seen []string
	for range 20 {
		if b.focused() == what {
			return
		}
		b.keys(kb.Tab)
		seen = append(seen, b.focused())
	}
	b.t.Fatalf("Tab never leads to %q, but to %q", what, seen)
}

func (b *tab) typed(text string) {
	b.t.Helper()
	do(b, input.InsertText, input.InsertTextParams{Text: text})
}

// The whole way with Tab, Space and Enter alone.
func TestKeyboardOnly(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	b.visit(r.Link)
	b.tabTo("textbox Email")
	b.typed(robin.Email)
	b.keys(kb.Tab)
	b.typed("wrong at first")
	b.pressKey(enter)
	b.reads("Email or password is not right")
	b.await("focus on the password", func() bool { return b.focused() == "textbox Password" }) // Chromium gives it after the page is there
	b.typed(robin.Password)
	b.keys(kb.Tab)
	b.pressKey(space)
	b.at("You are signed in")
	b.tabTo("button Continue")
	b.pressKey(enter)
	b.at(consentHeading)
	b.tabTo("checkbox " + sayHistory)
	b.keys(space)
	b.keys(kb.Tab)
	b.keys(space)
	b.keys(space) // and back again
	b.tabTo("button Allow")
	b.pressKey(space)
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming+" "+scopeRebook+" "+scopeCancel)
}

// Enter in a field sends its form by the first button. That must not be Allow.
func TestEnterAllowsNothing(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	w.open(b, r.Link)
	b.tabTo("checkbox " + sayUpcoming)
	b.pressKey(enter)
	b.at("Nothing was allowed")
	w.wantRefused(r, "access_denied")
}
