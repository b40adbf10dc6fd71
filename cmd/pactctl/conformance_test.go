package main

import (
	"context"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/pactsigner/pactsigner/conformance"
	"github.com/pactsigner/pactsigner/sandbox"
)

// startBusiness runs a sandbox with faults and returns the file of its ready line.
func startBusiness(t *testing.T, faults ...string) (ready string) {
	t.Helper()
	s, err := sandbox.New(sandbox.Config{PasswordMemory: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.SetFaults(faults...); err != nil {
		t.Fatal(err)
	}
	s.Start()
	line, err := json.Marshal(s.Ready())
	if err != nil {
		t.Fatal(err)
	}
	ready = filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(ready, line, 0o600); err != nil {
		t.Fatal(err)
	}
	return ready
}

// conform runs pactctl conformance on the real clock.
func conform(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	a, out, errs := testApp(stdin, false)
	a.now = time.Now
	code = a.run(t.Context(), append([]string{"conformance"}, args...))
	return code, out.String(), errs.String()
}

// A good business passes all of it in real time, with a line for each check.
func TestConformancePasses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "results.xml")
	code, out, errs := conform(t, "", "--ready", startBusiness(t), "--junit", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s\n%s", code, errs, out)
	}
	lines := strings.Split(out, "\n")
	at := 0
	for _, c := range conformance.Checks() {
		mark := "ok    "
		if c.Slow {
			mark = "-     "
		}
		for at < len(lines) && !strings.HasPrefix(lines[at], mark+c.ID+" ") {
			at++
		}
	}
	if at >= len(lines)-1 || !strings.Contains(out, " passed, 0 failed, 2 not run, in ") {
		t.Errorf("the checks are not told in order:\n%s", out)
	}
	for _, s := range conformance.Sections() {
		if !strings.Contains(out, s.Title+" ("+s.Name+")\n") {
			t.Errorf("no heading of %s", s.Name)
		}
	}
	for _, line := range lines {
		if len([]rune(line)) > columns {
			t.Errorf("wider than %d columns: %s", columns, line)
		}
	}
	suites := readJUnit(t, file)
	if suites.Tests != len(conformance.Checks()) || suites.Failures != 0 || suites.Skipped != 2 || len(suites.Suites) != len(conformance.Sections()) {
		t.Errorf("JUnit has %d tests, %d failures, %d skipped, %d suites", suites.Tests, suites.Failures, suites.Skipped, len(suites.Suites))
	}
}

func readJUnit(t *testing.T, file string) junit.Testsuites {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var suites junit.Testsuites
	if err := xml.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	return suites
}

