package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent/control"
)

// The secret of a token is shown once, and nowhere else; a token that ended stays in sight.
func TestAgentTokens(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	secret := regexp.MustCompile(`pact_agent_[A-Z2-7]{52}`)
	code, stdout, stderr := b.run(false, "", "agent", "tokens", "list")
	if code != 0 || !strings.HasPrefix(stdout, "No tokens. Make one with: ") || !strings.Contains(stderr, "There was no profile") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(false, "", "agent", "tokens", "create", "--name", "ops", "--scope", "operator", "--expires-in", "30d")
	if code != 0 || stderr != "" || len(secret.FindAllString(stdout, -1)) != 1 || !strings.Contains(stdout, "shown this once:\n\npact_agent_") || !strings.Contains(stdout, "(in 30d)") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	v := b.json(false, 0, "agent", "tokens", "create", "--name", "ci", "--scope", "read")
	if !secret.MatchString(v["token"].(string)) || v["state"] != "active" || v["scope"] != "read" || v["tokenFile"] != nil || v["lastUsed"] != nil {
		t.Errorf("created %v", v)
	}
	file := filepath.Join(t.TempDir(), "token")
	v = b.json(false, 0, "agent", "tokens", "create", "--name", "editor", "--scope", "assistant", "--out", file)
	text, err := os.ReadFile(file)
	if err != nil || !secret.Match(text) || v["token"] != nil || v["tokenFile"] != file {
		t.Errorf("%v: %q, %v", v, text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for _, c := range []struct {
		code int
		says string
		args string
	}{
		{2, "--name is required", "create --scope read"},
		{2, "--scope: say read, write, operator, admin or assistant", "create --name x"},
		{2, "--scope: say", "create --name x --scope all"},
		{2, "is not a duration", "create --name x --scope read --expires-in never"},
		{2, "--expires-in: say 1m at least and 366d at most", "create --name x --scope read --expires-in 367d"},
		{2, "--expires-in: say 1m at least and 366d at most", "create --name x --scope read --expires-in 59s"},
		{1, "there is or was a token named ci", "create --name ci --scope read"},
		{1, "--out: ", "create --name x --scope read --out " + file},
		{1, "want 1 to 64 characters", "create --name a/b --scope read"},
		{1, `there is no token "nobody"`, "revoke nobody --yes"},
		{2, "that is a token itself", "revoke " + strings.TrimSpace(string(text)) + " --yes"},
		{3, "answer with --yes", "revoke ci"},
		{2, "TOKEN is missing", "revoke"},
	} {
		code, stdout, stderr := b.run(false, "", append([]string{"agent", "tokens"}, strings.Fields(c.args)...)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) || secret.MatchString(stderr) {
			t.Errorf("%s: exit %d\n%s%s", c.args, code, stdout, stderr)
		}
	}
	for _, life := range []string{"1m", "366d"} { // as long as control takes, and no longer
		b.json(false, 0, "agent", "tokens", "create", "--name", "for-"+life, "--scope", "read", "--expires-in", life)
	}
	if code, stdout, _ := b.run(true, "", "agent", "tokens", "revoke", "ci"); code != 0 || !strings.Contains(stdout, "(ci) is revoked.") {
		t.Errorf("revoke: exit %d\n%s", code, stdout)
	}
	if v := b.json(false, 0, "agent", "tokens", "revoke", "ci"); v["state"] != "revoked" { // nothing is left to ask about
		t.Errorf("revoked %v", v)
	}
	list := b.json(false, 0, "agent", "tokens", "list")["tokens"].([]any)
	if len(list) != 5 || list[3].(map[string]any)["state"] != "revoked" {
		t.Errorf("list %v", list)
	}
}

// On a terminal of 80 columns nothing of a token is cut but its name.
func TestPrintTokens(t *testing.T) {
	var out bytes.Buffer
	printTokens(&printer{w: &out, now: testNow, zone: time.UTC, width: 80}, []control.TokenView{
		{ID: "token-k4hf5lbsiklxzbit", Name: strings.Repeat("n", 64), Scope: control.ScopeAssistant, State: control.TokenExpired, Expires: testNow.Add(-90 * 24 * time.Hour), LastUsed: testNow.Add(-91 * 24 * time.Hour)},
		{ID: "token-k4hf5lbsiklxzbiu", Name: "ops", Scope: control.ScopeRead, State: control.TokenActive, Expires: testNow.Add(time.Hour)},
	})
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(out.String(), "token-k4hf5lbsiklxzbit") || !strings.Contains(out.String(), "assistant") {
		t.Errorf("printed\n%s", out.String())
	}
}
