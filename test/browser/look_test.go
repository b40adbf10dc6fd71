package browser

import (
	"bytes"
	_ "embed"
	"fmt"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"
	"github.com/go-json-experiment/json"
)

// screenshots is the folder that pictures are written to; "" is none.
var screenshots = os.Getenv("PACT_SCREENSHOTS")

//go:embed audit.js
var auditScript string

// audit is what audit.js finds on a page.
type audit struct {
	Title       string   `json:"title"`
	Lang        string   `json:"lang"`
	Width       int      `json:"width"`
	ScrollWidth int      `json:"scrollWidth"`
	Scripts     int      `json:"scripts"`
	Wide        []string `json:"wide"`     // what reaches over the edge
	Problems    []string `json:"problems"` // with what is read and used
	Focus       string   `json:"focus"`    // what is wrong with how the focus shows
	Focusables  int      `json:"focusables"`
	Focused     int      `json:"focused"` // by order on the page; -1 is none
}

func (b *tab) audit() audit {
	b.t.Helper()
	return eval[audit](b, auditScript+"(true)")
}

// focus is the part of it that says where the focus is.
func (b *tab) focus() audit {
	b.t.Helper()
	return eval[audit](b, auditScript+"(false)")
}

// look holds the page to what anybody must be able to read and use, in every size
// and colour scheme, and takes the pictures. It returns what is wrong, each once.
func look(b *tab, name string) (problems []string) {
	b.t.Helper()
	found := func(where string, more ...string) {
		for _, p := range more {
			if !slices.ContainsFunc(problems, func(known string) bool { return strings.HasSuffix(known, p) }) {
				problems = append(problems, where+": "+p)
			}
		}
	}
	found("everywhere", listen(b)...)
	schemes := []string{"light", "dark"}
	for _, scheme := range schemes {
		b.scheme(scheme)
		for _, s := range sizes {
			b.resize(s)
			where := scheme + ", " + s.name
			found(where, measure(b)...)
			found(where, picture(b, name+"-"+s.name+"-"+scheme)...)
		}
	}
	b.scheme("light")
	b.resize(size{"zoomed", 640, 400})
	found("zoomed to 200 %", measure(b)...)
	b.resize(sizes[1])
	eval[any](b, `document.documentElement.style.fontSize = "200%"`)
	found("phone, text of 200 %", measure(b)...)
	found("phone, text of 200 %", picture(b, name+"-phone-large")...)
	eval[any](b, `document.documentElement.style.fontSize = ""`)
	b.resize(sizes[0])
	for _, scheme := range schemes {
		b.scheme(scheme)
		found(scheme, tabThrough(b)...)
	}
	return problems
}

// measure holds the page to what can be measured as it is shown now.
func measure(b *tab) []string {
	b.t.Helper()
	a := b.audit()
	if a.ScrollWidth > a.Width {
		a.Problems = append(a.Problems, fmt.Sprintf("the page is %d wide and the screen %d, because of %q", a.ScrollWidth, a.Width, a.Wide))
	}
	return a.Problems
}

// listen holds the page to what a screen reader says.
func listen(b *tab) (problems []string) {
	b.t.Helper()
	a := b.focus()
	if a.Title == "" || a.Lang == "" {
		problems = append(problems, fmt.Sprintf("title %q, language %q", a.Title, a.Lang))
	}
	if a.Scripts > 0 {
		problems = append(problems, "the page has a script")
	}
	count := map[string]int{}
	for _, n := range do(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored {
			continue
		}
		role, name := saidOf(n.Role), saidOf(n.Name)
		for _, p := range n.Properties {
			switch value := string(p.Value.Value); {
			case p.Name == accessibility.PropertyNameLevel && role == "heading":
				role += value
			case p.Name == accessibility.PropertyNameFocusable && value == "true" && name == "":
				problems = append(problems, "a "+role+" has no name")
			}
		}
		count[role]++
	}
	if count["heading1"] != 1 || count["main"] != 1 {
		problems = append(problems, fmt.Sprintf("%d headings of level 1 and %d main landmarks, not one each", count["heading1"], count["main"]))
	}
	return problems
}

