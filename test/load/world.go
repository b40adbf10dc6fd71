package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

// bench stands in for a test: what the harness starts ends with it. A failure
// ends the program, after everything is stopped.
type bench struct {
	ctx      context.Context
	cleanups []func()
}

type failure string

func (b *bench) Helper()                      {}
func (b *bench) Context() context.Context     { return b.ctx }
func (b *bench) Logf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (b *bench) Cleanup(f func())             { b.cleanups = append(b.cleanups, f) }

func (b *bench) Fatalf(format string, a ...any) { panic(failure(fmt.Sprintf(format, a...))) }

func (b *bench) TempDir() string {
	dir, err := os.MkdirTemp("", "pact-load-")
	if err != nil {
		b.Fatalf("%v", err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (b *bench) close() {
	for i := len(b.cleanups) - 1; i >= 0; i-- {
		b.cleanups[i]()
	}
	b.cleanups = nil
}

// setup says what to measure on.
type setup struct {
	Custody  string // local, vault (transit) or wrapped
	Store    string // bolt or redis
	Replicas int
	Audit    bool // Vault writes an audit log
}

// world is a running fleet with one audience and one credential.
type world struct {
	*fleet.Fleet
	b          *bench
	redis      *servers.Redis
	vault      *servers.Vault
	vaultCalls *recorder // between the signers and Vault
	credential *fleet.Caller
}

// audience is what all tokens are for.
const audience = "https://business.example/agent"

// start runs what a setup says.
func start(b *bench, s setup) *world {
	w := &world{b: b}
	if s.Replicas > 1 && (s.Custody == "local" || s.Store == "bolt") {
		b.Fatalf("several replicas cannot share local custody or a bolt file: use -custody vault or wrapped, and -store redis")
	}
	backend := fleet.Settings{}
	if s.Store == "redis" {
		w.redis = servers.StartRedis(b, servers.RedisOptions{Args: []string{"--appendfsync", "everysec"}}) // as in production
		backend = backend.With(fleet.OnRedis(w.redis.Addr(), 0))
	}
	if s.Custody != "local" {
		w.vault = servers.StartVault(b, servers.VaultOptions{Audit: s.Audit})
		w.vaultCalls = record(b, w.vault.Addr)
		backend = backend.With(fleet.OnVault(b, w.vault, "load", s.Custody == "wrapped"))
		backend["custody.vault.addresses"] = []string{w.vaultCalls.addr}
	}
	w.Fleet = fleet.Start(b, fleet.Options{Replicas: s.Replicas, Backend: backend})
	via := w.Replicas[0]
	w.MustPactctl(b, via, "audiences", "set", "https://business.example", audience)
	w.credential = w.NewCredential(b, via, "load")
	return w
}

// host is what requests name: all replicas serve one issuer.
func (w *world) host() string { return strings.TrimPrefix(w.Issuer, "http://") }

const signBody = `{"audience":"` + audience + `","nonce":"load"}`

// signWith is a sign request under an authorization.
func (w *world) signWith(authorization string) []byte {
	return post(w.host(), "/pact/sign", authorization, signBody)
}

// credentials are sign requests by the credential, without end.
func (w *world) credentials() requests {
	return same(w.signWith("Bearer " + w.credential.Credential))
}

// devices are n sign requests by so many enrolled devices in turn. They are good
// for less than a minute.
func (w *world) devices(n, among int) requests {
	authorizations := w.assertions(n, among)
	list := make([][]byte, n)
	for i := range list {
		list[i] = w.signWith(authorizations[i])
	}
	return oneByOne(list)
}

// assertions authorise n calls of sign.
func (w *world) assertions(n, among int) []string {
	for i := range among {
		w.enrol(newDevice(i))
	}
	list := make([]string, n)
	parallel(n, func(i int) {
		list[i] = "PACT-Device " + newDevice(i%among).assertion(w.Issuer+"/pact/sign")
	})
	return list
}

// enrol makes a device known by the contract.
func (w *world) enrol(d device) {
	body, err := json.Marshal(map[string]any{
		"publicJwk": map[string]string{
			"kty": "EC", "crv": "P-256", "kid": d.thumbprint,
			"x": b64(d.point[:32]), "y": b64(d.point[32:]),
		},
		"proof": d.assertion(w.Issuer + "/pact/enroll"),
	})
	if err != nil {
		w.b.Fatalf("enrol: %v", err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+w.Replicas[0].Public+"/pact/enroll", strings.NewReader(string(body)))
	if err != nil {
		w.b.Fatalf("enrol: %v", err)
	}
	req.Host = w.host()
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.b.Fatalf("enrol: %v", err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		w.b.Fatalf("enrol: %d %s %v", resp.StatusCode, text, err)
	}
}

// dials are n workers spread over the replicas.
func (w *world) dials(n int, next requests) []call {
	workers := make([]call, n)
	for i := range workers {
		workers[i] = dial(w.Replicas[i%len(w.Replicas)].Public, next)
	}
	return workers
}

// recorder is a TCP proxy before Vault that notes when each exchange on a
// connection began and ended: when the first byte of the question and the last of
// the answer came.
type recorder struct {
	addr   string
	target string

	mu    sync.Mutex
	spans []span
}

func record(b *bench, url string) *recorder {
	_, target, _ := strings.Cut(url, "://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatalf("%v", err)
	}
	r := &recorder{addr: "http://" + l.Addr().String(), target: target}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

func (r *recorder) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer server.Close()
	var (
		mu      sync.Mutex
		current span
	)
	// HTTP/1.1 without pipelining: one exchange at a time.
	go func() {
		defer server.Close()
		copyNoting(server, client, func(at time.Time) {
			mu.Lock()
			defer mu.Unlock()
			if !current.to.IsZero() || current.from.IsZero() {
				if !current.to.IsZero() {
					r.note(current)
				}
				current = span{from: at}
			}
		})
	}()
	// Noted before it is passed on: the next question may follow at once.
	copyNoting(client, server, func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		current.to = at
	})
	mu.Lock()
	defer mu.Unlock()
	if !current.to.IsZero() {
		r.note(current)
	}
}

// copyNoting copies and tells when each piece came.
func copyNoting(to io.Writer, from io.Reader, came func(time.Time)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			came(time.Now())
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *recorder) note(s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, s)
}

// take returns what was noted since the last time.
func (r *recorder) take() []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	spans := r.spans
	r.spans = nil
	return spans
}
