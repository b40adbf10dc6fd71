package service

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// helped is an AI assistant's program, which started a pactctl mcp of its own.
type helped struct {
	w       *world
	session *mcp.ClientSession
	stderr  bytes.Buffer
	heard   strings.Builder // every result
}

func (w *world) assistant(args ...string) *helped {
	w.t.Helper()
	a := &helped{w: w}
	cmd := program(context.Background(), w.home, "pactctl", append([]string{"mcp"}, args...)...)
	cmd.Env = append(cmd.Env, "PACT_PROFILE="+w.profile)
	cmd.Stderr = &a.stderr
	session, err := mcp.NewClient(&mcp.Implementation{Name: "desk", Version: "1"}, nil).
		Connect(w.t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	a.session = session
	w.t.Cleanup(func() {
		_ = session.Close() // its program may be gone
		if w.t.Failed() {
			w.t.Logf("pactctl mcp:\n%s", &a.stderr)
		}
	})
	return a
}

// call calls a tool and returns what is structured of its result.
func (a *helped) call(tool string, args map[string]any) map[string]any {
	a.w.t.Helper()
	ctx, cancel := context.WithTimeout(a.w.t.Context(), patience)
	defer cancel()
	r, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.w.t.Fatalf("%s: %v", tool, err)
	}
	all, err := json.Marshal(r)
	if err != nil {
		a.w.t.Fatal(err)
	}
	a.heard.Write(all)
	out, _ := r.StructuredContent.(map[string]any)
	return out
}

// An assistant requests a change at the running agent, the agent is restarted, and the
// owner approves on a terminal, signs in there, and closes it: the assistant learns what
// came of it, and saw no link, code or token.
func TestAssistantAndOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve()
	a := w.assistant()
	if v := a.call("discover_business", map[string]any{"business": w.card}); v["supported"] != true {
		t.Fatalf("discover: %v", v)
	}
	text := "Cancel booking M1"
	v := a.call("request_change", map[string]any{"business": w.card, "message": text, "scopes": []string{mayCancel}})
	waits, _ := v["approval"].(map[string]any)
	id, _ := waits["id"].(string)
	if v["status"] != "local_approval_required" || id == "" {
		t.Fatalf("request: %v", v)
	}
	s.kill()
	w.serve()
	if v := a.call("follow_up", map[string]any{"id": id}); v["status"] != "local_approval_required" {
		t.Errorf("while nobody decided: %v", v)
	}
	term := w.terminal("approvals", "approve", id)
	term.question()
	if seen := term.seen.String(); !strings.Contains(seen, text) || !strings.Contains(seen, "assistant:desk") {
		t.Errorf("what is approved, and who asked, is not shown:\n%s", seen)
	}
	term.types("y\n")
	link := term.link()
	term.hangUp()
	if v := a.call("follow_up", map[string]any{"id": id}); v["status"] == "replied" {
		t.Errorf("before the owner signed in: %v", v)
	}
	if err := w.signIn(link); err != nil {
		t.Fatal(err)
	}
	w.eventually("the assistant hears of the reply, and that its receipt is verified", func() bool {
		v := a.call("follow_up", map[string]any{"id": id})
		receipt, _ := v["receipt"].(map[string]any)
		return v["status"] == "replied" && receipt["verdict"] == "verified"
	})
	w.once(text)
	code := link[strings.LastIndexByte(link, '=')+1:]
	for _, secret := range []string{link, code, "dc_", "eyJ"} {
		if strings.Contains(a.heard.String(), secret) {
			t.Errorf("the assistant saw %q", secret)
		}
	}
	if err := a.session.Close(); err != nil {
		t.Errorf("pactctl mcp: %v", err)
	}
}
