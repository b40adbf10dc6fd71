// Package browser uses the sandbox's pages, and the operator's page of a signer, as
// people do: in the system's Chromium, over real sockets, with a real grant or a
// real rotation behind them. Scripts are disabled in every tab, so that nothing of
// a page can depend on them.
//
// What is found on a page is found by its accessible role and name, as a screen
// reader says it. Every tab notes what Chromium has against the pages it saw
// (refused by the Content-Security-Policy, loaded from elsewhere, fields without
// labels), and the test fails for it.
//
// TestPages brings up every page in every state and holds it to what anybody must
// be able to read and use. With PACT_SCREENSHOTS=DIR it writes what it saw there.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/test/servers"
)

// stepTimeout bounds what one step in a tab may take, on a busy machine.
const stepTimeout = 60 * time.Second

// chromium is the browser of all tests; the first that needs it starts it.
var chromium struct {
	once sync.Once
	ctx  context.Context
	end  func() error
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.end != nil {
		if err := chromium.end(); err != nil {
			fmt.Fprintln(os.Stderr, "browser: end Chromium:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func startChromium() (_ context.Context, end func() error, _ error) {
	path, err := servers.Chromium()
	if err != nil {
		return nil, nil, err
	}
	// Of its own: what is left of Chromium may write there for a while after its end.
	dir, err := os.MkdirTemp("", "pact-browser-")
	if err != nil {
		return nil, nil, err
	}
	var said strings.Builder
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(dir),
		chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("no-proxy-server", true),
		chromedp.CombinedOutput(&said),
		chromedp.WSURLReadTimeout(stepTimeout),
	)
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx)
	if err := chromedp.Do(ctx); err != nil {
		stop()
		_ = remove(dir)
		return nil, nil, fmt.Errorf("%s does not start: %w\n%s", path, err, &said)
	}
	return ctx, func() error {
		err := chromedp.Cancel(ctx)
		stop()
		return errors.Join(err, remove(dir))
	}, nil
}

// remove removes a folder that something may still be written to.
func remove(dir string) error {
	for late := time.Now().Add(stepTimeout); ; <-time.After(20 * time.Millisecond) {
		if err := os.RemoveAll(dir); err == nil || time.Now().After(late) {
			return err
		}
	}
}

// tab is a tab of a visitor.
type tab struct {
	t   *testing.T
	ctx context.Context

	// wrong: what it saw is wrong on purpose, so that nothing is held against it that
	// Chromium says of it, in its own time.
	wrong bool

	mu       sync.Mutex
	problems []string // that Chromium has with what it saw
}

// newTab is a tab of a visitor who was never here.
func newTab(t *testing.T) *tab {
	t.Helper()
	chromium.once.Do(func() { chromium.ctx, chromium.end, chromium.err = startChromium() })
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	return openTab(t, chromium.ctx, chromedp.WithNewBrowserContext())
}

// another is a further tab of the same visitor.
func (b *tab) another() *tab {
	b.t.Helper()
	return openTab(b.t, b.ctx)
}

func openTab(t *testing.T, parent context.Context, options ...chromedp.ContextOption) *tab {
	t.Helper()
	b := &tab{t: t}
	ctx, cancel := chromedp.NewContext(parent, append(options, chromedp.WithListener(b.note))...)
	b.ctx = ctx
	t.Cleanup(func() {
		cancel()
		for _, p := range b.takeProblems() {
			if !b.wrong {
				t.Errorf("Chromium: %s", p)
			}
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("no tab: %v", err)
	}
	do(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	do(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	do(b, audits.Enable, cdp.Empty{})
	b.resize(sizes[0])
	return b
}

// note keeps what Chromium has against a page.
func (b *tab) note(event any) {
	var problem string
	switch e := event.(type) {
	case *log.EventEntryAdded:
		// That a page has the status of an error is for the tests to judge.
		if e.Entry.Source != log.EntrySourceNetwork {
			problem = fmt.Sprintf("%s %s: %s", e.Entry.Source, e.Entry.Level, e.Entry.Text)
		}
	case *audits.EventIssueAdded:
		details, _ := json.Marshal(e.Issue.Details)
		problem = fmt.Sprintf("%s: %s", e.Issue.Code, details)
	case *runtime.EventConsoleAPICalled:
		problem = "a script ran on the page"
	case *runtime.EventExceptionThrown:
		problem = "a script failed on the page"
	case *network.EventRequestWillBeSent:
		// Chromium's own error page has pictures.
		if e.Type != network.ResourceTypeDocument && !strings.HasPrefix(e.DocumentURL, "chrome-error:") {
			problem = fmt.Sprintf("the page loads %s %s", e.Type, e.Request.URL)
		}
	}
	if problem != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.problems = append(b.problems, problem)
	}
}

// takeProblems returns what was noted, and forgets it.
func (b *tab) takeProblems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	problems := b.problems
	b.problems = nil
	return problems
}

// objects waits until Chromium has said something against a page that is wrong on
// purpose.
func (b *tab) objects(text string) {
	b.t.Helper()
	b.wrong = true
	var said []string
	b.await("word of Chromium's about "+text, func() bool {
		said = append(said, b.takeProblems()...)
		return strings.Contains(strings.Join(said, "\n"), text)
	})
}

// do runs a protocol command in the tab; an error fails the test.
func do[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	r, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v", command.Method, err)
	}
	return r
}

// eval asks the page. That works with scripts disabled: the page has none, the
// question is Chromium's.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("ask the page: %v", err)
	}
	return v
}

