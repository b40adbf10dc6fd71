package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// check runs `pactctl check …` with stdin and returns its exit code and output.
func check(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, now: func() time.Time { return testNow }, zone: time.UTC}
	code = a.run(t.Context(), append([]string{"check"}, args...))
	return code, out.String(), errs.String()
}

// checkJSON is check with -o json, decoded.
func checkJSON(t *testing.T, stdin string, args ...string) (code int, r checked) {
	t.Helper()
	code, out, errs := check(t, stdin, append([]string{"-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %v in %q; stderr %s", args, err, out, errs)
	}
	if r.OK != (code == 0) || code > 1 || r.OK != (r.Reason == "") || r.OK != (errs == "") {
		t.Errorf("%v: exit %d, stderr %q, %+v", args, code, errs, r)
	}
	return code, r
}

// readVectors decodes a vector file of package agent.
func readVectors(t *testing.T, name string, v any) {
	t.Helper()
	decodeFile(t, filepath.Join(agentVectors, name), v)
}

var agentVectors = filepath.Join("..", "..", "agent", "testdata")

func decodeFile(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// eachVectorFile decodes a vector file of package agent and the file of that name
// in every directory that PACT_VECTORS lists, and runs test on each.
func eachVectorFile[T any](t *testing.T, name string, test func(t *testing.T, file T)) {
	t.Helper()
	for i, dir := range append([]string{agentVectors}, filepath.SplitList(os.Getenv("PACT_VECTORS"))...) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file T
		decodeFile(t, path, &file)
		t.Run(strings.TrimSuffix(name, ".json")+"/"+filepath.Base(dir), func(t *testing.T) { test(t, file) })
	}
}

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCheckVectors runs every vector file through the command: its verdict is
// the vector's, its exit code follows.
func TestCheckVectors(t *testing.T) {
	development := func(on bool, args ...string) []string {
		if on {
			return append([]string{"--development"}, args...)
		}
		return args
	}
	type cards struct {
		Cases []struct {
			Name        string
			Card        json.RawMessage
			Development bool
			Want        struct{ Support, Reason string }
		}
	}
	eachVectorFile(t, "cards.json", func(t *testing.T, f cards) {
		for _, c := range f.Cases {
			if _, r := checkJSON(t, string(c.Card), development(c.Development, "card", "-")...); r.Verdict != c.Want.Support || r.Reason != c.Want.Reason {
				t.Errorf("%s: %s %s, want %+v", c.Name, r.Verdict, r.Reason, c.Want)
			}
		}
	})
	type metadata struct {
		Development bool
		Given       struct {
			Card        json.RawMessage
			Development bool
		}
		Cases []struct {
			Name, Want  string
			Metadata    json.RawMessage
			Development bool
		}
	}
	eachVectorFile(t, "metadata.json", func(t *testing.T, f metadata) {
		card := writeFile(t, f.Given.Card)
		for _, c := range f.Cases {
			on := f.Development || f.Given.Development || c.Development
			if _, r := checkJSON(t, string(c.Metadata), development(on, "metadata", "-", "--card", card)...); r.Verdict != c.Want {
				t.Errorf("%s: %s, want %s", c.Name, r.Verdict, c.Want)
			}
		}
	})
	type tokens struct {
		Given struct {
			Issuer, Audience, Nonce, Subject string
			Now                              float64 // Unix seconds, however they are written
			JWKS                             json.RawMessage
		}
		Cases []struct {
			Name, Want string
			Response   json.RawMessage
		}
	}
	eachVectorFile(t, "tokens.json", func(t *testing.T, f tokens) {
		g := f.Given
		args := []string{"token", "-", "--issuer", g.Issuer, "--audience", g.Audience, "--nonce", g.Nonce, "--subject", g.Subject,
			"--at", strconv.FormatInt(int64(g.Now), 10), "-o", "json"}
		keys, accepted, verified := writeFile(t, g.JWKS), 0, 0
		for _, c := range f.Cases {
			code, out, errs := check(t, string(c.Response), args...)
			var r, signed checked
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			if r.Verdict != c.Want || r.OK != (code == 0) {
				t.Errorf("%s: exit %d %+v, want %s", c.Name, code, r, c.Want)
			}
			if g.JWKS != nil { // agents need not verify the signature (SG-6), the command does
				_, more, _ := check(t, string(c.Response), append(args, "--jwks", keys)...)
				out += more
				if err := json.Unmarshal([]byte(more), &signed); err != nil {
					t.Fatal(err)
				}
				if signed.OK != (r.OK && signed.Token.Signature == "verified") {
					t.Errorf("%s: with keys: %+v", c.Name, signed)
				}
			}
			if r.OK {
				accepted++
			}
			if signed.OK {
				verified++
			}
			if strings.Contains(out+errs, "eyJ") {
				t.Errorf("SG-14: %s: the token is printed", c.Name)
			}
		}
		if g.JWKS != nil && accepted > 0 && verified == 0 {
			t.Error("no signature verifies")
		}
	})
	type receipts struct {
		Given struct {
			Expect struct {
				Brand, GrantID, PA, User, SentAt, ReceivedAt string
				GrantScopes                                  []string
			}
			JWKS json.RawMessage
		}
		Cases []struct {
			Name    string
			Receipt json.RawMessage
			Want    struct{ Verdict string }
		}
	}
	eachVectorFile(t, "receipts.json", func(t *testing.T, f receipts) {
		x, keys := f.Given.Expect, writeFile(t, f.Given.JWKS)
		for _, c := range f.Cases {
			in := string(c.Receipt)
			if in == "" || in == "null" { // a case without a receipt, not one that is null
				in = `{"message": {"role": "ROLE_AGENT", "parts": [{"text": "Done."}]}}`
			}
			_, r := checkJSON(t, in, "receipt", "-", "--jwks", keys, "--grant", x.GrantID, "--user", x.User,
				"--pa", x.PA, "--brand", x.Brand, "--scope", strings.Join(x.GrantScopes, ","), "--sent", x.SentAt, "--received", x.ReceivedAt)
			if r.Verdict != c.Want.Verdict {
				t.Errorf("%s: %s, want %s", c.Name, r.Verdict, c.Want.Verdict)
			}
		}
	})
	type urls struct {
		Cases []struct {
			URL, Want   string
			Development bool
		}
	}
	eachVectorFile(t, "urls.json", func(t *testing.T, f urls) {
		for _, c := range f.Cases {
			if _, r := checkJSON(t, c.URL, development(c.Development, "url", "--", c.URL)...); r.Verdict != c.Want {
				t.Errorf("%q: %s, want %s", c.URL, r.Verdict, c.Want)
			}
		}
	})
}

// TestCheckMessage covers requests, replies and errors, told apart by themselves.
func TestCheckMessage(t *testing.T) {
	message := func(role, text string) string {
		return `{"message": {"messageId": "m", "contextId": "c", "role": "` + role + `", "parts": [{"text": "` + text + `"}]}}`
	}
	for _, c := range []struct{ name, body, kind, reason, effect string }{
		{"request", message("ROLE_USER", "Cancel A-1"), "request", "", "change"},
		{"inspection", message("ROLE_USER", "Where is A-1?"), "request", "", "inspect"},
		{"sensitive", message("ROLE_USER", "password: hunter22"), "request", "sensitive_content", "unknown"},
		{"blank", message("ROLE_USER", " "), "request", "INVALID_PARAMS", ""},
		{"not-json", "hello", "request", "INVALID_PARAMS", ""},
		{"reply", message("ROLE_AGENT", "Done."), "message", "", ""},
		{"reply-without-parts", `{"message": {"role": "ROLE_AGENT"}}`, "unreadable", "invalid_reply", ""},
		{"step-up", `{"task": {"status": {"state": "TASK_STATE_AUTH_REQUIRED"}, "metadata": {"pact.missingScopes": ["a"]}}}`, "auth_required", "", ""},
		{"step-up-for-nothing", `{"task": {"status": {"state": "TASK_STATE_AUTH_REQUIRED"}}}`, "auth_required", "step_up_unsupported", ""},
		{"task-done", `{"task": {"status": {"state": "TASK_STATE_COMPLETED"}}}`, "unreadable", "invalid_reply", ""},
		{"error", `{"error": {"code": 404, "status": "NOT_FOUND", "message": "no", "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org"}]}}`, "a2a_error", "", ""},
		{"error-without-details", `{"error": {"code": 404, "status": "NOT_FOUND", "message": "no"}}`, "a2a_error", "invalid_error", ""},
	} {
		_, r := checkJSON(t, c.body, "message", "-")
		if r.Message.Type != c.kind || r.Reason != c.reason || r.Message.Effect != c.effect {
			t.Errorf("%s: %+v %+v", c.name, r, r.Message)
		}
	}
}

// TestCheckURLSource covers documents behind URLs: fetched as the agent would,
// with discovery's reasons when there is none (DI-2).
func TestCheckURLSource(t *testing.T) {
	var f struct {
		Cases []struct {
			Name string
			Card json.RawMessage
		}
	}
	readVectors(t, "cards.json", &f)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	var card string
	for _, c := range f.Cases {
		if c.Name == "delegated" {
			card = strings.ReplaceAll(string(c.Card), "https://provider.example.com", server.URL)
		}
	}
	const oauth = "/a2a/01J8ZQ4T7M/oauth"
	mux.HandleFunc("/card", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(card)) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/card", http.StatusFound) })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc(oauth+"/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		base := server.URL + oauth
		json.NewEncoder(w).Encode(map[string]any{
			"issuer": base, "jwks_uri": base + "/jwks.json", "token_endpoint": base + "/token",
			"device_authorization_endpoint": base + "/device_authorization", "scopes_supported": []string{"orders:read"},
		})
	})

	code, r := checkJSON(t, "", "card", server.URL+"/moved", "--development")
	if code != 0 || r.Card.Origin != server.URL || len(r.Hops) != 2 {
		t.Errorf("%d %+v", code, r)
	}
	code, r = checkJSON(t, "", "metadata", "--card", server.URL+"/card", "--development")
	if code != 0 || r.Metadata.Issuer != server.URL+oauth || len(r.Advice) != 2 {
		t.Errorf("%d %+v", code, r)
	}
	for path, reason := range map[string]string{"/none": "not_found", "/broken": "fetch_failed"} {
		if _, r := checkJSON(t, "", "card", server.URL+path, "--development"); r.Reason != reason || r.Verdict != "unread" {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if _, r := checkJSON(t, "", "card", server.URL+"/card"); r.Reason != "invalid_url" {
		t.Errorf("production fetches from loopback: %+v", r)
	}
	t.Setenv("PACT_DEVELOPMENT", "1")
	if code, _ := checkJSON(t, "", "card", server.URL+"/card"); code != 0 {
		t.Errorf("PACT_DEVELOPMENT=1: exit %d", code)
	}
}

// TestCheckText covers what people read: every problem, and nothing that steers
// a terminal.
func TestCheckText(t *testing.T) {
	code, out, errs := check(t, `{"name": "Evil\u001b[2J", "capabilities": {"streaming": true}}`, "card", "-")
	if code != 1 || !strings.HasPrefix(errs, "pactctl: the card does not pass: invalid_card") {
		t.Errorf("exit %d, %s", code, errs)
	}
	for _, want := range []string{"FAIL  card: unsupported (invalid_card)", "x description", "x version", "x skills", "capabilities.streaming", "identity_scheme_missing"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("control characters reach the terminal")
	}
}

// TestCheckUsage covers wrong command lines: exit code 2, or 1 for a file that
// is not there.
func TestCheckUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"card", 2, "FILE|URL|- is missing: pactctl check card FILE|URL|-"},
		{"metadata --card x y z", 2, `"z" is one argument too many`},
		{"metadata x", 2, "--card is required"},
		{"metadata - --card -", 2, "both be standard input"},
		{"token - --at yesterday", 2, "RFC 3339"},
		{"cards", 2, "unknown command"},
		{"card no-such-file", 1, "no such file"},
		{"card brand.example", 1, "begin with https://"},
	} {
		code, _, errs := check(t, "{}", strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d, %s", c.args, code, errs)
		}
	}
}

