package signer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// Whatever is not exactly the contract's JSON is 400, before anybody asks who calls.
func TestRESTBodies(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	good := func(s string) string { return s[:len(s)-1] }(goodSign) // without the brace
	for name, body := range map[string]string{
		"empty":              "",
		"null":               "null",
		"array":              "[" + goodSign + "]",
		"string":             `"x"`,
		"cut":                good,
		"trailing":           goodSign + "{}",
		"trailing comma":     good + ",}",
		"unknown":            good + `,"x":1}`,
		"repeated":           good + `,"nonce":"n-1"}`,
		"repeated, escaped":  good + `,"\u006eonce":"n-1"}`,
		"another case":       `{"Audience":"a","nonce":"n"}`,
		"iss":                good + `,"iss":"https://other.example.com"}`,
		"sub":                good + `,"sub":"pa_other"}`,
		"issuer":             good + `,"issuer":null}`,
		"no nonce":           `{"audience":"a"}`,
		"no audience":        `{"nonce":"a"}`,
		"null nonce":         `{"audience":"a","nonce":null}`,
		"number":             `{"audience":"a","nonce":1}`,
		"list":               `{"audience":["a"],"nonce":"n"}`,
		"empty nonce":        `{"audience":"a","nonce":""}`,
		"long nonce":         `{"audience":"a","nonce":"` + strings.Repeat("n", 257) + `"}`,
		"invalid UTF-8":      "{\"audience\":\"a\",\"nonce\":\"\xff\"}",
		"half a surrogate":   `{"audience":"a","nonce":"\ud800"}`,
		"control character":  "{\"audience\":\"a\",\"nonce\":\"\x01\"}",
		"byte order mark":    "\xef\xbb\xbf" + goodSign,
		"too large":          good + strings.Repeat(" ", 32<<10) + "}",
		"too deep":           good + `,"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}",
		"comment":            goodSign + "// no",
		"NaN":                `{"audience":NaN,"nonce":"n"}`,
		"protobuf's any way": `{"audience":"a","nonce":"n","@type":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			w.rest("/pact/sign", body, c.auth("")).refused(t, 400, "invalid_request")
			w.rest("/pact/sign", body, "").refused(t, 400, "invalid_request")
		})
	}
	for _, body := range []string{"", "null", "[]", `{"x":1}`, `{"iss":"x"}`, `{"sub":"x"}`, "{}{}", "{"} {
		w.rest("/pact/status", body, c.auth("")).refused(t, 400, "invalid_request")
	}
	d := newDevice(t)
	proof := d.assertion(t, w.base+"/pact/enroll", w.clock.now())
	for _, m := range []map[string]any{
		{}, {"proof": proof}, {"publicJwk": d.jwk(t)}, {"publicJwk": d.jwk(t), "proof": ""}, {"publicJwk": d.jwk(t), "proof": nil},
		{"publicJwk": d.jwk(t), "proof": 1}, {"publicJwk": nil, "proof": proof}, {"publicJwk": "x", "proof": proof},
		{"public_jwk": d.jwk(t), "proof": proof}, {"publicJwk": d.jwk(t), "proof": proof, "sub": "pa_x"},
		{"publicJwk": d.jwk(t), "proof": proof, "iss": w.issuer},
	} {
		w.rest("/pact/enroll", object(t, m), "").refused(t, 400, "invalid_request")
	}
	jwk, err := json.Marshal(d.jwk(t))
	if err != nil {
		t.Fatal(err)
	}
	repeated := fmt.Sprintf(`{"publicJwk":%s,"proof":%q}`, strings.Replace(string(jwk), "{", `{"kty":"EC",`, 1), proof)
	w.rest("/pact/enroll", repeated, "").refused(t, 400, "invalid_request")

	full := good + strings.Repeat(" ", 32<<10-len(goodSign)) + "}"
	if r := w.rest("/pact/sign", full, c.auth("")); len(full) != 32<<10 || r.status != 200 {
		t.Errorf("a body of exactly 32 KiB: %+v", r)
	}
	// What a member may hold comes back as it was.
	r := w.rest("/pact/sign", `{"audience":"`+providerAudience+`","nonce":"a\"\\\u2028<&é\u0000"}`, c.auth(""))
	if r.text("nonce") != "a\"\\\u2028<&é\x00" {
		t.Errorf("%+v", r)
	}
}