// saidOf is a text of the accessibility tree.
func saidOf(v *accessibility.Value) (s string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &s) // what is no string says nothing
	}
	return s
}

// tabThrough goes from the first control to the last by Tab: in the order of the
// page, and so that one sees where one is.
func tabThrough(b *tab) (problems []string) {
	b.t.Helper()
	a := b.focus()
	// Where the page has the focus at first is its own to say.
	for range a.Focusables + 1 {
		if a.Focusables == 0 || a.Focused == 0 {
			break
		}
		b.keys(kb.Tab)
		a = b.focus()
	}
	for i := range a.Focusables {
		if i > 0 {
			b.keys(kb.Tab)
			a = b.focus()
		}
		if a.Focused != i {
			return append(problems, fmt.Sprintf("Tab leads to control %d of the page, not to %d", a.Focused, i))
		}
		if a.Focus != "" {
			problems = append(problems, a.Focus)
		}
	}
	return problems
}

// picture takes a screenshot of the whole page, which must show something. Without a
// name it is kept nowhere.
func picture(b *tab, name string) (problems []string) {
	b.t.Helper()
	whole := do(b, page.GetLayoutMetrics, cdp.Empty{}).CSSContentSize
	data := do(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: new(true), OptimizeForSpeed: new(true),
		Clip: &page.Viewport{Width: whole.Width, Height: whole.Height, Scale: 1},
	}).Data
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.t.Fatalf("screenshot: %v", err)
	}
	colors := map[color.Color]bool{}
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y += 3 {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x += 3 {
			colors[img.At(x, y)] = true
		}
	}
	// Text alone has the shades of its edges.
	if len(colors) < 10 {
		problems = append(problems, "the picture is blank")
	}
	if dir := screenshots; dir != "" && name != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	return problems
}

// TestLookFinds shows that look finds what it is there to find, on pages that have
// everything wrong, and that a tab notes what a page loads and that no script ran.
func TestLookFinds(t *testing.T) {
	t.Parallel()
	const bad = `<!doctype html><style>
		p { color: #999; background: #fff } small { font-size: 10px } body { background: #fff; color: #000 }
		input { border: 1px solid #eee; background: #fff } a { outline: none !important } #dot { width: 10px; height: 10px; padding: 0; border: 0 }
		#wide { width: 2000px } #later { position: absolute; top: 0 } main { width: 50px }
		</style><h1>One</h1><h1>Two</h1><p>Faint</p><small>Small print</small><main><div id="wide">Wide</div></main>
		<a href="/">Here</a> <input> <button id="dot" aria-label="dot"></button> <button tabindex="3">First</button> <button id="later">Up</button>
		<script>document.title = "scripted"; console.log("ran")</script><img src="/picture.png" alt="">`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if r.URL.Path == "/blocked" {
			w.Header().Set("Content-Security-Policy", "default-src 'none'")
		}
		_, _ = w.Write([]byte(bad))
	}))
	t.Cleanup(srv.Close)
	b := newTab(t)
	b.visit(srv.URL)
	found := strings.Join(slices.Concat(listen(b), measure(b), tabThrough(b), b.takeProblems()), "\n")
	for _, want := range []string{
		`title ""`, "has a script", "textbox has no name", "2 headings of level 1 and 1 main", "p “Faint” is faint: contrast 2.85", "is small print: 10px",
		"has a faint edge", "sticks out", "is too small to hit: 10x10", "comes later by Tab", "the page is 2008 wide", `div “Wide”`, "Tab leads to control",
		"does not show the focus", "the page loads Image",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("nothing found like %q", want)
		}
	}
	b.visit(srv.URL + "/blocked")
	b.objects("Content Security Policy") // which refused something
	b.visit("data:text/html,<!doctype html><title>Blank</title>")
	if got := picture(b, ""); len(got) == 0 {
		t.Error("a blank page is not found blank")
	}
	if t.Failed() {
		t.Logf("found:\n%s", found)
	}
}
