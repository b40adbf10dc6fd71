//go:build unix

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// shell is a brand that a shell script answers for, in a directory of its own.
func shell(t *testing.T, script, timeout string) (Brand, string, *logged) {
	t.Helper()
	dir := write(t, map[string]string{"answer": "#!/bin/sh\n" + script})
	if err := os.Chmod(filepath.Join(dir, "answer"), 0o700); err != nil {
		t.Fatal(err)
	}
	log := &logged{}
	config := `{"brands": [{"id": "kestrel", "name": "K", "description": "K", "scopes": {"a": "A", "b": "B"},
		"command": {"argv": ["./answer", "one two", "", "$HOME;x"], "timeout": "` + timeout + `"}}]}`
	c, err := parseConfig("sandbox.json", dir, []byte(config), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Brands[0].close)
	return c.Brands[0], dir, log
}

// bounded ends a test that would else never end.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A command gets the turn, its arguments as they are and little of the environment,
// and its answer is the reply.
func TestCommandAnswers(t *testing.T) {
	t.Setenv("PACT_TEST_SECRET", "hunter2")
	b, dir, log := shell(t, `
cat > turn
env > environment
pwd > where
printf '%s\n' "$@" > arguments
echo "I was here" >&2
echo '{"text": "yes", "scopesUsed": ["a"], "memory": [1]}'
`, "5m")
	turn := Turn{
		Issuer: "https://pa.example", Subject: "s-1", ContextID: "c-1", Text: "Hello \"you\"\n", User: "u-1", Scopes: []string{"a"},
		At: testStart, Memory: jsontext.Value(`{"n":1}`),
	}
	r, err := b.Respond(t.Context(), turn)
	if err != nil || r.Text != "yes" || len(r.Used) != 1 || string(r.Memory) != "[1]" {
		t.Fatalf("%+v, %v", r, err)
	}
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	want := `{"brand":"kestrel","issuer":"https://pa.example","subject":"s-1","contextId":"c-1","text":"Hello \"you\"\n","user":"u-1","scopes":["a"],"at":"2026-11-29T14:58:20Z","memory":{"n":1}}` + "\n"
	if got := read("turn"); got != want {
		t.Errorf("it got %s, want %s", got, want)
	}
	if got := read("arguments"); got != "one two\n\n$HOME;x\n" {
		t.Errorf("arguments %q", got)
	}
	if real, err := filepath.EvalSymlinks(dir); err != nil || strings.TrimSpace(read("where")) != real {
		t.Errorf("it ran in %s, %v", read("where"), err)
	}
	if env := read("environment"); strings.Contains(env, "hunter2") || !strings.Contains(env, "PATH=") {
		t.Errorf("environment %s", env)
	}
	if !strings.Contains(log.String(), "I was here") || !strings.Contains(log.String(), "brand=kestrel") {
		t.Errorf("log: %s", log)
	}
}

// What is not a good answer is an error that says why, and a caller sees INTERNAL.
func TestCommandFailures(t *testing.T) {
	for name, tc := range map[string]struct{ script, timeout, why string }{
		"status":        {`echo '{"text": "a"}'; echo no luck >&2; exit 3`, "5m", "exit status 3"},
		"signal":        {`kill -9 $$`, "5m", "signal: killed"},
		"nothing":       {``, "5m", "not a JSON object"},
		"not JSON":      {`echo hello`, "5m", "not a JSON object"},
		"unknown":       {`echo '{"text": "a", "reply": 1}'`, "5m", `"reply"`},
		"too much":      {`exec yes 0123456789`, "5m", "answered more than 524288 bytes"},
		"takes forever": {`while :; do sleep 1; done`, "1s", "its time was up"},
		"ignores all":   {`trap '' TERM INT HUP PIPE; while :; do sleep 1; done`, "1s", "its time was up"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _, log := shell(t, tc.script, tc.timeout)
			if _, err := b.Respond(bounded(t), Turn{At: testStart}); err == nil || !strings.Contains(err.Error(), tc.why) || !strings.Contains(err.Error(), "answer") {
				t.Errorf("%v, want %s", err, tc.why)
			}
			if name == "status" && !strings.Contains(log.String(), "no luck") {
				t.Errorf("log: %s", log)
			}
		})
	}
	b, _, log := shell(t, `echo '{"text": "a", "scopesUsed": ["a"]}'; yes | head -c 100000 >&2`, "5m")
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{b} })
	w.wantError(w.say("kestrel", "m-1", "", "Hello", ""), 500, "INTERNAL", "Internal error") // it used what nobody allowed
	if got := log.String(); len(got) > 3*maxCommandStderr || !strings.Contains(got, "cut=true") {
		t.Errorf("%d bytes logged", len(got))
	}
}

