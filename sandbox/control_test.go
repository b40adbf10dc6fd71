package sandbox

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// A reply that did not arrive is stored with its receipt: the same message again,
// with or without the context that its sender never heard of, gets it.
func TestLostRepliesAreStored(t *testing.T) {
	for _, spec := range []string{"drop-after*1", "no-reply*2"} {
		t.Run(spec, func(t *testing.T) {
			m := newFaulty(t)
			ran := len(m.sandbox.Executed())
			send := func(context string) (answer, error) {
				body := `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"Rebook me onto LK 318"}]` + context + `}}`
				return m.try(http.MethodPost, m.url(LarklineID, "message:send"), body,
					"Authorization: Bearer "+m.token(), "X-A2A-User-Delegation: Bearer "+m.access)
			}
			m.on(spec)
			if a, err := send(""); err == nil {
				m.wantError(a, 400, "INVALID_PARAMS", "There is no reply yet to this messageId")
				again, err := send("")
				if err != nil {
					t.Fatal(err)
				}
				m.wantError(again, 400, "INVALID_PARAMS", "There is no reply yet to this messageId")
			}
			first, err := send("")
			if err != nil {
				t.Fatal(err)
			}
			context, said := m.reply(first)
			if !strings.HasPrefix(said, "Rebooked.") {
				t.Errorf("said %q", said)
			}
			payload, _ := m.verified(text(t, first.json(t), "message", "metadata", "pact.receipt", "jws"))
			if !bytes.Contains(payload, []byte(`"tool":"rebook_flight"`)) {
				t.Errorf("receipt %s", payload)
			}
			again, err := send(`,"contextId":"` + context + `"`)
			if err != nil || !bytes.Equal(again.body, first.body) {
				t.Errorf("in its context %s, %v", again.body, err)
			}
			if n := len(m.sandbox.Executed()) - ran; n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// What a fault did to a receipt is stored, what it did on the way is not.
func TestStoredReplyKeepsItsReceipt(t *testing.T) {
	m := newFaulty(t)
	context, _ := m.reply(m.say(LarklineID, "m0", "", "hello", m.access))
	m.on("receipt-bit", "reply-context", "reply-role-user")
	sent := m.say(LarklineID, "m1", context, "hello", m.access)
	m.on()
	stored := m.say(LarklineID, "m1", context, "hello", m.access)
	jws := func(a answer) string { return text(t, a.json(t), "message", "metadata", "pact.receipt", "jws") }
	if jws(sent) != jws(stored) || m.signed(jws(stored)) {
		t.Error("the receipt changed")
	}
	if got, _ := m.reply(stored); got != context || text(t, stored.json(t), "message", "role") != "ROLE_AGENT" {
		t.Errorf("stored %s", stored.body)
	}
}

// The interval that a fault announces is not held against anybody.
func TestAnnouncedIntervalIsNotEnforced(t *testing.T) {
	m := newFaulty(t)
	m.on("device-interval=1")
	d := m.device(scopeUpcoming)
	for range 3 {
		m.wantOAuthError(m.world.poll(d["device_code"]), 400, "authorization_pending")
	}
}

func TestControlEndpoint(t *testing.T) {
	m := newFaulty(t)
	control := m.ready.Control
	auth, jsonType := "Authorization: Bearer "+control.Token, "Content-Type: application/json"
	for name, tc := range map[string]struct {
		method, body string
		headers      []string
		status       int
		why          string
	}{
		"without a token":     {"GET", "", nil, 401, ""},
		"with another token":  {"POST", `{"specs":[]}`, []string{auth + "x", jsonType}, 401, ""},
		"two tokens":          {"GET", "", []string{auth, auth}, 401, ""},
		"DELETE":              {"DELETE", "", []string{auth}, 405, ""},
		"no content type":     {"POST", `{"specs":[]}`, []string{auth}, 400, "Content-Type"},
		"not JSON":            {"POST", `{`, []string{auth, jsonType}, 400, "The body must be"},
		"without specs":       {"POST", `{}`, []string{auth, jsonType}, 400, "an empty list clears"},
		"with another member": {"POST", `{"specs":[],"x":1}`, []string{auth, jsonType}, 400, "The body must be"},
		"a bad spec":          {"POST", `{"specs":["poll-error="]}`, []string{auth, jsonType}, 400, "write poll-error=CODE"},
	} {
		a := m.do(tc.method, control.URL, tc.body, tc.headers...)
		if a.status != tc.status || !strings.Contains(string(a.body), tc.why) || tc.why == "" && len(a.body) > 0 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	a := m.do("POST", control.URL, `{"specs":["receipt-bit*2","card-name=x"]}`, auth, jsonType)
	if a.status != 200 || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if got := text(t, m.do("GET", m.url(LarklineID, ".well-known/agent-card.json"), "").json(t), "name"); got != "x" {
		t.Errorf("the card says %q", got)
	}
	m.receipt()
	var out struct {
		Active []string `json:"active"`
		Faults []struct {
			Name  string `json:"name"`
			About string `json:"about"`
		} `json:"faults"`
	}
	if err := json.Unmarshal(m.do("GET", control.URL, "", auth).body, &out, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	all := Faults()
	if !slices.Equal(out.Active, []string{"receipt-bit*1", "card-name=x"}) || len(out.Faults) != len(all) || out.Faults[3].Name != all[3].Name || out.Faults[3].About != all[3].About {
		t.Errorf("got %+v", out)
	}
}

func TestControlClient(t *testing.T) {
	m := newFaulty(t)
	ctx, control := t.Context(), m.ready.Control
	active, err := control.SetFaults(ctx, "slow=1*3")
	if err != nil || !slices.Equal(active, []string{"slow=1*3"}) {
		t.Errorf("%q, %v", active, err)
	}
	if active, err := control.SetFaults(ctx); err != nil || len(active) != 0 {
		t.Errorf("%q, %v", active, err)
	}
	wrong, stranger, gone := control, control, control
	wrong.Token += "x"
	stranger.URL = m.issuer.url + "/sandbox"
	gone.URL = "http://127.0.0.1:1/sandbox"
	for why, c := range map[string]Control{"draws a new one": wrong, "answered 404": stranger, "is it running there?": gone} {
		if _, err := c.SetFaults(ctx); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), c.Token) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if _, err := control.SetFaults(ctx, "nope"); err == nil || !strings.Contains(err.Error(), `"nope": there is no such fault`) {
		t.Errorf("%v", err)
	}
}
