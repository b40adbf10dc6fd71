package agent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// TestBuildMessage covers CV-5.
func TestBuildMessage(t *testing.T) {
	for _, c := range []struct{ context, want string }{
		{"", `{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"Where is \"A-1\" <now>?","mediaType":"text/plain"}]}}`},
		{"c-1", `{"message":{"messageId":"m-1","contextId":"c-1","role":"ROLE_USER","parts":[{"text":"Where is \"A-1\" <now>?","mediaType":"text/plain"}]}}`},
	} {
		got, err := agent.BuildMessage("m-1", c.context, `Where is "A-1" <now>?`)
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %v", got, err)
		}
	}
	if _, err := agent.BuildMessage("m-1", "", "a\xff"); err == nil {
		t.Error("a text that is not UTF-8 is sent as another one")
	}
}

// reply builds a 200 with a message.
func reply(changes map[string]any) string {
	message := with(map[string]any{
		"messageId": "r-1", "contextId": "c-1", "role": "ROLE_AGENT", "parts": []any{map[string]any{"text": "On its way."}},
	}, changes)
	data, err := json.Marshal(map[string]any{"message": message})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func task(changes map[string]any) string {
	task := with(map[string]any{
		"id": "t-1", "contextId": "c-1",
		"status":   map[string]any{"state": "TASK_STATE_AUTH_REQUIRED", "message": map[string]any{"role": "ROLE_AGENT", "parts": []any{map[string]any{"text": "Sign in."}}}},
		"metadata": map[string]any{"pact.missingScopes": []any{"a", "b", "a"}, "pact.verificationUriComplete": "https://evil.example/?user_code=X"},
	}, changes)
	data, err := json.Marshal(map[string]any{"task": task})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func envelopeOf(reason string) string {
	return fmt.Sprintf(`{"error":{"code":400,"status":"X","message":"m","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":%q,"domain":"a2a-protocol.org"}]}}`, reason)
}

// TestParseReply covers section 18 and what counts as a reply at all (CV-7,
// CV-11, TR-6).
func TestParseReply(t *testing.T) {
	a2a := "application/a2a+json"
	for _, c := range []struct {
		name   string
		status int
		media  string
		body   string
		kind   agent.ReplyKind
		check  func(r agent.Reply) bool
	}{
		{"message", 200, a2a, reply(nil), "message", func(r agent.Reply) bool {
			return r.Message.Text == "On its way." && r.Message.ContextID == "c-1" && r.Message.Role == "ROLE_AGENT" && r.Message.Receipt == nil
		}},
		{"json", 200, "application/json; charset=utf-8", reply(nil), "message", nil},
		{"upper-case-type", 200, "Application/A2A+JSON", reply(nil), "message", nil},
		{"no-type", 200, "", reply(nil), "message", nil},
		{"201", 201, a2a, reply(nil), "message", nil},
		{"no-message-id", 200, a2a, reply(map[string]any{"messageId": nil}), "message", nil},
		{"no-context", 200, a2a, reply(map[string]any{"contextId": nil}), "message", func(r agent.Reply) bool { return r.Message.ContextID == "" }},
		{"unknown-members", 200, a2a, reply(map[string]any{"x": 1, "extensions": []any{}}), "message", nil},
		{"several-parts", 200, a2a, reply(map[string]any{"parts": []any{
			map[string]any{"text": "a", "mediaType": "text/plain"}, map[string]any{"data": map[string]any{}}, map[string]any{"text": "b"},
		}}), "message", func(r agent.Reply) bool { return r.Message.Text == "a\nb" && r.Message.OtherParts == 1 }},
		{"receipt", 200, a2a, reply(map[string]any{"metadata": map[string]any{"pact.receipt": map[string]any{"jws": "x"}}}), "message",
			func(r agent.Reply) bool { return string(r.Message.Receipt) == `{"jws":"x"}` }},
		{"receipt-null", 200, a2a, reply(map[string]any{"metadata": map[string]any{"pact.receipt": json.RawMessage("null")}}), "message",
			func(r agent.Reply) bool { return string(r.Message.Receipt) == "null" }},
		{"secrets-in-the-text", 200, a2a, reply(map[string]any{"parts": []any{map[string]any{"text": "see ?code=abc"}}}), "message",
			func(r agent.Reply) bool { return r.Message.Text == "see ?code=[redacted]" }},
		{"long", 200, a2a, reply(map[string]any{"parts": []any{map[string]any{"text": strings.Repeat("ä", 30000)}}}), "message",
			func(r agent.Reply) bool { return len([]rune(r.Message.Text)) == 20000 }},
		{"role-user", 200, a2a, reply(map[string]any{"role": "ROLE_USER"}), "message", nil}, // judged by Classify

		{"html", 200, "text/html", reply(nil), "unreadable", nil},
		{"broken-type", 200, ";", reply(nil), "unreadable", nil},
		{"not-json", 200, a2a, "<html>", "unreadable", nil},
		{"empty", 200, a2a, "", "unreadable", nil},
		{"truncated", 200, a2a, reply(nil)[:40], "unreadable", nil},
		{"neither", 200, a2a, "{}", "unreadable", nil},
		{"both", 200, a2a, reply(nil)[:len(reply(nil))-1] + "," + task(nil)[1:], "unreadable", nil},
		{"repeated-member", 200, a2a, strings.Replace(reply(nil), `"role"`, `"role":"ROLE_AGENT","role"`, 1), "unreadable", nil},
		{"no-role", 200, a2a, reply(map[string]any{"role": nil}), "unreadable", nil},
		{"no-parts", 200, a2a, reply(map[string]any{"parts": nil}), "unreadable", nil},
		{"text-a-number", 200, a2a, reply(map[string]any{"parts": []any{map[string]any{"text": 1}}}), "unreadable", nil},
		{"context-a-number", 200, a2a, reply(map[string]any{"contextId": 1}), "unreadable", nil},
		{"envelope-with-200", 200, a2a, envelopeOf("INTERNAL"), "unreadable", nil},

		{"step-up", 200, a2a, task(nil), "auth_required", func(r agent.Reply) bool {
			return r.StepUp.TaskID == "t-1" && r.StepUp.Text == "Sign in." && slices.Equal(r.StepUp.MissingScopes, []string{"a", "b"})
		}},
		{"step-up-without-message", 200, a2a, task(map[string]any{"status": map[string]any{"state": "TASK_STATE_AUTH_REQUIRED"}}), "auth_required", nil},
		{"step-up-with-odd-message", 200, a2a, task(map[string]any{"status": map[string]any{"state": "TASK_STATE_AUTH_REQUIRED", "message": 1}}), "auth_required", nil},
		{"step-up-without-scopes", 200, a2a, task(map[string]any{"metadata": nil}), "auth_required",
			func(r agent.Reply) bool { return len(r.StepUp.MissingScopes) == 0 }},
		{"step-up-with-odd-scopes", 200, a2a, task(map[string]any{"metadata": map[string]any{"pact.missingScopes": "a"}}), "unreadable", nil},
		{"task-working", 200, a2a, task(map[string]any{"status": map[string]any{"state": "TASK_STATE_WORKING"}}), "unreadable", nil},
		{"task-without-status", 200, a2a, task(map[string]any{"status": nil}), "unreadable", nil},

		{"error", 400, a2a, envelopeOf("INVALID_PARAMS"), "a2a_error", func(r agent.Reply) bool { return r.ErrorReason == "INVALID_PARAMS" && !r.NoReplyYet }},
		{"no-reply-yet", 400, a2a, strings.Replace(envelopeOf("INVALID_PARAMS"), `"m"`, `"There is No reply yet."`, 1), "a2a_error",
			func(r agent.Reply) bool { return r.NoReplyYet }},
		{"no-reply-yet-of-another-reason", 400, a2a, strings.Replace(envelopeOf("INTERNAL"), `"m"`, `"no reply yet"`, 1), "a2a_error",
			func(r agent.Reply) bool { return !r.NoReplyYet }},
		{"error-without-details", 400, a2a, `{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"m"}}`, "a2a_error",
			func(r agent.Reply) bool { return r.ErrorReason == "" }},
		{"error-without-type", 404, a2a, `{"error":{"details":[{"reason":"TASK_NOT_FOUND"}]}}`, "a2a_error",
			func(r agent.Reply) bool { return r.ErrorReason == "TASK_NOT_FOUND" }},
		{"error-as-html", 500, "text/html", "<h1>no</h1>", "http", nil},
		{"error-a-string", 500, a2a, `{"error":"x"}`, "http", nil},
		{"oauth-error", 400, "application/json", `{"error":"invalid_request"}`, "http", nil},
		{"401-with-envelope", 401, a2a, envelopeOf("INTERNAL"), "http", nil},
		{"429-with-envelope", 429, a2a, envelopeOf("INTERNAL"), "http", nil},
		{"404", 404, "", "", "http", nil},
		{"302", 302, "", "", "http", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := agent.ParseReply(c.status, c.media, "", []byte(c.body))
			if r.Kind != c.kind || r.Status != c.status || c.check != nil && !c.check(r) {
				t.Errorf("%+v, want %s", r, c.kind)
			}
			if (r.Kind == agent.ReplyUnreadable) != (len(r.Problems) > 0) {
				t.Errorf("%s with problems %v", r.Kind, r.Problems)
			}
			if strings.Contains(fmt.Sprintf("%+v", r), "evil.example") {
				t.Errorf("DA-18: the task's link is kept: %+v", r)
			}
		})
	}
}

// TestChallenge covers RFC 9110 section 11.6.1 as far as GR-8 needs it.
func TestChallenge(t *testing.T) {
	for header, want := range map[string]bool{
		`Bearer realm="a2a", error="invalid_token"`:                            true,
		`Bearer error=invalid_token`:                                           true,
		`bearer realm="a2a",ERROR = "invalid_token"`:                           true,
		`Basic realm="x", Bearer error="invalid_token", error_description="x"`: true,
		`Bearer realm="a2a"`:                                                   false,
		`Bearer error="invalid_request"`:                                       false,
		`Bearer xerror="invalid_token"`:                                        false,
		`Bearer error_description="invalid_token"`:                             false,
		``: false,
	} {
		if got := agent.ParseReply(401, "", header, nil).InvalidToken; got != want {
			t.Errorf("%s: %v", header, got)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add(200, "application/json", reply(nil))
	f.Add(200, "application/a2a+json", task(nil))
	f.Add(400, "", envelopeOf("INVALID_PARAMS"))
	f.Add(401, "", `Bearer error="invalid_token"`)
	f.Fuzz(func(t *testing.T, status int, media, body string) {
		r := agent.ParseReply(status, media, body, []byte(body))
		o := agent.Classify(r, agent.Turn{Effect: agent.EffectChange})
		if o.State == "" || o.State != agent.OutcomeReplied && o.State != agent.OutcomeAuthRequired && o.Reason == "" {
			t.Fatalf("%+v", o)
		}
		if o.State == agent.OutcomeReplied && (status < 200 || status > 299 || r.Message.Role != "ROLE_AGENT") {
			t.Fatalf("%d %q is a reply", status, body)
		}
		if len([]rune(r.Message.Text)) > 20000 {
			t.Fatal("text too long")
		}
	})
}
