package sandbox

import (
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// loaded is a world of a configuration file's brands.
func loaded(t *testing.T, content string) *world {
	t.Helper()
	cfg, _, err := load(t, content)
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, func(c *Config) {
		c.Brands, c.OneOrigin, c.Issuers = cfg.Brands, cfg.OneOrigin, &Issuers{Local: true}
	})
}

// A brand of a file answers with the first reply that fits, asks for what it needs,
// and has its receipts say what ran.
func TestScriptedBrand(t *testing.T) {
	w := loaded(t, everything)
	if _, said := w.reply(w.say("kestrel", "m-1", "", "Hello", w.allow("kestrel", "about"))); said != "We repair bicycles." {
		t.Errorf("said %q", said)
	}
	v := w.say("kestrel", "m-2", "", "Is it READY?", w.allow("kestrel", "about")).json(t)
	if got := text(t, v, "task", "metadata", "pact.missingScopes", "0"); got != "repairs:read" {
		t.Errorf("asks for %s", got)
	}
	token := w.allow("kestrel", "repairs:read repairs:book")
	v = w.say("kestrel", "m-3", text(t, v, "task", "contextId"), "Is it ready?", token).json(t)
	claims := dig(t, v, "message", "metadata", "pact.receipt", "claims").(map[string]any)
	// printf '%s' '{"a":{"é":true},"b":[2,1,null]}' | sha256sum
	actions := []any{map[string]any{"tool": "find_repair", "argsHash": "sha256:91f5d9e6db2414ae389784a644f97d49028c9394668c2866dc877638d347c583"}}
	if text(t, v, "message", "parts", "0", "text") != "It is ready." || !reflect.DeepEqual(claims["scopesUsed"], []any{"repairs:read"}) || !reflect.DeepEqual(claims["actions"], actions) {
		t.Errorf("%v", v)
	}
	contextID, said := w.reply(w.say("kestrel", "m-4", "", "bye", token))
	if said != "Goodbye." {
		t.Errorf("said %q", said)
	}
	w.wantError(w.say("kestrel", "m-5", contextID, "Hello", token), 400, "UNSUPPORTED_OPERATION", "")
	if _, said := w.reply(w.say("plain", "m-6", "", "Hello", "")); said != "This is Plain. There is no answer to that here." {
		t.Errorf("said %q", said)
	}
}

// allow has the first account allow scopes at a brand, and returns the delegation
// token.
func (w *world) allow(brand, scopes string) string {
	w.t.Helper()
	oauth := func(endpoint string, form url.Values) map[string]any {
		form.Set("client_id", w.issuer.url)
		return w.call(http.MethodPost, w.url(brand, "oauth/"+endpoint), form.Encode(), formType).json(w.t)
	}
	d := oauth("device_authorization", url.Values{"scope": {scopes}})
	if _, err := w.person(0).AllowAll(w.t.Context(), text(w.t, d, "verification_uri_complete")); err != nil {
		w.t.Fatal(err)
	}
	return text(w.t, oauth("token", url.Values{"grant_type": {grantDeviceCode}, "device_code": {text(w.t, d, "device_code")}}), "access_token")
}

// The hash is over canonical JSON, RFC 8785 section 3.2.
func TestArgsHash(t *testing.T) {
	for args, hash := range map[string]string{ // printf '%s' … | sha256sum
		"{}":    "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
		" { } ": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
		`{"flight":"LK 318", "booking":"LK\u0042CDF"}`: "e9203c3cd818c03ad21aa1b2fbdabca93c4ff497526f79f0b85c2dd4ecbd02d9",
		`{"b":100e-1,"a":1.0}`:                         "7e056780256ecb4821910a2bc84161ed6cd3b87dbae34baa52ec84ebc6fca3fa",
	} {
		if got := argsHash(t, args); got != "sha256:"+hash {
			t.Errorf("%s: %s", args, got)
		}
	}
	if a, err := newAction("t", nil); err != nil || a.ArgsHash != "" {
		t.Errorf("no arguments: %+v, %v", a, err)
	}
	if a := action("rebook", map[string]string{"b": "1", "a": "2"}); a.ArgsHash != argsHash(t, `{"a":"2","b":"1"}`) {
		t.Errorf("Larkline hashes otherwise: %+v", a)
	}
}

func argsHash(t *testing.T, args string) string {
	t.Helper()
	a, err := newAction("t", jsontext.Value(args))
	if err != nil {
		t.Fatal(err)
	}
	return a.ArgsHash
}

