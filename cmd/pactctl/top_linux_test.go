package main

import (
	"bytes"
	"context"
	"fmt"
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
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/test/servers"
)

// emulator is a screen that is drawn on by control sequences.
type emulator struct {
	mu      sync.Mutex
	cells   [][]rune
	x, y    int
	top     int // of the part that scrolls
	bottom  int
	last    rune
	rest    []byte // of a sequence that has not come whole
	unknown map[string]bool
	all     bytes.Buffer
}

var (
	controlSequence = regexp.MustCompile(`^\x1b\[([<=>?]?)([0-9;:]*)([ $]?)([@-~])`)
	otherSequence   = regexp.MustCompile(`^\x1b(?:\].*?(?:\x07|\x1b\\)|[P_^].*?\x1b\\|[()*+].|[=>78cDEM])`)
)

func newEmulator(columns, rows int) *emulator {
	s := &emulator{unknown: make(map[string]bool)}
	s.resize(columns, rows)
	return s
}

// resize keeps what is there, as far as there is room.
func (s *emulator) resize(columns, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.cells
	s.cells = make([][]rune, rows)
	for i := range s.cells {
		s.cells[i] = []rune(strings.Repeat(" ", columns))
		if i < len(before) {
			copy(s.cells[i], before[i])
		}
	}
	s.x, s.y, s.top, s.bottom = min(s.x, columns-1), min(s.y, rows-1), 0, rows-1
}

// text is what a person sees.
func (s *emulator) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := make([]string, len(s.cells))
	for i, row := range s.cells {
		rows[i] = strings.TrimRight(string(row), " ")
	}
	return strings.Join(rows, "\n")
}

func (s *emulator) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Write(b)
	b = append(s.rest, b...)
	for len(b) > 0 {
		if b[0] == '\x1b' {
			if m := controlSequence.FindSubmatch(b); m != nil {
				s.control(string(m[1]), string(m[2]), string(m[3]), string(m[4]))
				b = b[len(m[0]):]
				continue
			}
			if m := otherSequence.Find(b); m != nil {
				if string(m) == "\x1bM" && s.y == s.top {
					s.scroll(-1)
				} else if string(m) == "\x1bM" && s.y > 0 {
					s.y--
				}
				b = b[len(m):]
				continue
			}
			break // the rest of it comes
		}
		if !utf8.FullRune(b) {
			break
		}
		r, size := utf8.DecodeRune(b)
		b = b[size:]
		s.put(r)
	}
	s.rest = append([]byte(nil), b...)
}

func (s *emulator) put(r rune) {
	switch r {
	case '\r':
		s.x = 0
	case '\n':
		if s.y == s.bottom {
			s.scroll(1)
		} else if s.y < len(s.cells)-1 {
			s.y++
		}
	case '\b':
		s.x = max(s.x-1, 0)
	case '\t':
		s.x = min((s.x/8+1)*8, len(s.cells[0])-1)
	case '\x07':
	default:
		if s.x < len(s.cells[s.y]) {
			s.cells[s.y][s.x] = r
		}
		s.last = r
		s.x += cells(r)
	}
}

// scroll moves the scrolling part n lines up, or down if n is negative.
func (s *emulator) scroll(n int) { s.shift(s.top, s.bottom, n) }

func (s *emulator) shift(from, to, n int) {
	blank := func() []rune { return []rune(strings.Repeat(" ", len(s.cells[0]))) }
	for ; n > 0; n-- {
		copy(s.cells[from:to+1], s.cells[from+1:to+1])
		s.cells[to] = blank()
	}
	for ; n < 0; n++ {
		copy(s.cells[from+1:to+1], s.cells[from:to])
		s.cells[from] = blank()
	}
}

