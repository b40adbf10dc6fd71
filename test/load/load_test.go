package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// An open loop's latency counts from when a request was due: a server that stalls
// is not asked less.
func TestOpenLoopCountsWaiting(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		slow := func() (int, bool) {
			time.Sleep(100 * time.Millisecond)
			return 200, false
		}
		r := open([]call{slow}, 20, time.Second, nil) // twice as many as it can take
		if r.good() != 20 {
			t.Fatalf("%d answers, want 20", r.good())
		}
		// The last was due after 950 ms and came after 20 × 100 ms.
		if last := r.quantile(1); last != 1050*time.Millisecond {
			t.Errorf("the last took %v from when it was due, want 1.05s", last)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		left := 7
		worker := func() (int, bool) {
			time.Sleep(10 * time.Millisecond)
			if left == 0 {
				return 0, true
			}
			left--
			return 503 - 303*(left%2), false
		}
		r := closed([]call{worker}, time.Minute)
		if r.Statuses[200] != 3 || r.Statuses[503] != 4 || len(r.Latencies) != 7 {
			t.Errorf("%+v", r)
		}
	})
}

func TestQuantile(t *testing.T) {
	var r result
	if r.quantile(.99) != 0 {
		t.Error("nothing measured has a quantile")
	}
	for i := range 100 {
		r.Latencies = append(r.Latencies, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, .5: 51, .99: 100, 1: 100} {
		if got := r.quantile(q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
}

// The fast client against net/http: bodies, refusals, and a connection that ends.
func TestDial(t *testing.T) {
	served := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served++
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Host != "issuer.example" || r.Header.Get("Authorization") != "Bearer x" || string(body) != `{"a":1}` {
			t.Errorf("%s %s %q, %v", r.Method, r.Host, body, err)
		}
		switch served % 3 {
		case 0:
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			fmt.Fprint(w, strings.Repeat("x", 2000))
		}
	}))
	defer server.Close()
	ask := dial(strings.TrimPrefix(server.URL, "http://"), same(post("issuer.example", "/pact/sign", "Bearer x", `{"a":1}`)))
	var got []int
	for range 7 {
		status, _ := ask()
		got = append(got, status)
	}
	// After "close" the connection is gone: one call fails, the next dials.
	if fmt.Sprint(got) != "[200 200 503 0 200 200 503]" {
		t.Errorf("%v", got)
	}
	if status, done := dial("127.0.0.1:1", same([]byte("x")))(); status != 0 || done {
		t.Errorf("nobody listens: %d, %v", status, done)
	}
}

// A device's assertion is what the contract asks for.
func TestAssertion(t *testing.T) {
	d := newDevice(7)
	if again := newDevice(7); again.thumbprint != d.thumbprint {
		t.Error("a number names two devices")
	}
	jws, err := jose.ParseSignedCompact(d.assertion("http://issuer.example/pact/sign"), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := jws.Verify(d.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Iss, Aud, Jti string
		Iat, Exp      int64
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Iss != d.thumbprint || claims.Aud != "http://issuer.example/pact/sign" || claims.Exp-claims.Iat != 60 || len(claims.Jti) < 20 {
		t.Errorf("%s", payload)
	}
	if kid := jws.Signatures[0].Protected.KeyID; kid != d.thumbprint {
		t.Errorf("kid %s", kid)
	}
}

func TestRestStatus(t *testing.T) {
	st, err := status.New(codes.Unavailable, "x").WithDetails(&errdetails.ErrorInfo{Reason: "UNAVAILABLE"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		want int
	}{{nil, 200}, {st.Err(), 503}, {status.Error(codes.Unavailable, "no connection"), 0}} {
		if got := restStatus(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// The recorder notes each exchange on a connection.
func TestRecorder(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }))
	defer server.Close()
	b := &bench{ctx: t.Context()}
	defer b.close()
	r := record(b, server.URL)
	ask := dial(strings.TrimPrefix(r.addr, "http://"), same(get("x", "/")))
	before := time.Now()
	for range 4 {
		if status, _ := ask(); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	after := time.Now()
	spans := r.take()
	if len(spans) != 3 { // the fourth is noted when the next one begins
		t.Fatalf("%d exchanges", len(spans))
	}
	for i, s := range spans {
		if !s.to.After(s.from) || s.from.Before(before) || s.to.After(after) || i > 0 && s.from.Before(spans[i-1].to) {
			t.Errorf("exchange %d: %v to %v", i, s.from, s.to)
		}
	}
}
