package conformance

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/sandbox"
)

// rewrite changes an answer of the sandbox on its way.
type rewrite func(r *http.Request, w *httptest.ResponseRecorder)

// behind starts a sandbox whose answers, on both origins, go through the rewrites.
func behind(t *testing.T, rewrites ...rewrite) *world {
	t.Helper()
	var w *world
	serve := func(inner func() http.Handler) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			came := httptest.NewRecorder()
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			inner().ServeHTTP(came, r)
			r.Body = io.NopCloser(bytes.NewReader(body)) // the rewrites may read it again
			for _, change := range rewrites {
				change(r, came)
			}
			came.Header().Del("Content-Length")
			for name, values := range came.Header() {
				out.Header()[name] = values
			}
			out.WriteHeader(came.Code)
			_, _ = out.Write(came.Body.Bytes())
		}))
		t.Cleanup(s.Close)
		return s
	}
	provider := serve(func() http.Handler { return w.sandbox.Provider() })
	login := serve(func() http.Handler { return w.sandbox.BrandSite() })
	w = newWorld(t, func(c *sandbox.Config) { c.PublicURL, c.BrandURL = provider.URL, login.URL })
	return w
}

// changeJSON changes the members of a JSON object that the sandbox answers with.
func changeJSON(w *httptest.ResponseRecorder, change func(map[string]jsontext.Value)) {
	var all map[string]jsontext.Value
	if json.Unmarshal(w.Body.Bytes(), &all) != nil {
		return
	}
	change(all)
	body, _ := json.Marshal(all)
	w.Body = bytes.NewBuffer(body)
}

// dropping takes members out of every JSON object.
func dropping(names ...string) rewrite {
	return func(_ *http.Request, w *httptest.ResponseRecorder) {
		changeJSON(w, func(all map[string]jsontext.Value) {
			for _, name := range names {
				delete(all, name)
			}
		})
	}
}

// replacing changes a text of the answers.
func replacing(old, with string) rewrite {
	return func(_ *http.Request, w *httptest.ResponseRecorder) {
		w.Body = bytes.NewBufferString(strings.ReplaceAll(w.Body.String(), old, with))
	}
}

// TestOtherProviders runs the suite against Providers that do as the protocol says, and
// otherwise than ours in what it leaves open.
func TestOtherProviders(t *testing.T) {
	for name, c := range map[string]struct {
		rewrites []rewrite
		config   func(*Config)
		notRun   string // the only ids that may be, by prefix
	}{
		"no refresh tokens": {[]rewrite{dropping("refresh_token")}, nil, "refresh-"},
		"other words, members, types and pages": {[]rewrite{
			dropping("interval", "error_description"),
			replacing(`"token_type":"Bearer"`, `"token_type":"bearer"`),
			replacing(`"slow_down"`, `"authorization_pending"`),
			loosely,
			func(_ *http.Request, w *httptest.ResponseRecorder) {
				changeJSON(w, func(all map[string]jsontext.Value) { all["x-more"] = jsontext.Value(`{"a":[1]}`) })
				if t := w.Header().Get("Content-Type"); t != "" {
					w.Header().Set("Content-Type", t+"; charset=UTF-8")
				}
			},
		}, nil, ""},
		"a query that is none is refused by who reads it": {[]rewrite{func(r *http.Request, w *httptest.ResponseRecorder) {
			if strings.Contains(r.URL.RawQuery, "%zz") {
				w.Code, w.Body = http.StatusBadRequest, bytes.NewBufferString("bad query")
				w.Header().Set("Content-Type", "text/plain")
			}
		}}, nil, ""},
		"what opened a context is known again without one": {[]rewrite{remembering()}, nil, ""},
		"the asks are the card's":                          {nil, func(c *Config) { c.Asks = nil }, ""},
		"no description draws a step-up": {[]rewrite{
			func(_ *http.Request, w *httptest.ResponseRecorder) {
				w.Body = bytes.NewBufferString(scopeTexts.ReplaceAllString(w.Body.String(), `"flights:$1":"Hello"`))
			},
		}, func(c *Config) { c.Asks = nil }, "stepup-"},
	} {
		t.Run(name, func(t *testing.T) {
			w := behind(t, c.rewrites...)
			if c.config != nil {
				c.config(&w.cfg)
			}
			results, _ := w.run(t)
			for _, r := range results {
				if r.Status == Failed || r.Status == NotRun && (c.notRun == "" || !strings.HasPrefix(r.ID, c.notRun)) {
					t.Errorf("%s %s: %s", r.ID, r.Status, r.Detail)
				}
			}
		})
	}
}

// remembering answers a message without a contextId as the first time, if the same
// user sent the same before.
func remembering() rewrite {
	var mu sync.Mutex
	stored := map[string][]byte{}
	return func(r *http.Request, w *httptest.ResponseRecorder) {
		body, _ := io.ReadAll(r.Body)
		parts := strings.Split(r.Header.Get("Authorization"), ".")
		if !strings.HasSuffix(r.URL.Path, "/message:send") || w.Code != http.StatusOK || len(parts) != 3 {
			return
		}
		var said struct {
			Message struct {
				ID      string `json:"messageId"`
				Context string `json:"contextId"`
			} `json:"message"`
		}
		var who struct{ Iss, Sub string }
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(claims, &who, json.MatchCaseInsensitiveNames(true))
		if json.Unmarshal(body, &said) != nil || said.Message.Context != "" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		key := strings.Join([]string{r.URL.Path, who.Iss, who.Sub, said.Message.ID}, " ")
		if reply, ok := stored[key]; ok {
			w.Body = bytes.NewBuffer(slices.Clone(reply))
			return
		}
		stored[key] = slices.Clone(w.Body.Bytes())
	}
}

