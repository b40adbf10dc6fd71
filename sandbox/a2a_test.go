package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestRoutesComeInOrder: the shape of the route, then who calls, then the brand,
// then the body.
func TestRoutesComeInOrder(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		method, path string
		anonymous    int // without a token
		caller       int // with one, and a body of "{"
	}{
		{"POST", "/a2a/" + MarrowID + "/message:send", 401, 400},
		{"POST", "/a2a/" + MarrowID + "/message%3Asend", 401, 400},
		{"GET", "/a2a/" + MarrowID + "/message:send", 405, 405},
		{"POST", "/a2a/" + MarrowID + "/message:stream", 401, 400},
		{"POST", "/a2a/nope/message:send", 401, 404},
		{"POST", "/a2a/nope/message:stream", 401, 404},
		{"GET", "/a2a/nope/message:send", 405, 405},
		{"GET", "/a2a/nope/other", 404, 404},
		{"GET", "/a2a/" + MarrowID + "/tasks", 401, 200},
		{"POST", "/a2a/" + MarrowID + "/tasks", 405, 405},
		{"HEAD", "/a2a/" + MarrowID + "/tasks", 405, 405},
		{"GET", "/a2a/" + MarrowID + "/tasks/abc", 401, 404},
		{"GET", "/a2a/" + MarrowID + "/tasks/", 404, 404},
		{"DELETE", "/a2a/" + MarrowID + "/tasks/abc", 405, 405},
		{"POST", "/a2a/" + MarrowID + "/tasks/abc:cancel", 401, 404},
		{"GET", "/a2a/" + MarrowID + "/tasks/abc:cancel", 405, 405},
		{"POST", "/a2a/" + MarrowID + "/tasks/abc:subscribe", 401, 400},
		{"GET", "/a2a/" + MarrowID + "/extendedAgentCard", 401, 400},
		{"GET", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs", 401, 400},
		{"POST", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs", 401, 400},
		{"DELETE", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs", 405, 405},
		{"GET", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs/c1", 401, 400},
		{"DELETE", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs/c1", 401, 400},
		{"POST", "/a2a/" + MarrowID + "/tasks/abc/pushNotificationConfigs/c1", 405, 405},
		{"GET", "/a2a/" + MarrowID + "/tasks/abc/other", 404, 404},
		{"GET", "/a2a/" + MarrowID + "/tasks%2F*", 404, 404},
		{"GET", "/a2a/" + MarrowID + "/nope", 404, 404},
		{"GET", "/a2a/" + MarrowID + "//tasks", 404, 404},
		{"GET", "/a2a/" + MarrowID + "/tasks/%2e%2e", 401, 404},
		{"GET", "/a2a/" + MarrowID, 404, 404},
		{"GET", "/a2a//tasks", 404, 404},
		{"GET", "/", 404, 404},
		{"GET", "/.well-known/agent-card.json", 404, 404}, // two brands
		{"GET", "/a2a/" + MarrowID + "/.well-known/agent-card.json", 200, 200},
		{"HEAD", "/a2a/" + MarrowID + "/.well-known/agent-card.json", 200, 200},
		{"POST", "/a2a/" + MarrowID + "/.well-known/agent-card.json", 405, 405},
		{"GET", "/a2a/" + MarrowID + "/oauth/jwks.json", 404, 404}, // Identity only
		{"POST", "/a2a/" + MarrowID + "/oauth/token", 401, 404},
		{"POST", "/a2a/" + LarklineID + "/oauth/token", 401, 400},
		{"GET", "/a2a/" + LarklineID + "/oauth/token", 405, 405},
		{"POST", "/a2a/" + LarklineID + "/oauth/device_authorization", 401, 400},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			w.t = t
			a := w.do(tc.method, w.ready.Provider+tc.path, "{")
			if a.status != tc.anonymous {
				t.Errorf("without a token: %d, want %d", a.status, tc.anonymous)
			}
			if a.status >= 400 && len(a.body) > 0 {
				t.Errorf("a body before authentication: %s", a.body)
			}
			if a.status == 405 && a.header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
			if a := w.call(tc.method, w.ready.Provider+tc.path, "{"); a.status != tc.caller {
				t.Errorf("with a token: %d, want %d: %s", a.status, tc.caller, a.body)
			}
		})
	}
}

func TestMessageErrors(t *testing.T) {
	w := newWorld(t)
	message := func(members string) string {
		return `{"message":{"messageId":"m1","role":"ROLE_USER",` + members + `}}`
	}
	const text = `"parts":[{"text":"hello"}]`
	for _, tc := range []struct {
		name, body string
		reason     string // "" for a reply
		message    string
	}{
		{"good", message(text), "", ""},
		{"more members", `{"x":1,"message":{"messageId":"m1","role":"ROLE_USER","metadata":{},"extensions":[],"other":null,` + text + `}}`, "", ""},
		{"every member of a part", message(`"parts":[{"text":"hello","mediaType":"text/plain","filename":"a","metadata":{"b":1}}]`), "", ""},
		{"charset", message(`"parts":[{"text":"hello","mediaType":"text/plain; charset=utf-8"}]`), "", ""},
		{"two parts", message(`"parts":[{"text":" "},{"text":"hello"}]`), "", ""},
		{"empty taskId and contextId", message(`"taskId":"","contextId":"",` + text), "", ""},
		{"not JSON", `{`, "INVALID_PARAMS", ""},
		{"empty", ``, "INVALID_PARAMS", ""},
		{"array", `[]`, "INVALID_PARAMS", ""},
		{"no message", `{}`, "INVALID_PARAMS", ""},
		{"message null", `{"message":null}`, "INVALID_PARAMS", ""},
		{"message twice", `{"message":{},"message":{}}`, "INVALID_PARAMS", ""},
		{"trailing", message(text) + `{}`, "INVALID_PARAMS", ""},
		{"not UTF-8", message(`"parts":[{"text":"` + "\xff" + `"}]`), "INVALID_PARAMS", ""},
		{"no messageId", `{"message":{"role":"ROLE_USER",` + text + `}}`, "INVALID_PARAMS", ""},
		{"messageId a number", `{"message":{"messageId":1,"role":"ROLE_USER",` + text + `}}`, "INVALID_PARAMS", ""},
		{"no role", `{"message":{"messageId":"m1",` + text + `}}`, "INVALID_PARAMS", "Message role must be ROLE_USER"},
		{"agent's role", `{"message":{"messageId":"m1","role":"ROLE_AGENT",` + text + `}}`, "INVALID_PARAMS", "Message role must be ROLE_USER"},
		{"role in lower case", `{"message":{"messageId":"m1","role":"user",` + text + `}}`, "INVALID_PARAMS", "Message role must be ROLE_USER"},
		{"no parts", message(`"parts":[]`), "INVALID_PARAMS", "Message text must not be blank"},
		{"parts missing", message(`"x":1`), "INVALID_PARAMS", "Message text must not be blank"},
		{"blank", message(`"parts":[{"text":" \n"}]`), "INVALID_PARAMS", "Message text must not be blank"},
		{"part a string", message(`"parts":["hello"]`), "INVALID_PARAMS", ""},
		{"part empty", message(`"parts":[{}]`), "INVALID_PARAMS", ""},
		{"text a number", message(`"parts":[{"text":1}]`), "INVALID_PARAMS", ""},
		{"another member of a part", message(`"parts":[{"text":"hello","kind":"text"}]`), "INVALID_PARAMS", ""},
		{"data", message(`"parts":[{"data":{"a":1}}]`), "CONTENT_TYPE_NOT_SUPPORTED", "Content type not supported"},
		{"text and data", message(`"parts":[{"text":"hello"},{"data":{}}]`), "CONTENT_TYPE_NOT_SUPPORTED", ""},
		{"url", message(`"parts":[{"url":"https://x.example"}]`), "CONTENT_TYPE_NOT_SUPPORTED", ""},
		{"raw", message(`"parts":[{"raw":"AA"}]`), "CONTENT_TYPE_NOT_SUPPORTED", ""},
		{"html", message(`"parts":[{"text":"hello","mediaType":"text/html"}]`), "CONTENT_TYPE_NOT_SUPPORTED", ""},
		{"taskId", message(`"taskId":"t1",` + text), "TASK_NOT_FOUND", "Task not found"},
		{"contextId", message(`"contextId":"x",` + text), "INVALID_PARAMS", "Unknown contextId"},
		{"too large", message(`"parts":[{"text":"` + strings.Repeat("a", maxBody) + `"}]`), "INVALID_PARAMS", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			a := w.call(http.MethodPost, w.url(MarrowID, "message:send"), tc.body)
			if tc.reason == "" {
				if context, _ := w.reply(a); uuid.Validate(context) != nil {
					t.Errorf("contextId %q is not a UUID", context)
				}
				return
			}
			status := 400
			if tc.reason == "TASK_NOT_FOUND" {
				status = 404
			}
			w.wantError(a, status, tc.reason, tc.message)
		})
	}
}

func TestOtherOperations(t *testing.T) {
	w := newWorld(t)
	w.wantError(w.call(http.MethodGet, w.url(MarrowID, "tasks/a%2Fb"), ""), 404, "TASK_NOT_FOUND", "Task not found: a/b")
	w.wantError(w.call(http.MethodPost, w.url(MarrowID, "tasks/abc:cancel"), ""), 404, "TASK_NOT_FOUND", "Task not found: abc")
	for method, path := range map[string]string{http.MethodGet: "tasks/%ff", http.MethodPost: "tasks/%ff:cancel"} { // no route: it is no UTF-8
		if a := w.call(method, w.url(MarrowID, path), ""); a.status != http.StatusNotFound || len(a.body) != 0 {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
	}
	w.wantError(w.call(http.MethodPost, w.url(MarrowID, "tasks/abc:subscribe"), ""), 400, "UNSUPPORTED_OPERATION", "Unsupported operation")
	w.wantError(w.call(http.MethodGet, w.url(MarrowID, "extendedAgentCard"), ""), 400, "UNSUPPORTED_OPERATION", "Unsupported operation")
	w.wantError(w.call(http.MethodDelete, w.url(MarrowID, "tasks/a/pushNotificationConfigs/b"), ""), 400,
		"PUSH_NOTIFICATION_NOT_SUPPORTED", "Push notifications are not supported")
	for query, want := range map[string]any{
		"": 50.0, "?pageSize=1": 1.0, "?pageSize=100": 100.0, "?other=x&other=y": 50.0, "?pageToken=x": 50.0,
		"?pageSize=0": nil, "?pageSize=101": nil, "?pageSize=": nil, "?pageSize=-1": nil, "?pageSize=1.0": nil,
		"?pageSize=%2B5": nil, "?pageSize=5&pageSize=5": nil, "?pageSize=00005": nil, "?pageSize=x": nil,
		"?pageSize=%zz": nil, "?pageSize=7;x=1": nil, "?pageSize=0;": nil, "?pageSize=500;x": nil, "?x=1;pageSize=7": nil, "?page%53ize=%zz": nil,
		"?pageSize=7&page%53ize=7": nil, "?page%53ize=7": 7.0, "?x=%zz": 50.0, "?a;b&pageSize=7": 7.0, "?%zz=1": 50.0, "?&": 50.0,
	} {
		a := w.call(http.MethodGet, w.url(MarrowID, "tasks")+query, "")
		if want == nil {
			w.wantError(a, 400, "INVALID_PARAMS", "Invalid pageSize")
			continue
		}
		if got := a.json(t)["pageSize"]; got != want {
			t.Errorf("%s: pageSize %v, want %v", query, got, want)
		}
	}
}

// slowBrand answers when told to, and counts.
type slowBrand struct {
	mu      sync.Mutex
	runs    int
	started chan struct{}
	finish  chan error
}

func (b *slowBrand) respond(context.Context, Turn) (Reply, error) {
	b.mu.Lock()
	b.runs++
	b.mu.Unlock()
	b.started <- struct{}{}
	if err := <-b.finish; err != nil {
		return Reply{}, err
	}
	return Reply{Text: "done"}, nil
}

func TestOneMessageRunsOnce(t *testing.T) {
	slow := &slowBrand{started: make(chan struct{}, 9), finish: make(chan error, 9)}
	marrow := Marrow()
	w := newWorld(t, func(c *Config) {
		c.Brands = []Brand{{ID: "SLOW", Name: "Slow", Description: "Takes its time.", Respond: slow.respond}, marrow}
	})
	slow.finish <- nil
	context, _ := w.reply(w.say("SLOW", "m0", "", "hello", ""))
	<-slow.started

	body := `{"message":{"messageId":"m1","contextId":"` + context + `","role":"ROLE_USER","parts":[{"text":"hello"}]}}`
	done, token := make(chan answer), w.token()
	go func() {
		a, _ := w.try(http.MethodPost, w.url("SLOW", "message:send"), body, "Authorization: Bearer "+token)
		done <- a
	}()
	<-slow.started
	w.wantError(w.say("SLOW", "m1", context, "hello", ""), 400, "INVALID_PARAMS", "There is no reply yet to this messageId")
	slow.finish <- nil
	first := <-done
	w.reply(first)
	if again := w.say("SLOW", "m1", context, "other words", ""); !bytes.Equal(first.body, again.body) {
		t.Errorf("first %s, then %s", first.body, again.body)
	}
	if slow.runs != 2 {
		t.Errorf("%d runs", slow.runs)
	}
	// What a failed turn did is unknown: it is not run again.
	slow.finish <- errors.New("power cut")
	w.wantError(w.say("SLOW", "m2", context, "hello", ""), 500, "INTERNAL", "Internal error")
	w.wantError(w.say("SLOW", "m2", context, "hello", ""), 400, "INVALID_PARAMS", "There is no reply yet to this messageId")
}

func TestContextsAreBound(t *testing.T) {
	w := newWorld(t)
	context, _ := w.reply(w.say(MarrowID, "m1", "", "hello", ""))
	w.reply(w.say(MarrowID, "m2", context, "hello", ""))
	w.wantError(w.say(LarklineID, "m3", context, "hello", ""), 400, "INVALID_PARAMS", "Unknown contextId")
	w.subject = "someone-else"
	w.wantError(w.say(MarrowID, "m1", context, "hello", ""), 400, "INVALID_PARAMS", "Unknown contextId")
	w.subject = "user-7f3a"
	other := w.issuer
	w.issuer = newIssuer(t)
	w.wantError(w.say(MarrowID, "m1", context, "hello", ""), 400, "INVALID_PARAMS", "Unknown contextId")
	w.issuer = other

	bye := w.say(MarrowID, "m4", context, "goodbye", "")
	w.wantError(w.say(MarrowID, "m5", context, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
	if again := w.say(MarrowID, "m4", context, "goodbye", ""); !bytes.Equal(bye.body, again.body) {
		t.Errorf("a stored reply of a closed context: %s", again.body)
	}

	context, _ = w.reply(w.say(MarrowID, "m1", "", "hello", ""))
	w.clock.advance(Defaults().ContextIdle)
	w.wantError(w.say(MarrowID, "m2", context, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
}

func TestBrandThatBreaksItsRules(t *testing.T) {
	for name, reply := range map[string]Reply{
		"uses what was not allowed": {Text: "x", Used: []string{scopeRebook}},
		"misses what nobody gives":  {Missing: []string{"nope"}},
		"says nothing":              {Text: " "},
	} {
		t.Run(name, func(t *testing.T) {
			brand := Larkline(time.Now())
			brand.Respond = func(context.Context, Turn) (Reply, error) { return reply, nil }
			w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand} })
			w.wantError(w.say(LarklineID, "m1", "", "hello", ""), 500, "INTERNAL", "Internal error")
		})
	}
}

func TestSingleBrandHasAWellKnownCard(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{Marrow()} })
	root := w.do(http.MethodGet, w.ready.Provider+"/.well-known/agent-card.json", "")
	own := w.do(http.MethodGet, w.url(MarrowID, ".well-known/agent-card.json"), "")
	if root.status != 200 || !bytes.Equal(root.body, own.body) {
		t.Errorf("%d %s", root.status, root.body)
	}
}

func TestBrandDomainRedirectsToTheCard(t *testing.T) {
	w := newWorld(t)
	a := w.do(http.MethodGet, w.ready.Brands[0].Card, "")
	if a.status != http.StatusFound || a.header.Get("Location") != w.url(LarklineID, ".well-known/agent-card.json") {
		t.Errorf("%d %s", a.status, a.header.Get("Location"))
	}
	for path, want := range map[string]int{"/": 404, "/login": 400, "/.well-known/other": 404} {
		if a := w.do(http.MethodGet, w.sandbox.brandURL+path, ""); a.status != want {
			t.Errorf("%s: %d, want %d", path, a.status, want)
		}
	}
	if a := w.do(http.MethodPost, w.ready.Brands[0].Card, ""); a.status != 405 {
		t.Errorf("POST of the card: %d", a.status)
	}
}

func TestLimitsAnswer429(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Params = Defaults()
		c.Params.UserLimit = Limit{Every: 2500 * time.Millisecond, Burst: 2}
		c.Params.IssuerLimit = Limit{Every: time.Minute, Burst: 4}
		c.Params.DeviceLimit = Limit{Every: time.Minute, Burst: 1}
	})
	tasks := func() answer { return w.call(http.MethodGet, w.url(MarrowID, "tasks"), "") }
	want := func(a answer, status int, retryAfter string) {
		t.Helper()
		if a.status != status || a.header.Get("Retry-After") != retryAfter {
			t.Fatalf("%d, Retry-After %q; want %d, %q", a.status, a.header.Get("Retry-After"), status, retryAfter)
		}
	}
	want(tasks(), 200, "")
	want(tasks(), 200, "")
	want(tasks(), 429, "3")
	w.clock.advance(2 * time.Second)
	want(tasks(), 429, "1")
	w.clock.advance(500 * time.Millisecond)
	want(tasks(), 200, "")
	w.subject = "someone-else"
	want(tasks(), 200, "")
	a := tasks()
	if a.status != 429 { // the issuer's share is used up
		t.Fatalf("issuer limit: %d", a.status)
	}
	w.issuer, w.subject = newIssuer(t), "user-7f3a"
	want(w.oauth("device_authorization", "scope", scopeHistory), 200, "")
	want(w.oauth("device_authorization", "scope", scopeHistory), 429, "60")
}

func TestConcurrentCallersShareNothing(t *testing.T) {
	w := newWorld(t)
	body := func(i int) string {
		return fmt.Sprintf(`{"message":{"messageId":"m%d","role":"ROLE_USER","parts":[{"text":"hello"}]}}`, i)
	}
	seen := map[string]bool{}
	for _, a := range w.together(20, http.MethodPost, w.url(MarrowID, "message:send"), body, "Authorization: Bearer "+w.token()) {
		context, _ := w.reply(a)
		if seen[context] {
			t.Fatalf("context %s twice", context)
		}
		seen[context] = true
	}
	if w.issuer.fetches.Load() != 1 {
		t.Errorf("%d fetches of the JWKS", w.issuer.fetches.Load())
	}
}
