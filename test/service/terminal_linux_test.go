package service

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// terminal is one that runs a command of pactctl, and the person in front of it.
type terminal struct {
	w      *world
	cmd    *exec.Cmd
	person *os.File
	seen   *output
	read   chan struct{} // closed when the program has closed its end
	asked  int
}

var (
	linkLine = regexp.MustCompile(`(?m)^Open  (\S+)\r?$`)
	question = regexp.MustCompile(`\[y/N\] `)
)

// terminal starts a command on a terminal of its own.
func (w *world) terminal(args ...string) *terminal {
	w.t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		w.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		w.t.Fatal(err)
	}
	end, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(end.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 80}); err != nil {
		w.t.Fatal(err)
	}
	t := &terminal{w: w, person: person, seen: &output{}, read: make(chan struct{})}
	t.cmd = program(context.Background(), w.home, "pactctl", args...)
	t.cmd.Env = append(t.cmd.Env, "PACT_PROFILE="+w.profile)
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = end, end, end
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = t.cmd.Start()
	end.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(t.read)
		piece := make([]byte, 4096)
		for { // until the program closed its end, which is an error on this one
			n, err := person.Read(piece)
			if err != nil {
				return
			}
			_, _ = t.seen.Write(piece[:n])
		}
	}()
	w.t.Cleanup(func() {
		_ = t.cmd.Process.Kill() // it may have ended
		person.Close()
		<-t.read
		if w.t.Failed() {
			w.t.Logf("the terminal of %v:\n%s", args, t.seen)
		}
	})
	return t
}

// shows waits until the terminal shows something.
func (t *terminal) shows(what string, ok func(seen string) bool) {
	t.w.t.Helper()
	t.w.eventually("the terminal shows "+what, func() bool {
		over := false
		select {
		case <-t.read:
			over = true
		default:
		}
		found := ok(t.seen.String())
		if over && !found {
			t.w.t.Fatalf("the command ended before the terminal showed %s", what)
		}
		return found
	})
}

// link waits for a sign-in link.
func (t *terminal) link() (link string) {
	t.w.t.Helper()
	t.shows("a link", func(seen string) bool {
		m := linkLine.FindStringSubmatch(seen)
		if m != nil {
			link = m[1]
		}
		return m != nil
	})
	return link
}

// question waits until the command asks something that it had not asked before.
func (t *terminal) question() {
	t.w.t.Helper()
	t.asked++
	t.shows("a question", func(seen string) bool { return len(question.FindAllString(seen, -1)) >= t.asked })
}

func (t *terminal) types(text string) {
	t.w.t.Helper()
	if _, err := t.person.WriteString(text); err != nil {
		t.w.t.Fatal(err)
	}
}

// hangUp closes the terminal, as closing its window does.
func (t *terminal) hangUp() {
	t.person.Close()
	_ = t.cmd.Wait() // a signal ends it
}

// ends waits for the command's end.
func (t *terminal) ends() (code int) {
	t.w.t.Helper()
	_ = t.cmd.Wait() // the code is in ProcessState
	<-t.read
	return t.cmd.ProcessState.ExitCode()
}