// Where the suite itself sends no password, nothing can be said of a wrong one.
func TestLoginElsewhere(t *testing.T) {
	for form, want := range map[string]Status{
		`method=post action="http://localhost:9/login"`: NotRun, // the protocol does not forbid it
		`method=get`: Failed,
	} {
		w := behind(t, func(_ *http.Request, w *httptest.ResponseRecorder) {
			if page := w.Body.String(); strings.Contains(page, `type="password"`) {
				w.Body = bytes.NewBufferString(strings.Replace(page, "<form ", "<form "+form+" ", 1))
			}
		})
		results, _ := w.run(t, "signin-pages", "signin-wrong-password")
		for _, r := range results {
			want := want
			if r.ID == "signin-wrong-password" {
				want = NotRun
			}
			if r.Status != want || !strings.Contains(r.Detail, "the form ") {
				t.Errorf("%s: %s: %s: %s; want %s", form, r.ID, r.Status, r.Detail, want)
			}
		}
	}
}

var (
	scopeTexts = regexp.MustCompile(`"flights:([a-z:]+)":"[^"]*"`)
	quotes     = regexp.MustCompile(`="([A-Za-z0-9_.-]+)"`)
	tags       = regexp.MustCompile(`<(/?)(form|input|button|label|p|h1)\b`)
	closes     = regexp.MustCompile(`(?i)</(p|h1|div|main|body|html|fieldset)>`)
)

// loosely writes a page as some do: upper case, no quotes, relative actions, little
// closed.
func loosely(r *http.Request, w *httptest.ResponseRecorder) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		return
	}
	page := strings.ReplaceAll(w.Body.String(), `"http://`+r.Host, `"`)
	page = tags.ReplaceAllStringFunc(page, strings.ToUpper)
	page = quotes.ReplaceAllString(page, "=$1")
	page = closes.ReplaceAllString(page, "")
	w.Body = bytes.NewBufferString(page)
}

// secrets collects what an answer holds that no result may tell.
type secrets struct {
	mu  sync.Mutex
	all map[string]string // by value: what it is
}

func (s *secrets) see(r *http.Request, w *httptest.ResponseRecorder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]string{}
	}
	if t := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); strings.Count(t, ".") == 2 {
		s.all[t] = "a PA-JWT"
	}
	var body struct {
		Device, Code, Link, Access, Refresh string
		Task                                struct {
			Metadata struct {
				Link string `json:"pact.verificationUriComplete"`
			} `json:"metadata"`
		} `json:"task"`
	}
	changeJSON(w, func(all map[string]jsontext.Value) {
		for name, into := range map[string]*string{
			"device_code": &body.Device, "user_code": &body.Code, "verification_uri_complete": &body.Link,
			"access_token": &body.Access, "refresh_token": &body.Refresh,
		} {
			if json.Unmarshal(all[name], into) == nil && *into != "" {
				s.all[*into] = name
			}
		}
		if json.Unmarshal(all["task"], &body.Task) == nil && body.Task.Metadata.Link != "" {
			s.all[body.Task.Metadata.Link] = "a step-up's link"
		}
	})
}

// TestResultsHoldNoSecret runs the suite against broken Providers: what it says of them
// holds no token, code, link or password.
func TestResultsHoldNoSecret(t *testing.T) {
	for _, faults := range [][]string{
		nil,
		{"status=500", "metadata-malformed", "poll-status"},
		{"grant-signature", "device-interval", "step-up-more"},
		{"token-garbage", "step-up-state", "page-status"},
		{"reply-malformed", "receipt-form", "refresh-error"},
		{"lax-delegation", "lax-refresh", "lax-code", "oauth-error-status", "session-reuse", "assertion-reuse"},
	} {
		var seen secrets
		w := behind(t, seen.see)
		if err := w.sandbox.SetFaults(faults...); err != nil {
			t.Fatal(err)
		}
		results, _ := w.run(t)
		for _, l := range testLogins {
			seen.all[l.Password] = "a password"
		}
		failed := 0
		for _, r := range results {
			if r.Status == Failed {
				failed++
			}
			for value, what := range seen.all {
				if strings.Contains(r.Detail, value) {
					t.Errorf("%v: %s tells %s: %s", faults, r.ID, what, strings.ReplaceAll(r.Detail, value, "…"))
				}
			}
		}
		if len(seen.all) < 5 || (failed > 0) != (faults != nil) {
			t.Errorf("%v: %d secrets seen, %d checks failed", faults, len(seen.all), failed)
		}
	}
}

// TestRateLimited: a Provider that answers 429 now and then, and says for how long, is
// waited for.
func TestRateLimited(t *testing.T) {
	var n atomic.Int32
	w := behind(t, func(r *http.Request, w *httptest.ResponseRecorder) {
		if n.Add(1)%20 == 0 && strings.Contains(r.URL.Path, "/a2a/") && r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/consent") && !strings.HasSuffix(r.URL.Path, "/token") {
			w.Code, w.Body = http.StatusTooManyRequests, &bytes.Buffer{}
			w.Header().Set("Retry-After", "5")
		}
	})
	if _, bad := w.run(t, "oauth", "delegation", "receipts"); len(bad) > 0 {
		t.Error(strings.Join(bad, "\n"))
	}
}