func (s *emulator) control(private, params, middle, final string) {
	if private != "" || middle != "" || strings.Contains("mhlnctuq", final) { // looks, modes and questions
		return
	}
	n := []int{0, 0}
	for i, p := range strings.SplitN(params, ";", 3) {
		if i < 2 {
			n[i], _ = strconv.Atoi(p)
		}
	}
	count := max(n[0], 1)
	width, row := len(s.cells[0]), s.cells[min(s.y, len(s.cells)-1)]
	erase := func(row []rune, from, to int) {
		for i := max(from, 0); i < min(to, width); i++ {
			row[i] = ' '
		}
	}
	switch final {
	case "H", "f":
		s.y, s.x = min(max(n[0], 1), len(s.cells))-1, min(max(n[1], 1), width)-1
	case "A":
		s.y = max(s.y-count, 0)
	case "B":
		s.y = min(s.y+count, len(s.cells)-1)
	case "C":
		s.x = min(s.x+count, width-1)
	case "D":
		s.x = max(s.x-count, 0)
	case "G", "`":
		s.x = count - 1
	case "d":
		s.y = min(count, len(s.cells)) - 1
	case "E":
		s.y, s.x = min(s.y+count, len(s.cells)-1), 0
	case "K":
		switch n[0] {
		case 0:
			erase(row, s.x, width)
		case 1:
			erase(row, 0, s.x+1)
		default:
			erase(row, 0, width)
		}
	case "J":
		from, to := s.y+1, len(s.cells)
		switch n[0] {
		case 0:
			erase(row, s.x, width)
		case 1:
			from, to = 0, s.y
			erase(row, 0, s.x+1)
		default:
			from = 0
		}
		for y := from; y < to; y++ {
			erase(s.cells[y], 0, width)
		}
	case "X":
		erase(row, s.x, s.x+count)
	case "@":
		copy(row[min(s.x+count, width):], row[s.x:])
		erase(row, s.x, s.x+count)
	case "P":
		copy(row[s.x:], row[min(s.x+count, width):])
		erase(row, width-count, width)
	case "b":
		for range count {
			s.put(s.last)
		}
	case "r":
		s.top, s.bottom = max(n[0], 1)-1, len(s.cells)-1
		if n[1] > 0 {
			s.bottom = n[1] - 1
		}
		s.x, s.y = 0, 0
	case "S":
		s.scroll(count)
	case "T":
		s.scroll(-count)
	case "L":
		s.shift(s.y, s.bottom, -count)
	case "M":
		s.shift(s.y, s.bottom, count)
	default:
		s.unknown["CSI "+params+final] = true
	}
}

// watching is pactctl top on a terminal.
type watching struct {
	t       *testing.T
	screen  *emulator
	person  *os.File
	program *os.File
	cmd     *exec.Cmd
	ended   chan error
}

func watch(t *testing.T, columns, rows int, env []string, args ...string) *watching {
	t.Helper()
	person, program := openPTY(t, uint16(columns), uint16(rows))
	w := &watching{t: t, screen: newEmulator(columns, rows), person: person, program: program, ended: make(chan error, 1)}
	w.cmd = exec.Command("pactctl", append([]string{"top"}, args...)...)
	w.cmd.Env = append(os.Environ(), append([]string{"TERM=xterm-256color", "TZ=UTC", "NO_COLOR="}, env...)...)
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = program, program, program
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cmd.Process.Kill() }) // if it has not ended
	go func() {
		piece := make([]byte, 4096)
		for {
			n, err := person.Read(piece)
			if err != nil {
				return
			}
			w.screen.write(piece[:n])
		}
	}()
	go func() { w.ended <- w.cmd.Wait() }()
	return w
}

// until waits until the screen is as ok says, and returns it.
func (w *watching) until(what string, ok func(screen string) bool) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if text := w.screen.text(); ok(text) {
			return text
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("it does not show %s:\n%s", what, w.screen.text())
		case <-tick.C:
		}
	}
}

func (w *watching) shows(words ...string) string {
	w.t.Helper()
	return w.until(strings.Join(words, ", "), func(screen string) bool {
		for _, word := range words {
			if !strings.Contains(screen, word) {
				return false
			}
		}
		return true
	})
}

