package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "pactctl" { // the tests, not a command of theirs: the developer's settings are not theirs
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PACT_") && name != "PACT_VECTORS" {
				os.Unsetenv(name)
			}
		}
	}
	os.Setenv("PACT_KEYRING", "off") // no test writes into the developer's keyring
	testscript.Main(m, map[string]func(){"pactctl": main})
}

// TestScript runs testdata/script. Commands of its own:
//
//	signer                   start an embedded signer; sets SERVER, TOKEN_FILE and ISSUER
//	exits CODE pactctl …     run a command that must end with that exit code
//	json PATH NAME           set NAME to a member of the JSON on the last stdout, as in a.0.b
//	provider NAME STATUS     start a Provider that answers registrations so; sets NAME to its URL
//	mode FILE PERM           a file's permissions are PERM, in octal
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector waits a second at every exit
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("PACT_KEYRING", "off")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"signer":   startSigner,
			"exits":    exits,
			"json":     jsonMember,
			"provider": startProvider,
			"mode":     fileMode,
		},
		RequireUniqueNames: true,
	})
}

func startSigner(ts *testscript.TestScript, _ bool, _ []string) {
	cfg := config.Default()
	cfg.Data = ts.MkAbs("signer-data")
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	s, err := server.New(cfg, server.Options{Version: "test"})
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(s.Start(ctx))
	ts.Defer(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // of the end: a script may take longer
		defer cancel()
		ts.Check(s.Shutdown(ctx))
	})
	select {
	case <-s.Ready():
	case <-ctx.Done():
		ts.Fatalf("the signer did not become ready")
	}
	ts.Setenv("SERVER", s.Info().Admin)
	ts.Setenv("TOKEN_FILE", s.Info().AdminTokenFile)
	ts.Setenv("ISSUER", s.Info().Issuers[0])
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command …")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func jsonMember(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json PATH NAME")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for part := range strings.SplitSeq(args[0], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			n, err := strconv.Atoi(part)
			ts.Check(err)
			if n >= len(x) {
				ts.Fatalf("there are only %d", len(x))
			}
			v = x[n]
		}
	}
	if v == nil {
		ts.Fatalf("no member %s", args[0])
	}
	ts.Setenv(args[1], fmt.Sprint(v))
}

func startProvider(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: provider NAME STATUS")
	}
	code, err := strconv.Atoi(args[1])
	ts.Check(err)
	issuer := ts.Getenv("ISSUER")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"platform":{"id":"p1","name":"my-agents","issuer":%q,"jwksUri":%q,"enabled":true}}`, issuer, issuer+"/.well-known/jwks.json")
	}))
	ts.Defer(s.Close)
	ts.Setenv(args[0], s.URL)
}

func fileMode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	want, err := strconv.ParseUint(args[1], 8, 32)
	ts.Check(err)
	if info.Mode().Perm() != fs.FileMode(want) {
		ts.Fatalf("%s has mode %o, want %s", args[0], info.Mode().Perm(), args[1])
	}
}
