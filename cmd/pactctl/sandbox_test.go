package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
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
			Asks []struct {
				Scope string `json:"scope"`
				Text  string `json:"text"`
			} `json:"asks"`
			Closes string `json:"closes"`
		} `json:"brands"`
		Login struct {
			Email    string `json:"email"`
			Password string `json:"password"`
		} `json:"login"`
		Others []struct {
			Email    string `json:"email"`
			Password string `json:"password"`
		} `json:"others"`
		Owner struct {
			URL      string `json:"url"`
			Password string `json:"password"`
		} `json:"owner"`
		Control struct {
			URL   string `json:"url"`
			Token string `json:"token"`
		} `json:"control"`
	}
	if err := json.Unmarshal(line, &ready, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if jsontext.Value(line).Kind() != '{' || ready.Audience == "" || ready.Login.Email == "" || ready.Login.Password == "" || len(ready.Brands) != 2 ||
		ready.Control.URL != ready.Provider+"/sandbox/faults" || ready.Control.Token == "" {
		t.Errorf("ready line %s", line)
	}
	if len(ready.Others) != 1 || ready.Others[0].Password == "" || ready.Owner.URL != ready.Provider+"/owner" || ready.Owner.Password == "" ||
		len(ready.Brands[0].Asks) != 4 || ready.Brands[0].Asks[0].Scope == "" || ready.Brands[0].Asks[0].Text == "" || ready.Brands[0].Closes == "" {
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
			{
				ID: sandbox.LarklineID, Name: "Larkline Air", Card: "http://127.0.0.1:8792/.well-known/agent-card.json",
				Asks: []sandbox.Ask{{Scope: readFlights, Text: askFlights}},
			},
			{ID: sandbox.MarrowID, Name: "Marrow Books", Card: "http://127.0.0.1:8791/a2a/x/.well-known/agent-card.json"},
		},
		Login:  person.Login{Email: "ada@example.com", Password: "correct-horse"},
		Others: []person.Login{{Email: "bo@example.com", Password: "battery-staple"}},
		Owner:  sandbox.OwnerLogin{URL: "http://127.0.0.1:8791/owner", Password: "hidden"},
	}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox.txt", stdout.Bytes())
}

func TestSandboxUsage(t *testing.T) {
	for line, why := range map[string]string{
		"--listen 8791":                       "HOST:PORT",
		"--listen :8791":                      "--public-url",
		"--listen 0.0.0.0:8791":               "--public-url",
		"--brand-listen x":                    "HOST:PORT",
		"--brand-listen [::]:0":               "--brand-url",
		"extra":                               "unknown command",
		"--listen 127.0.0.1:0 --fault x":      `--fault: sandbox: fault "x": there is no such fault`,
		"faults set x":                        "--token-file FILE",
		"faults set --url 127.0.0.1:8791":     "is not a URL like",
		"faults set --url http://127.0.0.1/x": "is not a URL like",
		"faults set --url http://air.test":    "in the clear",
		"--listen :0 --public-url http://a":   "--brand-url",
	} {
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), append([]string{"sandbox"}, strings.Fields(line)...)); code != exitUsage || !strings.Contains(stderr.String(), why) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %s", line, code, bytes.TrimSpace(stderr.Bytes()))
		}
	}
}

// The control token is in its file and nowhere else, and makes the sandbox
// fail while it runs.
func TestSandboxFaults(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	file := filepath.Join(t.TempDir(), "control.token")
	if err := os.WriteFile(file, []byte("of the start before"), 0o644); err != nil {
		t.Fatal(err)
	}
	a, _, stderr := testApp("", false)
	out, stdout := io.Pipe()
	a.stdout = stdout
	code := make(chan int, 1)
	go func() {
		code <- a.run(ctx, []string{"sandbox", "--listen", "127.0.0.1:0", "--quiet", "--control-file", file, "--fault", "card-name=A, B", "--fault", "slow=1*2"})
		stdout.Close()
	}()
	provider, said := "", ""
	lines := bufio.NewScanner(out)
	for !strings.Contains(said, "pactctl send") && lines.Scan() {
		said += lines.Text()
		if at := strings.Fields(lines.Text()); provider == "" && len(at) == 2 && at[0] == "provider" {
			provider = at[1]
		}
	}
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || len(token) < 40 {
		t.Errorf("%d bytes, %v, %v", len(token), info.Mode(), err)
	}
	if strings.Contains(said, strings.TrimSpace(string(token))) {
		t.Error("the token is printed")
	}
	do := func(args ...string) string {
		t.Helper()
		a, stdout, stderr := testApp("", false)
		if code := a.run(ctx, append([]string{"sandbox", "faults", "set", "--url", provider, "--token-file", file}, args...)); code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		return stdout.String()
	}
	name := func() string {
		t.Helper()
		resp, err := http.Get(provider + "/a2a/" + sandbox.LarklineID + "/.well-known/agent-card.json")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		doc, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return agent.ParseCard(doc, agent.URLRules{Development: true}).Name
	}
	if got := name(); got != "A, B" {
		t.Errorf("--fault: the card says %q", got)
	}
	if got := do("card-name=C", "drop-after*1"); got != "The sandbox has these faults:\n  card-name=C\n  drop-after*1\n" || name() != "C" {
		t.Errorf("said %q", got)
	}
	if got := do("-o", "json"); got != "{\n  \"active\": []\n}\n" || name() != "Larkline Air" {
		t.Errorf("said %q", got)
	}
	if got := do(); got != "The sandbox has no fault.\n" {
		t.Errorf("said %q", got)
	}
	for args, why := range map[string]string{"grant-aud=": "write grant-aud=TEXT", "receipt": "near it are receipt-bit"} {
		a, _, stderr := testApp("", false)
		if code := a.run(ctx, []string{"sandbox", "faults", "set", "--url", provider, "--token-file", file, args}); code != exitFailed || !strings.Contains(stderr.String(), why) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d: %s", got, stderr)
	}
	a, _, stderr = testApp("", false) // nobody is there
	if code := a.run(t.Context(), []string{"sandbox", "faults", "set", "--url", "http://127.0.0.1:1", "--token-file", file}); code != exitFailed ||
		!strings.Contains(stderr.String(), "is it running there?") || !strings.HasSuffix(stderr.String(), ": say where it is with --url\n") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// The list is one line of 80 columns for each fault, and in JSON name and about.
func TestFaultList(t *testing.T) {
	a, stdout, _ := testApp("", false)
	if code := a.run(t.Context(), []string{"sandbox", "faults"}); code != 0 {
		t.Fatal(code)
	}
	all := sandbox.Faults()
	lines := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
	if len(lines) != len(all)+1 {
		t.Errorf("%d lines for %d faults", len(lines), len(all))
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	golden(t, "faults.txt", stdout.Bytes())
	a, stdout, _ = testApp("", false)
	if code := a.run(t.Context(), []string{"sandbox", "faults", "-o", "json"}); code != 0 {
		t.Fatal(code)
	}
	var list []struct {
		Name  string `json:"name"`
		About string `json:"about"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &list, json.RejectUnknownMembers(true)); err != nil || len(list) != len(all) {
		t.Fatalf("%v: %s", err, stdout)
	}
	for i, f := range all {
		if list[i].Name != f.Name || list[i].About != f.About {
			t.Errorf("%+v, want %+v", list[i], f)
		}
	}
}
