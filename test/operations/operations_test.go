// Package operations runs what docs/operations.md tells an operator to type.
package operations

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/test/servers"
)

// TestMain also stands in for programs that the page uses and that a machine need not
// have, when it is called by their names.
func TestMain(m *testing.M) {
	standIns := map[string]func([]string) error{"curl": curl, "age-keygen": ageKeygen}
	if run := standIns[filepath.Base(os.Args[0])]; run != nil {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pact-operations-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	return m.Run()
}

// The commands that lead from nothing to the first token do, on one host: embedded.
func TestEmbedded(t *testing.T) {
	out := walk(t, "embedded")
	if tokens := tokensIn(out); len(tokens) != 1 {
		t.Errorf("%d tokens, want one:\n%s", len(tokens), out)
	}
	if !regexp.MustCompile(`: \d\d passed, in `).MatchString(out) {
		t.Errorf("the probe did not pass:\n%s", out)
	}
}

// And as a fleet on a real Vault and a real Redis, which is stopped and goes on.
func TestFleet(t *testing.T) {
	out := walk(t, "fleet")
	tokens := tokensIn(out)
	if len(tokens) != 2 || tokens[0].KeyID != tokens[1].KeyID {
		t.Errorf("%d tokens, want one of each replica by one key:\n%s", len(tokens), out)
	}
	if n := strings.Count(out, `{"error":"disabled"}`); n != 1 {
		t.Errorf("%d requests were refused, want the one after the kill:\n%s", n, out)
	}
}

// Every file of the repository that the page names is there.
func TestFiles(t *testing.T) {
	page, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?:\.\./|[^\w/])(deploy/[\w./-]*\w)`).FindAllStringSubmatch(string(page), -1)
	if len(named) < 5 {
		t.Errorf("only %d were found", len(named))
	}
	for _, m := range named {
		if _, err := os.Stat(filepath.Join("../..", filepath.FromSlash(m[1]))); err != nil {
			t.Error(err)
		}
	}
}

const page = "../../docs/operations.md"

// tokensIn are the tokens in answers to sign.
func tokensIn(out string) (tokens []*jwks.Token) {
	for _, m := range regexp.MustCompile(`"token":"([^"]+)"`).FindAllStringSubmatch(out, -1) {
		if tok, err := jwks.ParseCompact(m[1], jose.ES256); err == nil {
			tokens = append(tokens, tok)
		}
	}
	return tokens
}

// walk runs a walkthrough of the page from its first command to the last, and returns
// what it printed.
func walk(t *testing.T, name string) string {
	t.Helper()
	return runScript(t, walkthrough(t, name))
}

// walkthrough is one of the page's.
func walkthrough(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)<!-- run: ([a-z]+) -->\n```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if block[1] == name {
			script.WriteString(block[2])
		}
	}
	if strings.Count(script.String(), "\n") < 5 {
		t.Fatalf("the page has no walkthrough %s", name)
	}
	return script.String()
}

// runScript runs commands and returns what they printed. It ends the programs that they
// left running.
func runScript(t *testing.T, script string) string {
	t.Helper()
	commands := elsewhere(t, script)

	if err := programs(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+commands)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it ends what it started
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		logs, _ := filepath.Glob(filepath.Join(home, "*.log"))
		for _, file := range logs {
			if b, err := os.ReadFile(file); err == nil {
				fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(file), b[max(0, len(b)-3000):])
			}
		}
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// patience is how long a walkthrough may take before it is taken for one that waits
// for what never comes.
const patience = 5 * time.Minute

// prelude ends a walkthrough at the first command that fails, and what it started with
// it. The programs are installed beforehand.
const prelude = `set -euo pipefail
trap 'kill $(jobs -p); wait' EXIT
go() { [ "$*" = "install ./cmd/signer ./cmd/pactctl" ]; }
`

// elsewhere gives each port of a script a free one in its place: others run on this
// machine too.
func elsewhere(t *testing.T, script string) string {
	t.Helper()
	rooms := map[string]int{"8200": 1} // Vault in memory also listens on the port above
	free := map[string]string{}
	replaced := regexp.MustCompile(`(127\.0\.0\.1:|--port |-p )(\d{4})\b`).ReplaceAllStringFunc(script, func(s string) string {
		port := s[len(s)-4:]
		if free[port] == "" {
			free[port] = strconv.Itoa(servers.FreePort(t, rooms[port]))
		}
		return s[:len(s)-4] + free[port]
	})
	// What listens by default is told where to.
	var flags strings.Builder
	for _, l := range []struct{ flag, port string }{{"public", "8787"}, {"grpc", "8788"}, {"admin", "8789"}, {"ops", "8790"}} {
		if free[l.port] == "" {
			free[l.port] = strconv.Itoa(servers.FreePort(t, 0))
		}
		fmt.Fprintf(&flags, "export PACT_SIGNER_LISTENERS_%s_ADDRESS=127.0.0.1:%s\n", strings.ToUpper(l.flag), free[l.port])
	}
	if !strings.Contains(script, "pactctl context") { // which finds it at its default address
		fmt.Fprintf(&flags, "export PACT_SERVER=http://127.0.0.1:%s PACT_TOKEN_FILE=~/.local/state/pact-signer/admin-token\n", free["8789"])
	}
	if address := free["8200"]; address != "" {
		fmt.Fprintf(&flags, "export VAULT_DEV_LISTEN_ADDRESS=127.0.0.1:%s\n", address)
	}
	return flags.String() + replaced
}

// bin is a folder for the programs that the page uses, made by TestMain.
var bin string

// programs puts them there, once.
var programs = sync.OnceValue(func() error {
	install := exec.Command("go", "install", "./cmd/signer", "./cmd/pactctl")
	install.Dir, install.Env = "../..", append(os.Environ(), "GOBIN="+bin)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	vault, err := servers.Find("vault")
	if err != nil {
		return err
	}
	for name, program := range map[string]string{"curl": self, "age-keygen": self, "vault": vault} {
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
})

// curl is as much of it as the page uses.
func curl(args []string) error {
	method, url, failing := http.MethodGet, "", false
	var body io.Reader
	header := http.Header{}
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-s" || a == "-sf":
			failing = a == "-sf"
		case (a == "-H" || a == "-d") && i+1 < len(args):
			i++
			if a == "-d" {
				method, body = http.MethodPost, strings.NewReader(args[i])
				continue
			}
			name, value, ok := strings.Cut(args[i], ": ")
			if !ok {
				return fmt.Errorf("curl: %s is no header", args[i])
			}
			header.Set(name, value)
		case strings.HasPrefix(a, "http://") && url == "":
			url = a
		default:
			return fmt.Errorf("curl: what is %s?", a)
		}
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if failing && resp.StatusCode >= 400 {
		return fmt.Errorf("curl: %s", resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// ageKeygen makes an identity (-o FILE), or tells the recipient of one (-y FILE).
func ageKeygen(args []string) error {
	if len(args) != 2 || args[0] != "-o" && args[0] != "-y" {
		return errors.New("age-keygen: want -o FILE or -y FILE")
	}
	if args[0] == "-o" {
		identity, err := age.GenerateX25519Identity()
		if err != nil {
			return err
		}
		return os.WriteFile(args[1], []byte(identity.String()+"\n"), 0o600)
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	identity, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	fmt.Println(identity.Recipient())
	return nil
}
