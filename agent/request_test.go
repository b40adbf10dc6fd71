package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// TestCheckText covers AD-1's order.
func TestCheckText(t *testing.T) {
	long := strings.Repeat("ä", 4000)
	for text, want := range map[string]string{
		"Where is A-1?": "", long: "", " \n": "blank_message", long + "x": "message_too_long",
		"password: x": "sensitive_content", long + " password: x": "message_too_long",
	} {
		got := ""
		if p := agent.CheckText(text); p != nil {
			got = p.Reason
		}
		if got != want {
			t.Errorf("%.20q: %q, want %q", text, got, want)
		}
	}
}

// TestCheckRequest covers protocol.md's Messages: which error answers what.
func TestCheckRequest(t *testing.T) {
	body, err := agent.BuildMessage("m-1", "c-1", "Where?")
	if err != nil {
		t.Fatal(err)
	}
	part := func(p string) string { return `{"message":{"messageId":"m","role":"ROLE_USER","parts":[` + p + `]}}` }
	for body, want := range map[string]string{
		string(body):         "",
		part(`{"text":"x"}`): "",
		part(`{"text":"x"},{"text":"y","mediaType":"text/plain","filename":"f","metadata":{}}`):         "",
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"extensions":[],"z":1}}`: "",
		`{`:                         "INVALID_PARAMS",
		`[]`:                        "INVALID_PARAMS",
		`{"message":1}`:             "INVALID_PARAMS",
		part(``):                    "INVALID_PARAMS",
		part(`{"text":" "}`):        "INVALID_PARAMS",
		part(`{"text":1}`):          "INVALID_PARAMS",
		part(`{"text":"x","z":1}`):  "INVALID_PARAMS",
		part(`"x"`):                 "INVALID_PARAMS",
		part(`{"data":{}}`):         "CONTENT_TYPE_NOT_SUPPORTED",
		part(`{"url":"https://x"}`): "CONTENT_TYPE_NOT_SUPPORTED",
		part(`{"text":"x","mediaType":"text/html"}`):                                            "CONTENT_TYPE_NOT_SUPPORTED",
		`{"message":{"role":"ROLE_USER","parts":[{"text":"x"}]}}`:                               "INVALID_PARAMS",
		`{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}}`:              "INVALID_PARAMS",
		`{"message":{"messageId":"m","taskId":"t","role":"ROLE_USER","parts":[{"text":"x"}]}}`:  "TASK_NOT_FOUND",
		`{"message":{"messageId":"m","contextId":1,"role":"ROLE_USER","parts":[{"text":"x"}]}}`: "INVALID_PARAMS",
	} {
		_, problems := agent.CheckRequest([]byte(body))
		got := ""
		if len(problems) > 0 {
			got = problems[0].Reason
		}
		if got != want {
			t.Errorf("%s: %v, want %q", body, problems, want)
		}
	}
	if text, _ := agent.CheckRequest([]byte(part(`{"text":"a"},{"text":"b"}`))); text != "a\nb" {
		t.Errorf("text %q", text)
	}
}

// TestCheckA2AError covers protocol.md's table of errors.
func TestCheckA2AError(t *testing.T) {
	make := func(change func(e, d map[string]any)) []byte {
		d := map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org"}
		e := map[string]any{"code": 404, "status": "NOT_FOUND", "message": "m", "details": []any{d}}
		change(e, d)
		body, err := json.Marshal(map[string]any{"error": e})
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	for name, c := range map[string]struct {
		body []byte
		bad  int
	}{
		"good":           {make(func(e, d map[string]any) {}), 0},
		"other-code":     {make(func(e, d map[string]any) { e["code"] = 400 }), 1},
		"other-status":   {make(func(e, d map[string]any) { e["status"] = "INTERNAL" }), 1},
		"no-type":        {make(func(e, d map[string]any) { delete(d, "@type") }), 1},
		"other-domain":   {make(func(e, d map[string]any) { d["domain"] = "x" }), 1},
		"unknown-reason": {make(func(e, d map[string]any) { d["reason"] = "X" }), 1},
		"no-reason":      {make(func(e, d map[string]any) { delete(d, "reason") }), 1},
		"no-details":     {make(func(e, d map[string]any) { delete(e, "details") }), 2},
		"not-json":       {[]byte("x"), 1},
		"not-an-error":   {[]byte("{}"), 1},
	} {
		if _, problems := agent.CheckA2AError(c.body); len(problems) != c.bad {
			t.Errorf("%s: %v, want %d", name, problems, c.bad)
		}
	}
}
