package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/sandbox"
)

// The ready line tells a program everything it needs, and an interrupt ends the
// sandbox without a failure.
func TestSandboxReadyLine(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	a, _, stderr := testApp("", false)
	out, stdout := io.Pipe()
	a.stdout = stdout
	code := make(chan int, 1)
	go func() { code <- a.run(ctx, []string{"sandbox", "--listen", "127.0.0.1:0", "--quiet", "-o", "json"}) }()
	lines := bufio.NewReader(out)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	var ready struct {
		Provider string `json:"provider"`
		Audience string `json:"audience"`
		Brands   []struct {
			ID   string `json:"id"`
			Name string `json:"name"`
			Card string `json:"card"`
		} `json:"brands"`
		Login struct {
			Email    string `json:"email"`
			Password string `json:"password"`
		} `json:"login"`
	}
	if err := json.Unmarshal(line, &ready, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if jsontext.Value(line).Kind() != '{' || ready.Audience == "" || ready.Login.Email == "" || ready.Login.Password == "" || len(ready.Brands) != 2 {
		t.Errorf("ready line %s", line)
	}
	for i, b := range ready.Brands {
		resp, err := http.Get(b.Card)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := io.ReadAll(resp.Body)
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		card := agent.ParseCard(doc, agent.URLRules{Development: true})
		if err != nil || !card.Support || card.Name != b.Name || !strings.Contains(card.InterfaceURL, b.ID) {
			t.Errorf("card of %s: %v, %+v", b.Name, err, card.Problems)
		}
		// The first brand has a domain of its own, which redirects.
		if own := !strings.HasPrefix(b.Card, ready.Provider); own != (i == 0) {
			t.Errorf("card of %s at %s", b.Name, b.Card)
		}
		if at := resp.Request.URL.String(); !strings.HasPrefix(at, ready.Provider) {
			t.Errorf("card of %s ends at %s", b.Name, at)
		}
	}
	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d: %s", got, stderr)
	}
	if _, err := http.Get(ready.Provider); err == nil {
		t.Error("it still serves")
	}
}

func TestSandboxAnnouncement(t *testing.T) {
	a, stdout, _ := testApp("", false)
	err := announceSandbox(a, sandbox.Ready{
		Provider: "http://127.0.0.1:8791", Audience: "http://127.0.0.1:8791/a2a",
		Brands: []sandbox.ReadyBrand{
			{ID: sandbox.LarklineID, Name: "Larkline Air", Card: "http://127.0.0.1:8792/.well-known/agent-card.json"},
			{ID: sandbox.MarrowID, Name: "Marrow Books", Card: "http://127.0.0.1:8791/a2a/x/.well-known/agent-card.json"},
		},
		Login: sandbox.Login{Email: "ada@example.com", Password: "correct-horse"},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox.txt", stdout.Bytes())
}

func TestSandboxUsage(t *testing.T) {
	for line, why := range map[string]string{
		"--listen 8791":                     "HOST:PORT",
		"--listen :8791":                    "--public-url",
		"--listen 0.0.0.0:8791":             "--public-url",
		"--brand-listen x":                  "HOST:PORT",
		"--brand-listen [::]:0":             "--brand-url",
		"extra":                             "unknown command",
		"--listen :0 --public-url http://a": "--brand-url",
	} {
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), append([]string{"sandbox"}, strings.Fields(line)...)); code != exitUsage || !strings.Contains(stderr.String(), why) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %s", line, code, bytes.TrimSpace(stderr.Bytes()))
		}
	}
}