func TestRESTHeaders(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	do := func(change func(*http.Request)) reply {
		req, err := http.NewRequest(http.MethodPost, w.base+"/pact/sign", strings.NewReader(goodSign))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", c.auth(""))
		change(req)
		return w.send(req)
	}
	for _, ct := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"} {
		r := do(func(r *http.Request) { r.Header.Set("Content-Type", ct) })
		if r.status != 200 {
			t.Errorf("%s: %+v", ct, r)
		}
		for name, want := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
			if got := r.header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	for _, ct := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json-patch+json", "application/jsonx", "application", ";"} {
		do(func(r *http.Request) { r.Header.Set("Content-Type", ct) }).refused(t, 400, "invalid_request")
	}
	do(func(r *http.Request) { r.Header.Del("Content-Type") }).refused(t, 400, "invalid_request")
	do(func(r *http.Request) { r.Header.Add("Content-Type", "text/plain") }).refused(t, 400, "invalid_request")
	do(func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }).refused(t, 400, "invalid_request")

	// No header turns a request into another one.
	for name, value := range map[string]string{
		"Grpc-Timeout": "nonsense", "Grpc-Metadata-Authorization": "Bearer x", "X-Http-Method-Override": "GET", "Te": "trailers",
		"Accept": "text/html", "X-Forwarded-Host": "other.example.com", "Grpc-Metadata-X-Bin": "!",
	} {
		if r := do(func(r *http.Request) { r.Header.Set(name, value) }); r.status != 200 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	r := do(func(r *http.Request) { r.Header.Del("Authorization") })
	r.refused(t, 401, "unauthorized")
	if got := r.header.Get("Www-Authenticate"); got != "Bearer, PACT-Device" {
		t.Errorf("WWW-Authenticate %q", got)
	}
	if r.header.Get("Cache-Control") != "no-store" {
		t.Error("a refusal may be cached")
	}
	do(func(r *http.Request) { r.Header.Add("Authorization", c.auth("")) }).refused(t, 401, "unauthorized")

	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		for _, path := range []string{"/pact/sign", "/pact/status", "/pact/enroll"} {
			r := do(func(r *http.Request) { r.Method = method; r.URL.Path = path })
			if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "POST" {
				t.Errorf("%s %s: %+v", method, path, r)
			}
		}
	}
	for _, path := range []string{"/", "/pact", "/pact/", "/pact/sign/", "//pact/sign", "/pact/signs", "/PACT/SIGN", "/pact/../pact/sign", "/pact.signer.v1.SignerService/Sign", "/v1/devices"} {
		if r := do(func(r *http.Request) { r.URL.Path = path }); r.status != http.StatusNotFound {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

// A request cut off in its body, and one that hides a second, are not answered 200.
func TestRESTRawRequests(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	send := func(raw string) string {
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	head := "POST /pact/sign HTTP/1.1\r\nHost: " + w.address + "\r\nContent-Type: application/json\r\nAuthorization: " + c.auth("") + "\r\n"
	if got := send(head + "Connection: close\r\nContent-Length: 1000\r\n\r\n" + goodSign); strings.Contains(got, " 200 ") {
		t.Error(got)
	}
	if got := send(head + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"au\r\n"); strings.Contains(got, " 200 ") {
		t.Error(got)
	}
	// Absolute form and a line of its own for the host: HTTP's own rules decide.
	if got := send(strings.Replace(head, "POST /", "POST http://other.example.com/", 1) + "Connection: close\r\nContent-Length: 2\r\n\r\n{}"); !strings.Contains(got, " 404 ") {
		t.Error(got)
	}
	if got := send("POST /pact%2Fsign HTTP/1.1\r\n" + strings.SplitN(head, "\r\n", 2)[1] + "Connection: close\r\nContent-Length: 2\r\n\r\n{}"); !strings.Contains(got, " 400 ") {
		t.Error(got) // the same path, escaped
	}
}

func TestRESTPublicDocuments(t *testing.T) {
	w := newContractWorld(t)
	get := func(method, path, host string) reply {
		req, err := http.NewRequest(method, "http://"+w.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		return w.send(req)
	}
	keys := get("GET", "/.well-known/jwks.json", w.address)
	if keys.status != 200 || !strings.Contains(keys.body, `"keys"`) || keys.header.Get("Access-Control-Allow-Origin") != "*" || keys.header.Get("Etag") == "" {
		t.Errorf("%+v", keys)
	}
	discovery := get("GET", "/.well-known/openid-configuration", w.address)
	var d struct{ Issuer, JWKSURI string }
	if json.Unmarshal([]byte(strings.Replace(discovery.body, "jwks_uri", "JWKSURI", 1)), &d) != nil || d.Issuer != w.issuer || d.JWKSURI != w.issuer+"/.well-known/jwks.json" {
		t.Errorf("%+v", discovery)
	}
	for _, host := range []string{w.address, "whatever"} {
		if r := get("GET", "/livez", host); r.status != 200 {
			t.Errorf("/livez as %s: %+v", host, r)
		}
	}
	for _, path := range []string{"/.well-known/jwks.json", "/.well-known/openid-configuration"} {
		if r := get("GET", path, "other.example.com"); r.status != 404 {
			t.Errorf("%+v", r)
		}
		if r := get("POST", path, w.address); r.status != 405 {
			t.Errorf("%+v", r)
		}
	}
	if r := get("POST", "/livez", w.address); r.status != 405 || r.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("%+v", r)
	}
	// The kill switch does not withhold keys.
	w.kill(killswitch.All, "")
	w.refresh()
	if r := get("GET", "/.well-known/jwks.json", w.address); r.body != keys.body {
		t.Errorf("%+v", r)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(b mem.BufferSlice, v any) error { *v.(*[]byte) = b.Materialize(); return nil }

var _ encoding.CodecV2 = rawCodec{}

// gRPC refuses what REST refuses, for the same reason.
func TestGRPCMessages(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	conn, err := grpc.NewClient(w.rpcs, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	sign := text(text(nil, 1, providerAudience), 2, "n")
	call := func(method string, message []byte) error {
		var answer []byte
		return conn.Invoke(withAuthorization(c.auth("")), "/pact.signer.v1.SignerService/"+method, message, &answer, grpc.ForceCodecV2(rawCodec{}))
	}
	if err := call("Sign", sign); err != nil {
		t.Fatal(err)
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	key := text(nil, 1, "EC")
	nested := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), append(key, unknown...))
	for name, err := range map[string]error{
		"unknown field":         call("Sign", append(append([]byte{}, sign...), unknown...)),
		"unknown field, status": call("Status", unknown),
		"unknown field in key":  call("Enroll", text(nested, 2, "proof")),
		"invalid UTF-8":         call("Sign", text(sign, 2, "\xff")),
		"cut":                   call("Sign", sign[:len(sign)-1]),
		"too large":             call("Enroll", text(nil, 2, strings.Repeat("x", 33<<10))),
		"no key":                call("Enroll", text(nil, 2, "x")),
		"nothing":               call("Sign", nil),
	} {
		t.Run(name, func(t *testing.T) { rpcReply(t, nil, err).refused(t, 400, "invalid_request") })
	}
	if err := call("Nothing", nil); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// blockedWriter holds an answer up until it is let go.
type blockedWriter struct {
	*httptest.ResponseRecorder
	reached, release chan struct{}
}

func (b blockedWriter) Write(p []byte) (int, error) {
	close(b.reached)
	<-b.release
	return b.ResponseRecorder.Write(p)
}

// blockingStats holds an answer up where gRPC hands it to the transport.
type blockingStats struct {
	reached, release chan struct{}
}

func (b blockingStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (b blockingStats) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		close(b.reached)
		<-b.release
	}
}
func (b blockingStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (b blockingStats) HandleConn(context.Context, stats.ConnStats)                       {}

// While an answer that passed the last check is on its way to the transport, the
// replica does not say that it has heard of the kill.
func TestDeliveryHoldsTheReport(t *testing.T) {
	settled := func(w *contractWorld) (reported uint64) {
		for range 3 { // one to hear of it, one to notice, one to report
			w.refresh()
		}
		return w.guard.Permit().Reported
	}
	eventually := func(t *testing.T, w *contractWorld, epoch uint64) {
		t.Helper()
		for range 1_000_000 {
			if settled(w) >= epoch {
				return
			}
			runtime.Gosched()
		}
		t.Error("the replica never reports the kill")
	}
	reached, release := make(chan struct{}), make(chan struct{})
	t.Run("rest", func(t *testing.T) {
		w := newContractWorld(t)
		c := w.credentialCaller()
		req := httptest.NewRequest("POST", w.base+"/pact/sign", strings.NewReader(goodSign))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", c.auth(""))
		writer := blockedWriter{httptest.NewRecorder(), reached, release}
		done := make(chan struct{})
		go func() { w.service.Handler().ServeHTTP(writer, req); close(done) }()
		<-reached
		epoch := w.kill(killswitch.All, "")
		if got := settled(w); got >= epoch {
			t.Errorf("reported %d with a delivery under way since before %d", got, epoch)
		}
		close(release)
		<-done
		eventually(t, w, epoch)
		if writer.Code != 200 {
			t.Errorf("%d: the answer had passed", writer.Code)
		}
	})
	reached, release = make(chan struct{}), make(chan struct{})
	t.Run("grpc", func(t *testing.T) {
		w := newContractWorld(t, func(c *worldConfig) { c.stats = blockingStats{reached, release} })
		c := w.credentialCaller()
		done := make(chan reply, 1)
		go func() { done <- w.rpc("/pact/sign", goodSign, c.auth("")) }()
		<-reached
		epoch := w.kill(killswitch.All, "")
		if got := settled(w); got >= epoch {
			t.Errorf("reported %d with a delivery under way since before %d", got, epoch)
		}
		close(release)
		if r := <-done; r.status != 200 {
			t.Errorf("%+v: the answer had passed", r)
		}
		eventually(t, w, epoch)
	})
}

// Callers that leave do not hold the report for ever.
func TestDeliveryEndsWithTheCaller(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	left := make(chan struct{})
	w.keyring.watch(func(ctx context.Context, name string, digest []byte) ([]byte, error) {
		defer close(left)
		<-ctx.Done() // the caller leaves
		return w.keyring.Keyring.Sign(context.WithoutCancel(ctx), name, digest)
	})
	ctx, cancel := context.WithCancel(withAuthorization(c.auth("")))
	go cancel()
	_, err := w.grpc.Sign(ctx, &signerv1.SignRequest{Audience: providerAudience, Nonce: "n"})
	if err == nil {
		t.Error("a caller that left was answered")
	}
	w.keyring.watch(w.keyring.Keyring.Sign)
	for range 20 {
		if r := w.rpc("/pact/sign", goodSign, c.auth("")); r.status != 200 {
			t.Fatalf("%+v", r)
		}
	}
	epoch := w.kill(killswitch.All, "")
	for range 1_000_000 {
		w.refresh()
		if w.guard.Permit().Reported >= epoch {
			return
		}
		runtime.Gosched()
	}
	t.Error("the replica never reports the kill")
}

// A configuration that cannot work names what is wrong.
func TestNewRefusesConfigurations(t *testing.T) {
	w := newContractWorld(t)
	good := func() signer.Config {
		return signer.Config{Store: w.store, Guard: w.guard, Keyring: w.keyring, Issuers: []signer.Issuer{{
			URL: "https://a.example.com", SignerURLs: []string{"https://a.example.com"}, Enrolment: signer.EnrolOpen, TokenTTL: time.Minute, Keys: w.keys,
		}}}
	}
	if _, err := signer.New(good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*signer.Config){
		"Store":      func(c *signer.Config) { c.Store = nil },
		"Guard":      func(c *signer.Config) { c.Guard = nil },
		"Keyring":    func(c *signer.Config) { c.Keyring = nil },
		"Issuers":    func(c *signer.Config) { c.Issuers = nil },
		"no URL":     func(c *signer.Config) { c.Issuers[0].URL = "" },
		"SignerURLs": func(c *signer.Config) { c.Issuers[0].SignerURLs = nil },
		"not a URL":  func(c *signer.Config) { c.Issuers[0].SignerURLs = []string{"nonsense"} },
		"TokenTTL":   func(c *signer.Config) { c.Issuers[0].TokenTTL = 301 * time.Second },
		"Enrolment":  func(c *signer.Config) { c.Issuers[0].Enrolment = "" },
		"Keys":       func(c *signer.Config) { c.Issuers[0].Keys = nil },
		"share the host": func(c *signer.Config) {
			i := c.Issuers[0]
			i.URL = "https://b.example.com"
			c.Issuers = append(c.Issuers, i)
		},
	} {
		c := good()
		change(&c)
		if _, err := signer.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
