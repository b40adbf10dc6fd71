package sandbox

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// everyPage shows each page once, in each of its states, by name.
func everyPage(t *testing.T) map[string]answer {
	t.Helper()
	w := newWorld(t, withOwner, func(c *Config) {
		c.Params = Defaults()
		c.Params.LoginLimit = Limit{Every: c.Params.LoginLimit.Every, Burst: 1}
	})
	pages := map[string]answer{}
	link := text(t, w.device(scopeUpcoming+" "+scopeRebook), "verification_uri_complete")
	pages["login"] = w.do(http.MethodGet, link, "")
	pages["login, wrong password"] = w.login(link, "nobody@example.com", "wrong")
	pages["login, too many"] = w.login(link, "nobody@example.com", "wrong")
	pages["foreign link"] = w.do(http.MethodGet, w.sandbox.brandURL+"/login?return_to=x", "")
	pages["signed in"] = w.login(link, testAccounts[0].Email, testAccounts[0].Password)
	action, _, assertion := firstForm(t, pages["signed in"])
	pages["consent"] = w.post(action, url.Values{"assertion": {assertion}})
	pages["used"] = w.post(action, url.Values{"assertion": {assertion}})
	pages["run out"] = w.post(action, url.Values{"assertion": {"x"}})
	pages["not ours"] = w.post(action, url.Values{})
	pages["other site"] = w.do(http.MethodPost, action, "", formType, "Origin: https://evil.example")
	_, _, session := firstForm(t, pages["consent"])
	allow := url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeRebook}}
	last := w.post(action, allow).header.Get("Location")
	pages["allowed"] = w.do(http.MethodGet, last, "")
	pages["denied"] = w.do(http.MethodGet, strings.Replace(last, "approved", "denied", 1), "")
	pages["answered"] = w.post(action, allow)
	_, _, assertion = firstForm(t, w.login(link, testAccounts[1].Email, testAccounts[1].Password))
	pages["nobody waits"] = w.post(action, url.Values{"assertion": {assertion}})
	pages["incomplete"] = w.do(http.MethodGet, w.url(LarklineID, "oauth/connected"), "")
	_, _, session = firstForm(t, w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri_complete")))
	pages["not asked"] = w.post(action, url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeCancel}})
	pages["code"] = w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri"))
	_, _, session = firstForm(t, pages["code"])
	pages["code, wrong"] = w.post(action, url.Values{"session": {session}, "user_code": {"nonsense"}})
	pages["code, too many wrong"] = pages["code, wrong"]
	for range codeTries - 1 {
		pages["code, unknown"] = pages["code, too many wrong"]
		_, _, session = firstForm(t, pages["code, unknown"])
		pages["code, too many wrong"] = w.post(action, url.Values{"session": {session}, "user_code": {"BCDF-GHJK"}})
	}

	pages["owner: login"] = w.do(http.MethodGet, w.owner("/login"), "")
	o := openOwner(t, w)
	pages["owner: wrong password"] = w.post(w.owner("/login"), url.Values{"password": {"wrong"}})
	pages["owner: too many"] = w.post(w.owner("/login"), url.Values{"password": {"wrong"}})
	pages["owner: nothing"] = o.get("")
	id, access, _ := w.granted(scopeUpcoming)
	pages["owner: list"] = o.get("")
	pages["owner: no receipts"] = o.get("/grants/" + id)
	w.reply(w.say(LarklineID, "m-1", "", "Show my upcoming flights", access))
	pages["owner: receipts"] = o.get("/grants/" + id)
	pages["owner: revoke?"] = o.get("/grants/" + id + "/revoke")
	pages["owner: stale form"] = o.submit("/logout", url.Values{})
	pages["owner: other site"] = o.submit("/logout", url.Values{}, "Origin: https://evil.example")
	pages["owner: no page"] = o.get("/nope")
	pages["owner: no grant"] = o.get("/grants/nope")
	o.submit("/grants/"+id+"/revoke", url.Values{"token": {o.token(pages["owner: revoke?"])}})
	pages["owner: revoked"] = o.get("/grants/" + id + "?revoked")
	return pages
}

// elements of a page, in its order.
func elements(t *testing.T, a answer) []*html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(string(a.body)))
	if err != nil {
		t.Fatal(err)
	}
	var all []*html.Node
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode {
			all = append(all, n)
		}
	}
	return all
}

