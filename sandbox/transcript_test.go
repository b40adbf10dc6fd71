package sandbox

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

type exchange struct {
	Name    string `json:"name"`
	Request struct {
		Method  string            `json:"method"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    any               `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    any               `json:"body"`
	} `json:"response"`
}

// What stands in the recorded run for what it is here.
const (
	theirProvider  = "http://127.0.0.1:4310"
	theirLogin     = "http://127.0.0.1:4314"
	theirIssuer    = "http://127.0.0.1:4312"
	theirDelegated = "01M3R53Q5SZQ6FQSMSDBSSREAA"
	theirIdentity  = "01M3R53Q5WKZ7A0GY4PZ8Y39TB"
)

// TestTranscriptReplay sends every exchange of a run against another Provider to
// ours, and wants the same status, headers, shape, messages and reasons.
func TestTranscriptReplay(t *testing.T) {
	raw, err := os.ReadFile("testdata/provider-run.json")
	if err != nil {
		t.Fatal(err)
	}
	var run struct {
		Exchanges []exchange `json:"exchanges"`
	}
	if err := json.Unmarshal(raw, &run); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	names := strings.NewReplacer(
		theirProvider, w.ready.Provider, theirLogin, w.sandbox.brandURL, theirIssuer, w.issuer.url,
		theirDelegated, LarklineID, theirIdentity, MarrowID,
		url.QueryEscape(theirProvider), url.QueryEscape(w.ready.Provider),
	)
	learned := map[string]string{} // their value: ours
	var link string
	for _, e := range run.Exchanges {
		ok := t.Run(e.Name, func(t *testing.T) {
			w.t = t
			if e.Name == "pa-jwks" { // the issuer's, not the Provider's
				return
			}
			if e.Name == "token-granted-narrower" { // the user has been there meanwhile
				if _, err := w.person(0).Allow(t.Context(), link, scopeUpcoming); err != nil {
					t.Fatal(err)
				}
				w.clock.advance(3 * time.Second)
			}
			got := w.replay(e, names, learned)
			if got.status != e.Response.Status {
				t.Fatalf("status %d, theirs %d: %s", got.status, e.Response.Status, got.body)
			}
			for name, want := range e.Response.Headers {
				if have := got.header.Get(name); have != want {
					t.Errorf("%s: %q, theirs %q", name, have, want)
				}
			}
			if e.Response.Body == "" {
				if len(got.body) > 0 {
					t.Errorf("body %s, theirs is empty", got.body)
				}
				return
			}
			var body any
			if err := json.Unmarshal(got.body, &body); err != nil {
				t.Fatal(err)
			}
			sameShape(t, "", body, e.Response.Body, names)
			learn(body, e.Response.Body, learned)
			if uri, ok := body.(map[string]any)["verification_uri_complete"].(string); ok {
				link = uri
			}
		})
		if !ok {
			break
		}
	}
	w.t = t
}

// replay sends a recorded request with our names, tokens and ids in it.
func (w *world) replay(e exchange, names *strings.Replacer, learned map[string]string) answer {
	w.t.Helper()
	translate := func(s string) string {
		if ours, ok := learned[s]; ok {
			return ours
		}
		return names.Replace(s)
	}
	var headers []string
	for name, value := range e.Request.Headers {
		switch name {
		case "Authorization":
			claims := w.claims()
			switch e.Name {
			case "foreign-context":
				claims["sub"] = "someone-else"
			case "wrong-audience":
				claims["aud"] = "https://other.example"
			}
			value = "Bearer " + sign(w.t, w.issuer.keys[0], claims, nil)
		case "X-A2A-User-Delegation":
			theirs := strings.TrimPrefix(value, "Bearer ")
			if ours, ok := learned[theirs]; ok {
				value = "Bearer " + ours
			} else if e.Name == "bad-delegation-token" {
				for _, ours := range learned {
					if strings.HasPrefix(ours, "eyJ") {
						value = "Bearer " + ours[:len(ours)-4] + "AAAA"
					}
				}
			} else {
				w.t.Fatalf("%s: no delegation token yet", e.Name)
			}
		}
		headers = append(headers, name+": "+value)
	}
	var body string
	switch b := e.Request.Body.(type) {
	case nil:
	case map[string]any:
		if e.Request.Headers["Content-Type"] == "application/x-www-form-urlencoded" {
			form := url.Values{}
			for k, v := range b {
				form.Set(k, translate(v.(string)))
			}
			body = form.Encode()
			break
		}
		raw, err := json.Marshal(b)
		if err != nil {
			w.t.Fatal(err)
		}
		for theirs, ours := range learned {
			raw = bytes.ReplaceAll(raw, []byte(`"`+theirs+`"`), []byte(`"`+ours+`"`))
		}
		body = string(raw)
	}
	return w.do(e.Request.Method, names.Replace(e.Request.URL), body, headers...)
}