func (w *watching) types(keys string) {
	w.t.Helper()
	if _, err := w.person.WriteString(keys); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) resize(columns, rows int) {
	w.t.Helper()
	w.screen.resize(columns, rows)
	if err := unix.IoctlSetWinsize(int(w.person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		w.t.Fatal(err)
	}
}

// ends waits for the end, with an exit code.
func (w *watching) ends(code int) {
	w.t.Helper()
	<-w.ended
	if got := w.cmd.ProcessState.ExitCode(); got != code {
		w.t.Fatalf("exit code %d, want %d:\n%s", got, code, w.screen.text())
	}
}

// topSigner starts an embedded signer on a data folder, for operators at an address.
func topSigner(t *testing.T, data, admin string) (s *server.Server, stop func()) {
	t.Helper()
	cfg := config.Default()
	cfg.Data = data
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	cfg.Listeners.Admin.Address = admin
	s, err := server.New(cfg, server.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	once := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(once)
	<-s.Ready()
	return s, once
}

// A person watches a signer: sees it stop and go on, loses it and has it back, in
// terminals of several sizes.
func TestTopOnATerminal(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	data := filepath.Join(t.TempDir(), "data")
	address := fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t, 0)) // to which it comes back
	s, stop := topSigner(t, data, address)
	admin := s.Info().Admin
	target := []string{"--server", admin, "--token-file", s.Info().AdminTokenFile}
	operate := func(args ...string) {
		t.Helper()
		out, err := exec.Command("pactctl", append(args, target...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("pactctl %v: %v\n%s", args, err, out)
		}
	}
	w := watch(t, 80, 24, nil, append(target, "--interval", "1s")...)
	first := w.shows("PACT signer test  "+admin, "1 replica ready", "Nothing is stopped", "SIGN/S", "Last 1h: 0 signed", "every 1s")
	if rows := strings.Split(first, "\n"); !strings.HasPrefix(rows[0], "PACT signer") || !strings.HasPrefix(rows[23], "every 1s") {
		t.Errorf("it does not fill the screen:\n%s", first)
	}

	operate("kill", "--all", "--reason", "drill of the month", "--yes")
	w.shows("STOPPED: everything", "drill of the month", "kill by initial")
	operate("resume", "--all", "--reason", "over", "--yes")
	w.shows("Nothing is stopped", "resume by initial")

	w.types("?")
	w.shows("^C  quit, with exit code 130")
	w.types("?+")
	w.shows("every 2s", "SIGN/S")
	w.types("-")
	w.shows("every 1s")
	w.types("p")
	w.shows("PAUSED")
	w.types("p")
	w.until("no pause", func(screen string) bool { return !strings.Contains(screen, "PAUSED") })

	for _, size := range [][2]int{{40, 10}, {132, 43}, {20, 4}, {80, 24}} {
		w.resize(size[0], size[1])
		w.until(fmt.Sprint("a picture of ", size), func(screen string) bool {
			rows := strings.Split(screen, "\n")
			return strings.HasPrefix(rows[0], "PACT signer") && strings.HasPrefix(rows[1], "Nothing is stopped") && strings.HasPrefix(rows[len(rows)-1], "every 1s")
		})
	}

	stop()
	w.shows("STALE, of ", "cannot reach the signer at", "Nothing is stopped", "SIGN/S")
	topSigner(t, data, address)
	w.until("the signer again, and nothing of the picture before", func(screen string) bool {
		rows := strings.Split(screen, "\n")
		return !strings.Contains(screen, "STALE") && strings.Contains(rows[0], "1 replica ready") && rows[2] == "" && rows[5] == "" && rows[8] == ""
	})
	w.types("q")
	w.ends(0)
	for sequence := range w.screen.unknown {
		t.Errorf("the screen does not know %s", sequence)
	}

	w = watch(t, 80, 24, []string{"NO_COLOR=1"}, append(target, "--interval", "1s")...)
	w.shows("Nothing is stopped")
	w.screen.mu.Lock()
	if colour := regexp.MustCompile("\x1b\\[[0-9;]*\\b(3[0-7]|38|4[0-7])\\b[0-9;]*m").Find(w.screen.all.Bytes()); colour != nil {
		t.Errorf("with NO_COLOR it colours: %q", colour)
	}
	w.screen.mu.Unlock()
	w.types("\x03")
	w.ends(exitInterrupted)

	w = watch(t, 80, 24, []string{"TERM=dumb"}, target...)
	w.shows("Nothing is stopped", "Last 1h: 0 signed")
	w.ends(0)
	w.screen.mu.Lock()
	if bytes.ContainsRune(w.screen.all.Bytes(), '\x1b') {
		t.Errorf("a dumb terminal is sent %q", w.screen.all.Bytes())
	}
	w.screen.mu.Unlock()

	w = watch(t, 80, 24, nil, append(target, "--interval", "1s", "--count", "2")...)
	w.ends(0)
	w = watch(t, 80, 24, nil, "--server", "http://127.0.0.1:1", "--token-file", s.Info().AdminTokenFile)
	w.shows("cannot reach the signer at http://127.0.0.1:1")
	w.ends(exitFailed)
}
