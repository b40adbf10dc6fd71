package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openPTY opens a pseudo-terminal: what a person has, and what a program has.
func openPTY(t *testing.T, columns, lines uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// sitting is one command on a terminal, and the person in front of it.
type sitting struct {
	columns, lines uint16
	env            []string
	ahead          string            // typed before it asks anything
	answers        []string          // to its questions, in turn
	onLink         func(link string) // what the person does with a sign-in link
	elsewhere      func()            // what happens elsewhere at a question that they do not answer
	pipe           bool              // stdout is a pipe instead
	dir            string            // where it runs; empty: here
}

var (
	openLine = regexp.MustCompile(`(?m)^Open  (\S+)\r?$`)
	question = regexp.MustCompile(`\[y/N\] $`)
)

// run runs pactctl and returns its exit code, what the terminal was sent, and what the
// pipe was.
func (s sitting) run(ctx context.Context, t *testing.T, args ...string) (code int, terminal, piped string) {
	t.Helper()
	person, program := openPTY(t, s.columns, s.lines)
	cmd := exec.CommandContext(ctx, "pactctl", args...)
	var pipe bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.env, program, program, program
	if s.pipe {
		cmd.Stdout = &pipe
	}
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close()
	if _, err := person.WriteString(s.ahead); err != nil {
		t.Error(err)
	}
	var got bytes.Buffer
	linked, asked, piece := false, 0, make([]byte, 4096)
	for { // until the program closed its end, which is an error on this one
		n, err := person.Read(piece)
		if err != nil {
			break
		}
		got.Write(piece[:n])
		if m := openLine.FindSubmatch(got.Bytes()); m != nil && !linked && s.onLink != nil {
			linked = true
			go s.onLink(string(m[1]))
		}
		if question.Match(got.Bytes()) {
			if asked == len(s.answers) && s.elsewhere != nil {
				s.elsewhere()
				s.elsewhere = nil
				continue
			}
			if asked == len(s.answers) {
				t.Errorf("pactctl %v asks once more than expected:\n%s", args, got.Bytes())
				person.Close()
				break
			}
			fmt.Fprintf(person, "%s\n", s.answers[asked])
			asked++
		}
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), got.String(), pipe.String()
}