// Values that are each run's own: there the shape is enough.
var free = []string{
	"name", "description", "organization", "id", "tags", "examples", "x", "y", "kid",
	"messageId", "contextId", "text", "device_code", "user_code", "verification_uri_complete", "pact.verificationUriComplete",
	"access_token", "refresh_token", "jws", "grantId", "user", "ts",
}

// sameShape compares an answer of ours with theirs: the same members and types,
// and the same values where they are not free.
func sameShape(t *testing.T, path string, ours, theirs any, names *strings.Replacer) {
	t.Helper()
	member := path[strings.LastIndexByte(path, '/')+1:]
	switch want := theirs.(type) {
	case map[string]any:
		got, ok := ours.(map[string]any)
		if !ok {
			t.Errorf("%s: %v, theirs is an object", path, ours)
			return
		}
		if member == "scopes" { // the ids are each brand's own
			for id, words := range got {
				if _, ok := words.(string); !ok {
					t.Errorf("%s: %s has no description", path, id)
				}
			}
			return
		}
		delete(want, "authorization_details_types_supported")
		for name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: no member %s", path, name)
				continue
			}
			sameShape(t, path+"/"+name, got[name], want[name], names)
		}
		for name := range got {
			if _, ok := want[name]; !ok {
				t.Errorf("%s: member %s, theirs has none", path, name)
			}
		}
	case []any:
		got, ok := ours.([]any)
		if !ok {
			t.Errorf("%s: %v, theirs is an array", path, ours)
			return
		}
		if member == "scopes_supported" || member == "skills" || slices.Contains(free, member) {
			want, got = want[:1], got[:min(1, len(got))]
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, theirs %v", path, got, want)
			return
		}
		for i := range want {
			sameShape(t, path, got[i], want[i], names)
		}
	case string:
		got, ok := ours.(string)
		if !ok {
			t.Errorf("%s: %v, theirs is a string", path, ours)
			return
		}
		if !slices.Contains(free, member) && got != names.Replace(want) {
			t.Errorf("%s: %q, theirs %q", path, got, want)
		}
	default:
		if fmt.Sprint(ours) != fmt.Sprint(theirs) {
			t.Errorf("%s: %v, theirs %v", path, ours, theirs)
		}
	}
}

// learn remembers what of ours goes where theirs was sent later.
func learn(ours, theirs any, learned map[string]string) {
	switch want := theirs.(type) {
	case map[string]any:
		got, _ := ours.(map[string]any)
		for name := range want {
			if theirs, ok := want[name].(string); ok {
				if ours, ok := got[name].(string); ok && slices.Contains([]string{"contextId", "device_code", "access_token", "refresh_token"}, name) {
					learned[theirs] = ours
				}
				continue
			}
			learn(got[name], want[name], learned)
		}
	}
}

func TestTranscriptSameMessageGivesTheSameReply(t *testing.T) {
	w := newWorld(t)
	first := w.say(MarrowID, "m-001", "", "Where is my order?", "")
	context, _ := w.reply(first)
	if again := w.say(MarrowID, "m-001", context, "Where is my order?", ""); !bytes.Equal(first.body, again.body) {
		t.Errorf("first %s, then %s", first.body, again.body)
	}
}

func TestCardKeepsTheOrderOfScopes(t *testing.T) {
	w := newWorld(t)
	card := w.do(http.MethodGet, w.url(LarklineID, ".well-known/agent-card.json"), "").body
	at := -1
	for _, id := range []string{scopeUpcoming, scopeHistory, scopeRebook, scopeCancel} {
		next := bytes.Index(card, []byte(`"`+id+`":"`))
		if next <= at {
			t.Fatalf("%s is out of order in %s", id, card)
		}
		at = next
	}
}