// status runs a step that brings up a page, and returns its HTTP status.
func (b *tab) status(what string, step chromedp.Action[chromedp.Void]) int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, step)
	if err != nil {
		b.t.Fatalf("%s: %v\nat: %s", what, err, b.read())
	}
	return int(response.Status)
}

// visit opens an address.
func (b *tab) visit(address string) int {
	b.t.Helper()
	return b.status("visit", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.Navigate, page.NavigateParams{URL: address})
		return err
	}))
}

// reload is the browser's button; a page that was posted is posted again.
func (b *tab) reload() int {
	b.t.Helper()
	return b.status("reload", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.Reload, page.ReloadParams{})
		return err
	}))
}

// back is the browser's button. It tells whether there is a page: what was posted
// and may not be kept, Chromium offers to post again.
func (b *tab) back() bool {
	b.t.Helper()
	history := do(b, page.GetNavigationHistory, cdp.Empty{})
	want := history.CurrentIndex - 1
	if want < 0 {
		b.t.Fatal("there is no page to go back to")
	}
	do(b, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: history.Entries[want].ID})
	b.await("page before", func() bool {
		// While Chromium changes pages it has none to ask: an error is "not yet".
		ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
		defer cancel()
		now, err := chromedp.Call(ctx, page.GetNavigationHistory, cdp.Empty{})
		if err != nil || now.CurrentIndex != want {
			return false
		}
		ready, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.readyState"))
		return err == nil && ready == "complete"
	})
	return !strings.HasPrefix(b.address(), "chrome-error:")
}

// await asks until it is so.
func (b *tab) await(what string, so func() bool) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(stepTimeout); !so(); {
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("no %s\nat: %s", what, b.read())
		}
	}
}

// element is the one element of a role and name that is not hidden.
func (b *tab) element(role, name string) cdp.BackendNodeID {
	b.t.Helper()
	root := do(b, dom.GetDocument, dom.GetDocumentParams{}).Root
	found := do(b, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{BackendNodeID: root.BackendNodeID, Role: role, AccessibleName: name})
	var ids []cdp.BackendNodeID
	for _, n := range found.Nodes {
		if !n.Ignored {
			ids = append(ids, n.BackendDOMNodeID)
		}
	}
	if len(ids) != 1 {
		b.t.Fatalf("the page has %d of %s %q, not one\nat: %s", len(ids), role, name, b.read())
	}
	return ids[0]
}