func TestCommandReply(t *testing.T) {
	for answer, why := range map[string]string{
		"": "not a JSON object", "null": "not a JSON object", "[]": "not a JSON object", `"text"`: "not a JSON object", "hello": "not a JSON object",
		`{"text":"a"`: "the answer:", `{"text":"a"}{}`: "the answer:", `{"text":"a","text":"b"}`: "the answer:",
		`{"text":"a","Text":"b"}`: "the answer:", `{"text":1}`: "the answer:", `{"text":"a","reply":1}`: "the answer:", `{"text":"` + "\xff" + `"}`: "the answer:",
		`{"actions":[{"tool":""}]}`: "actions[0].tool", `{"actions":[{"tool":"a"},{}]}`: "actions[1].tool", `{"actions":[{"tool":"a","name":1}]}`: "the answer:",
		`{"actions":[` + strings.Repeat(`{"tool":"a"},`, maxActions) + `{"tool":"a"}]}`: "65 actions",
	} {
		if r, err := parseCommandReply([]byte(answer)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v, %v; want %s", answer, r, err, why)
		}
	}
	got, err := parseCommandReply([]byte(" {\"text\": \"é\", \"missingScopes\": [\"a\"], \"scopesUsed\": [\"b\"], \"close\": true,\n\"memory\": {\"n\": 1}, \"actions\": [{\"tool\": \"x\"}, {\"tool\": \"y\", \"args\": {}}]}\n"))
	want := Reply{
		Text: "é", Missing: []string{"a"}, Used: []string{"b"}, Close: true, Memory: jsontext.Value(`{"n": 1}`),
		Actions: []Action{{Tool: "x"}, {"y", argsHash(t, "{}")}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add([]byte(everything))
	for _, seed := range []string{
		"", "{}", "[]", "brands: [{builtin: larkline, stepUpFirst: true}]", `{"brands":[{"id":"a","name":"\ud83d\ude00","description":"\/"}]}`,
		"a: &a [*a]", "brands: &b\n  - {id: a, name: A, description: A, replies: [{text: *b}]}", "? [a]\n: b", "issuers: [{issuer: https://a}]",
		"brands: [{id: a, name: A, description: A, scopes: {a: A}, replies: [{match: '(a|b)*', needs: [a], text: x, actions: [{tool: t, args: [1, .nan]}]}]}]",
		"limits: {user: {every: 1s}}\ntimes: {leeway: 1s}", "<<: {audience: a}", "audience: !!binary aGk=", "audience: |\n  a\n  b\n",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := parseConfig("sandbox.yaml", dir, content, slog.New(slog.DiscardHandler))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "sandbox.yaml:") {
				t.Errorf("%q: %v", content, err)
			}
			return
		}
		if err := c.Params.Validate(); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		if err := c.Issuers.validate(); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		seen := map[string]bool{}
		for _, b := range c.Brands {
			if err := b.validate(); err != nil || seen[b.ID] {
				t.Errorf("%q: %v", content, err)
			}
			if seen[b.ID] = true; b.close != nil {
				b.close()
				continue
			}
			turn := Turn{Text: "Is it ready?", At: testStart, User: "u", Scopes: b.scopeIDs()}
			r, err := b.Respond(t.Context(), turn)
			if err == nil {
				err = (&business{Brand: b}).check(turn, r)
			}
			if err != nil {
				t.Errorf("%q: %v", content, err)
			}
		}
	})
}

func FuzzCommandReply(f *testing.F) {
	for _, seed := range []string{
		`{"text":"a"}`, `{"missingScopes":["a"]}`, `{"text":"a","scopesUsed":["a"],"actions":[{"tool":"t","args":{"b":1e2,"a":[null]}}],"close":true,"memory":{}}`,
		`{"memory":null}`, `{`, `{"actions":[{"tool":"t","args":1e999}]}`, `{"actions":[{"tool":"t","args":{"a":1,"a":2}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, err := parseCommandReply(answer)
		if err != nil {
			return
		}
		if !jsontext.Value(answer).IsValid() || r.Memory != nil && !r.Memory.IsValid() {
			t.Errorf("%q became %+v", answer, r)
		}
		for _, a := range r.Actions {
			if a.Tool == "" || a.ArgsHash != "" && len(a.ArgsHash) != len("sha256:")+64 {
				t.Errorf("%q: action %+v", answer, a)
			}
		}
		if _, err := json.Marshal(r.Text); err != nil {
			t.Errorf("%q: text %v", answer, err)
		}
	})
}

func FuzzScript(f *testing.F) {
	f.Add(`(?i)\bready\b`, "Is it ready?", "a", true, false)
	f.Add("", "", "b", false, true)
	f.Add("(a*)*$", strings.Repeat("a", 100)+"!", "", false, false)
	f.Fuzz(func(t *testing.T, match, said, need string, hasA, hasB bool) {
		pattern, err := json.Marshal(match)
		if err != nil {
			return
		}
		needs, err := json.Marshal(strings.Fields(need))
		if err != nil {
			return
		}
		c, err := parseConfig("f", ".", []byte(`{"brands":[{"id":"x","name":"X","description":"X","scopes":{"a":"A","b":"B"},
			"replies":[{"match":`+string(pattern)+`,"needs":`+string(needs)+`,"text":"yes"},{"match":"^n","text":"no","close":true}]}]}`), nil)
		if err != nil {
			return
		}
		b := business{Brand: c.Brands[0]}
		turn := Turn{User: "u", Text: said}
		for scope, has := range map[string]bool{"a": hasA, "b": hasB} {
			if has {
				turn.Scopes = append(turn.Scopes, scope)
			}
		}
		r, err := b.Respond(t.Context(), turn)
		if err == nil {
			err = b.check(turn, r)
		}
		if err != nil {
			t.Errorf("%q to %q needing %q, having %q: %+v, %v", said, match, need, turn.Scopes, r, err)
		}
	})
}