func attribute(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

func textIn(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestPagesAreSound holds every page to what assistive technology needs, and to
// loading and running nothing.
func TestPagesAreSound(t *testing.T) {
	titles := map[string]string{}
	again := map[string]bool{"code, wrong": true, "code, unknown": true} // they say what was wrong, and ask again
	for name, a := range everyPage(t) {
		problem := func(format string, args ...any) {
			t.Helper()
			t.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
		}
		count, ids := map[string]int{}, map[string]*html.Node{}
		labelled := map[string]bool{}
		all := elements(t, a)
		for _, n := range all {
			count[n.Data]++
			if id, ok := attribute(n, "id"); ok {
				if ids[id] != nil || id == "" {
					problem("id %q is there twice", id)
				}
				ids[id] = n
			}
			if of, ok := attribute(n, "for"); ok {
				labelled[of] = true
			}
		}
		for _, one := range []string{"h1", "main", "title", "footer", "header"} {
			// A link that is of no brand has no brand's header.
			if count[one] != 1 && (one != "header" || count[one] > 1 || a.status == http.StatusOK) {
				problem("%d of %s", count[one], one)
			}
		}
		level := 0
		for _, n := range all {
			for _, attr := range n.Attr {
				if strings.HasPrefix(attr.Key, "on") || slices.Contains([]string{"style", "src", "srcset", "target", "accesskey"}, attr.Key) {
					problem("<%s %s>", n.Data, attr.Key)
				}
				if strings.HasPrefix(attr.Key, "aria-") && (strings.HasSuffix(attr.Key, "by")) {
					for _, id := range strings.Fields(attr.Val) {
						if ids[id] == nil || textIn(ids[id]) == "" {
							problem("%s=%q names nothing", attr.Key, attr.Val)
						}
					}
				}
			}
			switch n.Data {
			case "html":
				if lang, _ := attribute(n, "lang"); lang != "en" {
					problem("lang %q", lang)
				}
			case "script", "link", "img", "iframe", "object", "base":
				problem("<%s>", n.Data)
			case "title":
				title := textIn(n)
				// A grant is the same page with receipts or without.
				if other := titles[title]; other != "" && !(strings.HasSuffix(name, "receipts") && strings.HasSuffix(other, "receipts")) {
					problem("has the title of %s: %q", other, title)
				}
				titles[title] = name
				if failed := a.status >= 400 && name != "answered" || again[name]; failed != strings.HasPrefix(title, "Error: ") {
					problem("%d with the title %q", a.status, title)
				}
			case "h1", "h2", "h3":
				now := int(n.Data[1] - '0')
				if now > level+1 || textIn(n) == "" {
					problem("<%s>%s after level %d", n.Data, textIn(n), level)
				}
				level = now
			case "input":
				kind, _ := attribute(n, "type")
				id, _ := attribute(n, "id")
				if _, hidden := attribute(n, "hidden"); kind != "hidden" && !hidden && !labelled[id] {
					problem("input %q has no label", id)
				}
				if _, ok := attribute(n, "placeholder"); ok {
					problem("input %q has a placeholder", id)
				}
			case "button", "a", "summary", "legend", "label", "dt", "dd":
				if textIn(n) == "" {
					problem("an empty <%s>", n.Data)
				}
			case "fieldset":
				if n.FirstChild == nil || !strings.Contains(string(a.body), "<legend>") {
					problem("a fieldset without a legend")
				}
			case "svg":
				if hidden, _ := attribute(n, "aria-hidden"); hidden != "true" {
					if outer, _ := attribute(n.Parent, "aria-hidden"); outer != "true" {
						problem("an svg is read out")
					}
				}
			}
		}
		alerts := strings.Count(string(a.body), `role="alert"`)
		if want := a.status >= 400 || again[name]; want != (alerts == 1) {
			problem("%d with %d alerts", a.status, alerts)
		}
	}
}

// TestColoursContrast reads the colours from the stylesheet: text and what stands for
// it has 4.5 to 1 on every ground that it is put on, in light and dark, for every
// brand (WCAG 2.2, 1.4.3); what is a control's edge has 3 to 1 (1.4.11).
func TestColoursContrast(t *testing.T) {
	css := string(pageStyle)
	light, dark, ok := strings.Cut(css, "@media (prefers-color-scheme: dark) {")
	if !ok {
		t.Fatal("no dark scheme")
	}
	dark, _, _ = strings.Cut(dark, "\n}\n")
	rule := regexp.MustCompile(`(:root|\.hue-\w+) \{([^}]*)\}`)
	variable := regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6});`)
	read := func(part string) map[string]map[string]string {
		sets := map[string]map[string]string{}
		for _, r := range rule.FindAllStringSubmatch(part, -1) {
			sets[r[1]] = map[string]string{}
			for _, v := range variable.FindAllStringSubmatch(r[2], -1) {
				sets[r[1]][v[1]] = v[2]
			}
		}
		return sets
	}
	for scheme, part := range map[string]string{"light": light, "dark": dark} {
		sets := read(part)
		root := sets[":root"]
		if len(sets) != hues+2 || len(root) != 11 {
			t.Fatalf("%s: %d sets, %d colours", scheme, len(sets), len(root))
		}
		for hue := range hues {
			if sets[".hue-"+strconv.Itoa(hue)] == nil {
				t.Errorf("%s: no colour %d", scheme, hue)
			}
		}
		for name, set := range sets {
			of := func(colour string) string {
				if c := set[colour]; c != "" {
					return c
				}
				return root[colour]
			}
			for _, pair := range []struct {
				fore, back string
				least      float64
			}{
				{"ink", "paper", 4.5}, {"ink", "ground", 4.5}, {"ink", "alert-ground", 4.5}, {"ink", "good-ground", 4.5},
				{"soft", "paper", 4.5}, {"soft", "ground", 4.5},
				{"strong", "paper", 4.5}, {"strong", "ground", 4.5}, {"on-strong", "strong", 4.5},
				{"alert", "alert-ground", 4.5}, {"paper", "alert", 4.5}, {"good", "good-ground", 4.5}, {"good", "paper", 3},
			} {
				if got := contrast(t, of(pair.fore), of(pair.back)); got < pair.least {
					t.Errorf("%s, %s: %s on %s has %.2f", scheme, name, pair.fore, pair.back, got)
				}
			}
		}
	}
}

// contrast is the ratio of WCAG 2.2.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(colour string) float64 {
		n, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 32)
		if err != nil {
			t.Fatalf("%q is no colour", colour)
		}
		var sum float64
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			c := float64(n>>(16-8*i)&0xff) / 255
			if c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			sum += weight * c
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestBrandMarks(t *testing.T) {
	for name, want := range map[string]string{"Larkline Air": "LA", "Marrow Books & Co": "MB", "acme": "A", "«Ölmühle» 7": "Ö7", "東京 旅行": "東旅", "…": "", "": ""} {
		if got := initialsOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	w := newWorld(t)
	if a, b := w.sandbox.hueOf(LarklineID), w.sandbox.hueOf(MarrowID); a == b || w.sandbox.hueOf("nope") != 0 {
		t.Errorf("hues %d, %d", a, b)
	}
}