// center is where a mouse would go for an element.
func (b *tab) center(id cdp.BackendNodeID) (x, y float64) {
	b.t.Helper()
	do(b, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{BackendNodeID: id})
	quads := do(b, dom.GetContentQuads, dom.GetContentQuadsParams{BackendNodeID: id}).Quads
	if len(quads) == 0 {
		b.t.Fatal("the element is nowhere on the page")
	}
	q := quads[0] // corners, clockwise
	return (q[0] + q[4]) / 2, (q[1] + q[5]) / 2
}

// click clicks what leads to no other page.
func (b *tab) click(role, name string) {
	b.t.Helper()
	b.clickAt(b.center(b.element(role, name)))
}

func (b *tab) clickAt(x, y float64) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.MouseClickXY(x, y)); err != nil {
		b.t.Fatalf("click: %v", err)
	}
}

// press clicks a button that brings up a page.
func (b *tab) press(name string) int {
	b.t.Helper()
	x, y := b.center(b.element("button", name))
	return b.status("press "+name, chromedp.MouseClickXY(x, y))
}

// follow clicks a link.
func (b *tab) follow(name string) int {
	b.t.Helper()
	x, y := b.center(b.element("link", name))
	return b.status("follow "+name, chromedp.MouseClickXY(x, y))
}

// write types into a field what shall be in it.
func (b *tab) write(name, text string) {
	b.t.Helper()
	id := b.element("textbox", name)
	do(b, dom.Focus, dom.FocusParams{BackendNodeID: id})
	b.keys("a", chromedp.KeyModifiers(kb.ModifierCtrl))
	b.keys(kb.Delete)
	do(b, input.InsertText, input.InsertTextParams{Text: text})
}

// keys presses keys that bring up no page.
func (b *tab) keys(keys string, options ...chromedp.KeyOption) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.KeyEvent(keys, options...)); err != nil {
		b.t.Fatalf("press keys: %v", err)
	}
}

// pressKey presses a key that brings up a page.
func (b *tab) pressKey(key string) int {
	b.t.Helper()
	return b.status("press a key", chromedp.KeyEvent(key))
}

// heading is what the page is headed.
func (b *tab) heading() string {
	b.t.Helper()
	return eval[string](b, `document.querySelector("h1")?.innerText ?? ""`)
}

// at fails the test unless the page is headed so.
func (b *tab) at(heading string) {
	b.t.Helper()
	if got := b.heading(); got != heading {
		b.t.Fatalf("the page is headed %q, not %q\n%s", got, heading, b.read())
	}
}

// reads fails the test unless the page says so.
func (b *tab) reads(text string) {
	b.t.Helper()
	if got := b.read(); !strings.Contains(got, text) {
		b.t.Fatalf("the page does not say %q:\n%s", text, got)
	}
}

// read is what the page says.
func (b *tab) read() string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.title + "\n" + (document.body?.innerText ?? "")`))
	if err != nil {
		return fmt.Sprintf("(unreadable: %v)", err)
	}
	return text
}

// address is where the tab is.
func (b *tab) address() string {
	b.t.Helper()
	return eval[string](b, `location.href`)
}

// size is a screen.
type size struct {
	name          string
	width, height int64
}

// sizes: the first is that of a new tab.
var sizes = []size{{"desktop", 1280, 800}, {"phone", 390, 844}, {"narrow", 320, 568}}

func (b *tab) resize(s size) {
	b.t.Helper()
	scale := 1.0
	if screenshots != "" && s.width < 1000 {
		scale = 2 // as phones have it, for who looks at the pictures
	}
	do(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: s.width, Height: s.height, DeviceScaleFactor: scale, Mobile: s.width < 600,
	})
}

// scheme sets the colour scheme: light or dark.
func (b *tab) scheme(name string) {
	b.t.Helper()
	do(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}