// DA-17: closing the terminal ends no sign-in. It is granted though nobody waits.
func TestClosedTerminal(t *testing.T) {
	t.Parallel()
	t.Run("authorize", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.serve()
		o := &office{world: w, serving: s, t: t, owner: s.owner()}
		term := w.terminal("authorize", w.card, "--scope", mayRead, "--remote", "unix:"+s.Socket)
		link := term.link()
		term.hangUp()
		z := one[*agentv1.ListAuthorizationsResponse](t, o.owner, "ListAuthorizations", &agentv1.ListAuthorizationsRequest{}).Authorizations
		if len(z) != 1 || z[0].State != "pending" {
			t.Fatalf("the sign-in: %v", z)
		}
		if err := w.signIn(link); err != nil {
			t.Fatal(err)
		}
		o.eventually("the sign-in is granted", func() bool { return o.getAuthorization(z[0].Id).State == "granted" })
		if r := o.ask(); r.GetEvidence().GetVerdict() != "verified" {
			t.Errorf("an inspection by it: %v", r)
		}
	})
	t.Run("send", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.serve()
		o := &office{world: w, serving: s, t: t, owner: s.owner()}
		text := o.text("Cancel booking T%d")
		term := w.terminal("send", "--business", w.card, "--message", text, "--effect", "change", "--scope", mayRead, "--remote", "unix:"+s.Socket)
		term.question()
		term.types("y\n")
		link := term.link()
		term.hangUp()
		z := one[*agentv1.ListAuthorizationsResponse](t, o.owner, "ListAuthorizations", &agentv1.ListAuthorizationsRequest{}).Authorizations
		if len(z) != 1 || z[0].State != "pending" {
			t.Fatalf("the sign-in: %v", z)
		}
		if err := w.signIn(link); err != nil {
			t.Fatal(err)
		}
		o.eventually("the sign-in is granted", func() bool { return o.getAuthorization(z[0].Id).State == "granted" })
		all := one[*agentv1.ListApprovalsResponse](t, o.owner, "ListApprovals", &agentv1.ListApprovalsRequest{All: true}).Approvals
		if len(all) != 1 {
			t.Fatalf("approvals: %v", all)
		}
		o.eventually("the approval comes to an end", func() bool {
			switch o.getApproval(all[0].Id).State {
			case "pending", "approved":
				return false
			}
			return true
		})
		if v, n := o.getApproval(all[0].Id), w.executed(text); v.State == "sent" && n != 1 || v.State != "sent" && n != 0 {
			t.Errorf("the approval is %s, and the business carried it out %d times", v.State, n)
		}
	})
}

// AP-1: what one terminal asks for is approved, or denied, in another one, and the
// first goes on by itself.
func TestTwoTerminals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allows(mayRead)
	s := w.serve()
	o := &office{world: w, serving: s, t: t, owner: s.owner()}
	asks := func(text string) (*terminal, string) {
		t.Helper()
		term := w.terminal("send", "--business", w.card, "--message", text, "--effect", "change", "--scope", mayRead)
		term.question()
		list := w.does(0, "approvals", "list")["approvals"].([]any)
		if len(list) != 1 || list[0].(map[string]any)["message"] != text {
			t.Fatalf("approvals: %v", list)
		}
		return term, list[0].(map[string]any)["id"].(string)
	}

	text := o.text("Cancel booking T%d")
	first, id := asks(text)
	second := w.terminal("approvals", "approve", id)
	second.question()
	if seen := second.seen.String(); !strings.Contains(seen, text) || !strings.Contains(seen, w.ready.Provider) {
		t.Errorf("what is approved is not shown:\n%s", seen)
	}
	second.types("y\n")
	if code := second.ends(); code != 0 {
		t.Errorf("approve: exit %d", code)
	}
	if code := first.ends(); code != 0 || !strings.Contains(first.seen.String(), "Done: "+text) {
		t.Errorf("send: exit %d", code)
	}
	w.once(text)

	text = o.text("Cancel booking T%d")
	first, id = asks(text)
	if code, stdout, stderr := w.pactctl("approvals", "deny", id); code != 0 {
		t.Errorf("deny: exit %d\n%s%s", code, stdout, stderr)
	}
	if code := first.ends(); code != 1 || !strings.Contains(first.seen.String(), "local_approval_denied") {
		t.Errorf("send: exit %d", code)
	}
	if n := w.executed(text); n != 0 {
		t.Errorf("what was denied was carried out %d times", n)
	}

	// Answered where it was asked, it is over elsewhere.
	text = o.text("Cancel booking T%d")
	first, id = asks(text)
	first.types("y\n")
	if code := first.ends(); code != 0 {
		t.Errorf("send: exit %d", code)
	}
	if code, stdout, stderr := w.pactctl("approvals", "approve", id, "--yes"); code == 0 {
		t.Errorf("approved twice: %s%s", stdout, stderr)
	}
	w.once(text)
}