// A token belongs in a file or on standard input, and not in a message.
func TestCheckTokenAsArgument(t *testing.T) {
	a, stdout, stderr := testApp("", false)
	const token = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"
	code := a.run(t.Context(), []string{"check", "token", token})
	if code == 0 || !strings.Contains(stderr.String(), "standard input") || strings.Contains(stdout.String()+stderr.String(), token) {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestCheckUnread covers documents that cannot be read: programs get a result for
// each, people one line.
func TestCheckUnread(t *testing.T) {
	dir, none := t.TempDir(), filepath.Join(t.TempDir(), "none.json")
	object, long := writeFile(t, []byte("{}")), writeFile(t, make([]byte, maxDocument+1))
	for _, c := range []struct {
		args         []string
		kind, reason string
	}{
		{[]string{"card", none}, "card", "not_found"},
		{[]string{"card", dir}, "card", "unreadable"},
		{[]string{"card", long}, "card", "too_large"},
		{[]string{"metadata", "--card", none}, "card", "not_found"},
		{[]string{"message", dir}, "message", "unreadable"},
		{[]string{"token", none}, "token", "not_found"},
		{[]string{"token", "-", "--jwks", none}, "token", "not_found"},
		{[]string{"token", "-", "--jwks", object}, "token", "invalid_key_set"},
		{[]string{"receipt", none}, "receipt", "not_found"},
		{[]string{"receipt", "-", "--jwks", none}, "receipt", "not_found"},
		{[]string{"receipt", "-", "--jwks", dir}, "receipt", "unreadable"},
		{[]string{"receipt", "-", "--jwks", object}, "receipt", "invalid_key_set"},
	} {
		if code, r := checkJSON(t, "{}", c.args...); code != 1 || r.Kind != c.kind || r.Verdict != "unread" || r.Reason != c.reason || len(r.Problems) != 1 {
			t.Errorf("%v: %d %+v", c.args, code, r)
		}
		if code, out, errs := check(t, "{}", c.args...); code != 1 || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %d %q %q", c.args, code, out, errs)
		}
	}
}

// TestCheckReceiptKeys covers key sets that cannot be had: a receipt that agents
// could not verify is unverifiable (EV-3).
func TestCheckReceiptKeys(t *testing.T) {
	var f struct {
		Cases []struct {
			Name    string
			Receipt json.RawMessage
			Want    struct{ Verdict string }
		}
	}
	readVectors(t, "receipts.json", &f)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/text" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte("not a key set"))
	}))
	defer server.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	tried := 0
	for _, c := range f.Cases {
		if c.Want.Verdict != "verified" {
			continue
		}
		for _, keys := range []string{closed.URL, server.URL + "/none", server.URL + "/text", "http://keys.example/jwks.json"} {
			tried++
			code, r := checkJSON(t, string(c.Receipt), "receipt", "-", "--development", "--jwks", keys)
			if code != 1 || r.Verdict != "unverifiable" || r.Reason != "keys_unavailable" || r.Evidence == nil || !strings.Contains(strings.Join(r.Advice, " "), "key set: ") {
				t.Errorf("%s: %d %+v", keys, code, r)
			}
		}
	}
	if tried == 0 {
		t.Error("no receipt to try")
	}
}

// TestCheckEmpty: nothing is called that.
func TestCheckEmpty(t *testing.T) {
	for _, in := range []string{"", " \n"} {
		if code, r := checkJSON(t, in, "card", "-"); code != 1 || r.Reason != "invalid_card" || r.Problems[0].Detail != "is empty" {
			t.Errorf("%q: %d %+v", in, code, r)
		}
	}
}

// TestCheckDocumentAsArgument covers SG-14: what was meant for standard input is
// not repeated.
func TestCheckDocumentAsArgument(t *testing.T) {
	const jwt = "eyJhbGciOiJFUzI1NiJ9.eyJhIjoxfQ.c2lnbg"
	for _, argument := range []string{jwt, strings.Repeat(jwt, 20), `{"token":"hunter22"}`} {
		for _, format := range []string{"text", "json"} {
			code, out, errs := check(t, "", "token", argument, "-o", format)
			if code != 1 || !strings.Contains(out+errs, "with - as FILE") || strings.Contains(out+errs, "eyJ") || strings.Contains(out+errs, "hunter22") {
				t.Errorf("%s: %d %q %q", format, code, out, errs)
			}
		}
	}
}
