package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// beSigner makes the test's own binary the signer: the processes under test are
// built once, and with the race detector if the tests are.
const beSigner = "SIGNER_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beSigner) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a signer in a process of its own.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	info   info
	line   string // what serve -o json printed
	rest   io.Reader
	logs   *lockedBuffer
	waited sync.Once
	err    error
}

// info is the line that serve -o json prints, read strictly.
type info struct {
	Public         string   `json:"public"`
	GRPC           string   `json:"grpc"`
	Admin          string   `json:"admin"`
	Ops            string   `json:"ops"`
	Issuers        []string `json:"issuers"`
	AdminTokenFile string   `json:"adminTokenFile"`
}

// lockedBuffer collects a process's log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// command prepares a run of the signer.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beSigner+"=1")
	return cmd
}

// freePorts makes every listener that the arguments do not set take a free port.
func freePorts(args []string) []string {
	all := []string{"serve", "-o", "json"}
	for _, face := range []string{"--public", "--grpc", "--admin", "--ops"} {
		given := false
		for _, a := range args {
			given = given || a == face
		}
		if !given {
			all = append(all, face, "127.0.0.1:0")
		}
	}
	return append(all, args...)
}

// ownAddress lets the system pick a port of a loopback address that is this process's
// alone, where there are so many: whoever is started again there finds its port free.
func ownAddress() string {
	host := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		host = "127.0.0.1"
	} else {
		l.Close()
	}
	return net.JoinHostPort(host, "0")
}

// start runs signer serve and waits until it is ready.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(freePorts(args)...), logs: new(lockedBuffer)}
	p.cmd.Stderr = p.logs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the signer's log:\n%s", p.logs)
		}
	})
	stuck := time.AfterFunc(2*time.Minute, func() { p.cmd.Process.Kill() })
	defer stuck.Stop()
	r := bufio.NewReader(out)
	if p.line, err = r.ReadString('\n'); err != nil {
		p.kill()
		t.Fatalf("serve printed %q and no line: %v, %v\n%s", p.line, err, p.err, p.logs)
	}
	if err := json.Unmarshal([]byte(p.line), &p.info, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("serve printed %q: %v", p.line, err)
	}
	p.rest = r
	return p
}

// kill ends the process at once, as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.wait()
}

// wait waits for the end of the process.
func (p *process) wait() error {
	p.waited.Do(func() { p.err = p.cmd.Wait() })
	return p.err
}

// stop asks the process to stop, and fails the test unless it does so well and
// has printed nothing more.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if more, _ := io.ReadAll(p.rest); len(more) > 0 {
		p.t.Errorf("serve printed more than a line: %q", more)
	}
	if err := p.wait(); err != nil {
		p.t.Fatalf("signer stopped with %v\n%s", err, p.logs)
	}
}

// adminToken is the token of the file that serve named.
func (p *process) adminToken() string {
	p.t.Helper()
	if !filepath.IsAbs(p.info.AdminTokenFile) {
		p.t.Fatalf("adminTokenFile %q is not absolute", p.info.AdminTokenFile)
	}
	token, err := os.ReadFile(p.info.AdminTokenFile)
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// get fetches a URL and returns status and body.
func get(t testing.TB, url string) (int, []byte) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}
