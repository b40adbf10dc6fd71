package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// testApp is an app whose person answers with input.
func testApp(input string, person bool) (a *app, stdout, stderr *bytes.Buffer) {
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return &app{
		stdin: strings.NewReader(input), stdout: stdout, stderr: stderr, person: person,
		now: func() time.Time { return testNow }, zone: time.UTC, output: "text",
	}, stdout, stderr
}

func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		input       string
		person, yes bool
		want        int
	}{
		{"y\n", true, false, 0},
		{"YES\n", true, false, 0},
		{"y", true, false, 0},
		{"n\n", true, false, exitFailed},
		{"\n", true, false, exitFailed},
		{"yep\n", true, false, exitFailed},
		{"", true, false, exitFailed},
		{"y\n", false, false, exitAct},
		{"", false, true, 0},
		{"n\n", true, true, 0},
	} {
		a, stdout, stderr := testApp(c.input, c.person)
		a.yes = c.yes
		err := a.confirm(context.Background(), "Stop everything?")
		if got := exitCode(context.Background(), err); got != c.want {
			t.Errorf("%q, person %v, --yes %v: got %d, %v", c.input, c.person, c.yes, got, err)
		}
		if asked := strings.Contains(stderr.String(), "Stop everything? [y/N] "); asked != (c.person && !c.yes) {
			t.Errorf("%q: asked %v", c.input, asked)
		}
		if stdout.Len() > 0 {
			t.Errorf("%q: stdout has %q", c.input, stdout)
		}
	}
}

// AP-1: what was typed before a question answers none, and all questions read one input.
func TestConfirmAnew(t *testing.T) {
	a, _, stderr := testApp("y\ny\n", true)
	if err := a.confirm(t.Context(), "Stop everything?"); err != nil {
		t.Error(err)
	}
	if err := a.confirm(t.Context(), "Stop it again?"); !errors.Is(err, errDeclined) {
		t.Errorf("by what was typed before: %v", err)
	}
	if text := stderr.String(); !strings.HasSuffix(text, "Stop it again? [y/N] \n") {
		t.Errorf("asked %q", text)
	}
}

// An interrupt while a question stands ends the program with 130.
func TestConfirmInterrupted(t *testing.T) {
	r, _ := io.Pipe()
	defer r.Close()
	a, _, _ := testApp("", true)
	a.stdin = r
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := a.confirm(ctx, "Stop everything?")
	if got := exitCode(ctx, err); got != exitInterrupted {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestExitCodes(t *testing.T) {
	ctx := context.Background()
	for want, err := range map[int]error{
		0: nil, exitFailed: errors.New("x"), exitUsage: usagef("x"), exitAct: actf("x"),
	} {
		if got := exitCode(ctx, err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}

// Errors are one line, without what would steer a terminal.
func TestErrorIsOneLine(t *testing.T) {
	if got := oneLine("a\nb\t \x1b[31mc"); got != "a b \uFFFD[31mc" {
		t.Errorf("got %q", got)
	}
}

// On a terminal a question is broken between words.
func TestConfirmLong(t *testing.T) {
	a, _, stderr := testApp("y\n", true)
	if err := a.confirm(context.Background(), "Revoke key "+testKid+" of "+longIssuer+" for good?"); err != nil {
		t.Fatal(err)
	}
	if want := "Revoke key " + testKid + " of\n" + longIssuer + " for good? [y/N] "; stderr.String() != want {
		t.Errorf("got %q, want %q", stderr, want)
	}
}

// Every command has words that fit a terminal, and an example.
func TestHelp(t *testing.T) {
	a, _, _ := testApp("", false)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" || len(cmd.Short) > 64 || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short %q", path, cmd.Short)
		}
		if !strings.Contains(cmd.Example, path) {
			t.Errorf("%s: its Example does not show it", path)
		}
		if cmd.Args == nil || cmd.RunE == nil {
			t.Errorf("%s: needs Args and RunE", path)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.UsageString()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%s: a line of its help has %d columns: %s", path, n, line)
			}
		}
		if cmd.HasParent() && !cmd.Parent().HasParent() && cmd.GroupID == "" {
			t.Errorf("%s: needs a GroupID", path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd(a))
}

// What --help prints fits a terminal too, as much of it as is ours.
func TestHelpFits(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	seen := map[string]bool{}
	for paths := [][]string{{}}; len(paths) > 0; paths = paths[1:] {
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), append(slices.Clone(paths[0]), "--help")); code != 0 || stdout.Len() == 0 {
			t.Fatalf("%v: exit %d %s", paths[0], code, stderr)
		}
		seen[strings.Join(paths[0], " ")] = true
		commands := false
		for line := range strings.Lines(stdout.String()) {
			line = strings.TrimSuffix(line, "\n")
			if n := len([]rune(line)); n > 80 && !slices.Contains(paths[0], "completion") { // whose words are cobra's
				t.Errorf("%v: a line of its help has %d columns: %s", paths[0], n, line)
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "  "), " ")
			switch {
			case line != "" && line[0] != ' ': // a heading: of groups, and of what is in none
				commands = slices.Contains([]string{"Available Commands:", "Additional Commands:", "Personal agent:", "Operate a signer:", "Tools:"}, line)
			case commands && name != "" && name != "help":
				paths = append(paths, append(slices.Clone(paths[0]), name))
			}
		}
	}
	if !seen["agent tokens create"] || !seen["completion bash"] || !seen["keys"] {
		t.Errorf("not all commands are looked at: %v", seen)
	}
}

// A secret that was typed in the wrong place is not repeated.
func TestErrorsHideSecrets(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, secret := range []string{
		"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
		"pact_cred_ABCDEFGHIJKLMNOPQRSTUVWXYZ234567abcdef",
		"pact_enroll_ABCDEFGHIJKLMNOPQRSTUVWXYZ234567abcdef",
		"pact_admin_ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
	} {
		for _, args := range [][]string{
			{secret}, {"check", secret}, {"check", "card", secret}, {"devices", secret}, {"send", "--effect=" + secret},
			{"jwks", secret}, {"context", "use", secret}, {"kill", "--for", secret},
		} {
			a, stdout, stderr := testApp("", false)
			if code := a.run(t.Context(), args); code == 0 || stderr.Len() == 0 {
				t.Errorf("%s: exit %d, %q", args[0], code, stderr)
			}
			if strings.Contains(stdout.String()+stderr.String(), secret) {
				t.Errorf("pactctl %s: the secret is repeated: %s%s", strings.Join(args[:len(args)-1], " "), stdout, stderr)
			}
		}
	}
}

// A thumbprint that begins like a flag is one all the same.
func TestThumbprintLikeAFlag(t *testing.T) {
	url, token, ca := adminServer(t, lonelyService{})
	target := []string{"--server", url, "--token-file", token, "--ca-file", ca}
	for _, first := range []string{"-o", "--", "-_", "-A"} {
		id := first + testDevice[2:]
		for _, args := range [][]string{
			append([]string{"devices", "invalidate", id, "--yes"}, target...),
			append(append([]string{"devices", "invalidate", "--reason", id, "--yes"}, target...), id),
			append(append([]string{"devices", "invalidate", "--yes"}, target...), "--", id),
		} {
			a, stdout, stderr := testApp("", false)
			if code := a.run(t.Context(), args); code != 0 || !strings.Contains(stdout.String(), "Device key "+id) {
				t.Errorf("%q: %d %s%s", args, code, stdout, stderr)
			}
		}
	}
}