// A broken one fails, and the error, the JSON and JUnit name the check.
func TestConformanceFails(t *testing.T) {
	t.Parallel()
	ready := startBusiness(t, "lax-kid", "card-name=\u202eeman")
	file := filepath.Join(t.TempDir(), "results.xml")
	code, out, errs := conform(t, "", "--ready", ready, "--only", "auth-kid", "--only", "auth-audience", "--only", "card", "-o", "json", "--junit", file)
	if code != exitFailed || errs != "pactctl: 1 check failed: auth-kid\n" {
		t.Errorf("exit code %d: %s", code, errs)
	}
	var view struct {
		OK                     bool
		Passed, Failed, NotRun int
		Checks                 []struct {
			ID, Section, Requirement, Source, Status, Detail string
			Delegated, Slow                                  bool
			Seconds                                          float64
		}
	}
	if err := json.Unmarshal([]byte(out), &view, json.MatchCaseInsensitiveNames(true), json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if view.OK || view.Failed != 1 || view.NotRun != 0 || view.Passed+1 != len(view.Checks) {
		t.Errorf("result %+v", view)
	}
	for _, c := range view.Checks {
		switch {
		case c.ID == "auth-kid" && (c.Status != "failed" || !strings.Contains(c.Detail, "a kid that is not in the JWKS: GET tasks: 200")):
			t.Errorf("auth-kid is %s: %s", c.Status, c.Detail)
		case c.ID == "" || c.Requirement == "" || c.Source == "" || c.Delegated != (c.ID == "card-delegation" || c.ID == "card-origins"):
			t.Errorf("%+v", c)
		}
	}
	suites := readJUnit(t, file)
	if suites.Failures != 1 || len(suites.Suites) != 2 {
		t.Errorf("JUnit has %d failures in %d suites", suites.Failures, len(suites.Suites))
	}
	for _, c := range suites.Suites[1].Testcases {
		if failed := c.Failure != nil; failed != (c.Name == "auth-kid") || failed && !strings.Contains(c.Failure.Data, "a kid that is not in the JWKS") {
			t.Errorf("%s: %+v", c.Name, c.Failure)
		}
	}

	code, out, errs = conform(t, "", "--ready", ready, "--only", "card-served", "--only", "auth-kid")
	if code != exitFailed || !strings.Contains(out, "FAIL  auth-kid  ") || !strings.Contains(out, "\n      a kid that is not in the JWKS: GET tasks: 200") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	if strings.Contains(out, "\u202e") {
		t.Error("what the business says steers the terminal")
	}
}

// A card alone is enough for Identity; the ready line comes on standard input, too.
func TestConformanceSources(t *testing.T) {
	t.Parallel()
	file := startBusiness(t)
	line, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var ready sandbox.Ready
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatal(err)
	}
	code, out, errs := conform(t, "", "--card", ready.Brands[1].Card, "--audience", ready.Audience, "--only", "auth-accepted", "--only", "receipt-present")
	if code != 0 || !strings.Contains(out, "not run: no card with delegation was given") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	password := ready.Login.Password + "\n"
	code, out, errs = conform(t, password, "--card", ready.Brands[0].Card, "--audience", ready.Audience,
		"--email", ready.Login.Email, "--password-file", "-", "--only", "token-response", "--only", "stepup-task",
		"--ask", "flights:rebook=Rebook my next flight")
	if code != 0 || !strings.Contains(out, "2 passed") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	if code, out, errs = conform(t, string(line), "--ready", "-", "--only", "message-closed"); code != 0 {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	// Whoever writes it may run on.
	in, writes := io.Pipe()
	defer writes.Close()
	go func() { _, _ = writes.Write(append(line, '\n')) }()
	a, stdout, stderr := testApp("", false)
	a.now, a.stdin = time.Now, in
	if code := a.run(t.Context(), []string{"conformance", "--ready", "-", "--only", "card-served"}); code != 0 {
		t.Errorf("a pipe that stays open: exit code %d: %s\n%s", code, stderr, stdout)
	}
	// What is said to a brand is said to its card at another URL too.
	for i, b := range ready.Brands {
		card := ready.Provider + "/a2a/" + b.ID + "/.well-known/agent-card.json"
		code, out, errs = conform(t, "", "--ready", file, "--card", card, "--only", "message-closed", "--only", "stepup-missing")
		if want := []string{"2 passed", "1 passed"}[i]; code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d: %s\n%s", code, errs, out)
		}
	}
	// Flags win over the ready line.
	if code, _, errs = conform(t, "", "--ready", file, "--audience", "other", "--only", "auth-accepted"); code != exitFailed {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// Where nothing could be run that is a failure, and the reason is told.
func TestConformanceNobody(t *testing.T) {
	t.Parallel()
	const nowhere = "http://127.0.0.1:9/card"
	code, out, errs := conform(t, "", "--card", nowhere, "--audience", "a")
	if code != exitFailed || errs != "pactctl: 1 check failed: card-served\n" || !strings.Contains(out, "not run: ") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	code, _, errs = conform(t, "", "--card", nowhere, "--audience", "a", "--only", "auth-kid")
	if code != exitFailed || !strings.Contains(errs, "no check could be run: ") || !strings.Contains(errs, "see card-served") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	a, _, _ := testApp("", false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := a.run(ctx, []string{"conformance", "--card", nowhere, "--audience", "a"}); code != exitInterrupted {
		t.Errorf("interrupted: exit code %d", code)
	}
}

func TestConformanceUsage(t *testing.T) {
	card := "--card http://127.0.0.1:9/card --audience a "
	for line, why := range map[string]string{
		"":                                     "--card is required",
		"--card http://127.0.0.1:9/card":       "--audience: it is missing",
		"--card brand.example --audience a":    `--card: "brand.example" is not the URL of a card`,
		card + "--card http://b --card http:/": `--card: "http:/" is not the URL`,
		card + "--only nothing":                `--only: there is no check or section "nothing"; --list shows them`,
		card + "--only auth-kit":               `"auth-kit"; did you mean auth-kid?`,
		"--list --only auth-kit":               `"auth-kit"; did you mean auth-kid?`,
		"--ready nowhere":                      "--ready: open nowhere: no such file",
		card + "--timeout 0s":                  "--timeout: 0s is not positive",
		card + "--issuer-listen :9 --issuer-url https://a.test/": `--issuer-url: "https://a.test/" is not an origin`,
		card + "--issuer-url https://a.test":                     "--issuer-url is given 1 times and --issuer-listen 0 times",
		card + "--issuer-listen 8080":                            "--issuer-listen: ",
		card + "--issuer-listen :0":                              "--issuer-url: it is missing",
		card + "--ask x":                                         `--ask "x" is not SCOPE=TEXT`,
		card + "--email a@b.test":                                "--email needs --password-file",
		card + "--password x":                                    "a password needs --email",
		card + "--password x --password-file y --email a":        "--password and --password-file cannot both be given",
		"--ready - --password-file - --email a":                  "only one of",
		card + "--issuer-url a --issuer-url b --issuer-url c":    "--issuer-url is given 3 times",
		card + "extra":                                           `unknown command "extra"`,
	} {
		if code, _, errs := conform(t, "", strings.Fields(line)...); code != exitUsage || !strings.Contains(errs, why) {
			t.Errorf("%s: exit code %d: %s; want %s", line, code, errs, why)
		}
	}
	for line, why := range map[string]string{
		"--ready -":                                      "--ready: this is not the ready line",
		card + "--email a --password-file -":             "there is no password in it",
		card + "--junit " + t.TempDir() + "/no/file.xml": "--junit: ",
	} {
		if code, _, errs := conform(t, "\n", strings.Fields(line)...); code != exitFailed || !strings.Contains(errs, why) {
			t.Errorf("%s: exit code %d: %s; want %s", line, code, errs, why)
		}
	}
}

// A sandbox that just starts has its ready line a little later. One that is not there
// leaves the file empty.
func TestConformanceWaits(t *testing.T) {
	t.Parallel()
	line, err := os.ReadFile(startBusiness(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ready")
	written := make(chan error, 1)
	a, out, errs := testApp("", false)
	a.now = time.Now
	s := &suite{app: a, ready: file, readyWait: time.Minute}
	go func() { // first nothing, then a part, then all of it
		err := os.WriteFile(file, line[:len(line)/2], 0o600)
		if err == nil {
			err = os.WriteFile(file, append(line, '\n'), 0o600)
		}
		written <- err
	}()
	got, err := s.readyLine(t.Context())
	if err != nil || got != string(line) || <-written != nil {
		t.Errorf("%v: %s\n%s%s", err, got, out, errs)
	}
	empty := filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ready, s.readyWait = empty, 0
	if _, err := s.readyLine(t.Context()); err == nil || !strings.Contains(err.Error(), "is empty: is the sandbox running?") {
		t.Errorf("%v", err)
	}
}

// A brand has delegation because its card says so, not because there is a message that
// needs it; what could not be checked is told at the end.
func TestConformanceNoAsks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(startBusiness(t))
	if err != nil {
		t.Fatal(err)
	}
	var ready map[string]any
	if err := json.Unmarshal(text, &ready); err != nil {
		t.Fatal(err)
	}
	for _, b := range ready["brands"].([]any) {
		delete(b.(map[string]any), "asks")
	}
	line, err := json.Marshal(ready)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := conform(t, string(line), "--ready", "-", "--only", "token-response", "--only", "route-tasks", "--only", "message-closed")
	if code != 0 || !strings.Contains(out, "3 passed, 0 failed, 0 not run") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	code, out, errs = conform(t, string(text), "--ready", "-", "--only", "card-served", "--only", "stepup-task", "--ask", "no:such=Hello")
	if code != exitUsage || !strings.Contains(errs, `--ask: no card has the scope "no:such"`) {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	// One message of one's own leaves those of the ready line.
	code, out, errs = conform(t, string(text), "--ready", "-", "--only", "stepup-missing", "--ask", "flights:cancel=Please cancel my next flight")
	if code != 0 || !strings.Contains(out, "1 passed") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
}

// The list tells every check.
func TestConformanceList(t *testing.T) {
	code, out, errs := conform(t, "", "--list")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, c := range conformance.Checks() {
		if !strings.Contains(out, "\n  "+c.ID+" ") {
			t.Errorf("%s is not listed", c.ID)
		}
	}
	if code, out, errs = conform(t, "", "--list", "--only", "auth-kid"); code != 0 || !strings.Contains(out, "auth-kid") || strings.Contains(out, "card-served") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	code, out, errs = conform(t, "", "--list", "-o", "json")
	var checks []conformance.Check
	if err := json.Unmarshal([]byte(out), &checks); err != nil || code != 0 || len(checks) != len(conformance.Checks()) {
		t.Errorf("exit code %d: %v: %s", code, err, errs)
	}
}

// How results read.
func TestConformanceText(t *testing.T) {
	a, stdout, _ := testApp("", false)
	l := &resultPrinter{p: a.printer(stdout)}
	results := []conformance.Result{
		{Check: conformance.Check{ID: "card-served", Section: "card", Requirement: "a GET by anybody is 200 with one JSON object"}, Status: conformance.Passed, Detail: "Larkline Air is checked for Delegated\nMarrow Books is checked for Identity"},
		{Check: conformance.Check{ID: "auth-kid", Section: "identity", Requirement: "a kid that is not in the JWKS, or none: 401"}, Status: conformance.Failed, Detail: "a kid that is not in the JWKS: GET tasks: 200 with 59 bytes of application/a2a+json: must be 401\nno kid: GET tasks: 200 with 59 bytes of application/a2a+json: must be 401"},
		{Check: conformance.Check{ID: "message-closed", Section: "messages", Requirement: "a closed context: UNSUPPORTED_OPERATION"}, Status: conformance.NotRun, Detail: "it needs a message that ends a conversation"},
		{Check: conformance.Check{ID: "receipt-present", Section: "receipts", Requirement: "every reply under a delegation token has one"}, Status: conformance.NotRun, Detail: "no card with delegation was given"},
		{Check: conformance.Check{ID: "receipt-form", Section: "receipts", Requirement: "it is jws and claims, with every member"}, Status: conformance.NotRun, Detail: "no card with delegation was given"},
	}
	for _, r := range results {
		l.result(r)
	}
	l.summary(tallyOf(results), 12345*time.Millisecond)
	golden(t, "conformance.txt", stdout.Bytes())
}