// Whatever a command started ends with it, at its time limit, when it is done and
// when the sandbox closes.
func TestCommandLeavesNothingBehind(t *testing.T) {
	// A descendant holds the pipe open as long as it lives, its own stdout or not.
	const child = `(exec 3>alive; echo up >&3; : >ready; exec sleep 1000) >/dev/null 2>&1 </dev/null &
until [ -e ready ]; do sleep 0.01; done
`
	for name, tc := range map[string]struct {
		script, timeout string
		closes          bool
		want            error
	}{
		"time limit": {child + "wait", "1s", false, errCommandTime},
		"done":       {child + `echo '{"text": "a"}'`, "1m", false, nil},
		"holds stdout": {`(exec 3>alive; echo up >&3; : >ready; exec sleep 1000) &
until [ -e ready ]; do sleep 0.01; done
echo '{"text": "a"}'`, "1m", false, nil},
		"closed": {child + "wait", "1m", true, errCommandClosed},
	} {
		t.Run(name, func(t *testing.T) {
			b, dir, _ := shell(t, tc.script, tc.timeout)
			fifo := filepath.Join(dir, "alive")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			held, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that opening it does not wait
			if err != nil {
				t.Fatal(err)
			}
			alive, err := os.Open(fifo)
			if err != nil {
				t.Fatal(err)
			}
			up, ended := make(chan struct{}), make(chan error, 1)
			go func() { // ends once the descendant has ended
				_, err := alive.Read(make([]byte, 3))
				close(up)
				if errors.Is(err, io.EOF) { // ended before it was up
					err = nil
				}
				_, copied := io.Copy(io.Discard, alive)
				ended <- errors.Join(err, copied, alive.Close())
			}()
			if tc.closes {
				go func() {
					<-up
					b.close()
				}()
			}
			_, err = b.Respond(bounded(t), Turn{At: testStart})
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if err := held.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-bounded(t).Done():
				t.Error("the descendant lives on")
			}
		})
	}
}

// A command's memory of a user comes back with the next turn.
func TestCommandRemembers(t *testing.T) {
	b, _, _ := shell(t, `
read -r turn
case $turn in
*'"memory":{"n":2}'*) echo '{"text": "third"}' ;;
*'"memory":{"n":1}'*) echo '{"text": "second", "memory": {"n": 2}}' ;;
*'"memory"'*) echo '{"text": "something else"}' ;;
*) echo '{"text": "first", "memory": {"n": 1}}' ;;
esac
`, "5m")
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{b} })
	token := w.allow("kestrel", "a")
	for i, want := range []string{"first", "second", "third", "third"} {
		if _, said := w.reply(w.say("kestrel", "m-"+string(rune('1'+i)), "", "Hello", token)); said != want {
			t.Errorf("turn %d: %q, want %q", i, said, want)
		}
	}
}

// So many run at once; the next waits for one of them, within its own time.
func TestCommandsAtOnce(t *testing.T) {
	at := place{&document{}, &yaml.Node{}, ""}
	c := (&fileCommand{At: at, Argv: []string{"cat"}, Timeout: time.Second}).command("kestrel", t.TempDir(), slog.New(slog.DiscardHandler))
	for range maxCommandsAtOnce {
		c.running <- struct{}{}
	}
	if _, err := c.run(bounded(t), nil); !errors.Is(err, errCommandTime) {
		t.Errorf("%v, want %v", err, errCommandTime)
	}
	<-c.running
	c.timeout = maxCommandTimeout
	if out, err := c.run(bounded(t), []byte("hi")); err != nil || string(out) != "hi\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestCommandTurnOfNobody(t *testing.T) {
	body, err := json.Marshal(commandTurn{Brand: "a"})
	if err != nil || strings.Contains(string(body), "user") || strings.Contains(string(body), "memory") || !strings.Contains(string(body), `"scopes":[]`) {
		t.Errorf("%s, %v", body, err)
	}
}
