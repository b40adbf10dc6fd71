package jwks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func testDocument(t testing.TB) *Document {
	t.Helper()
	k := testKeys()
	doc, err := NewDocument([]Key{{"a", jose.ES256, &k.ec.PublicKey}, {"b", jose.RS256, &k.rsa.PublicKey}})
	if err != nil {
		t.Fatal(err)
	}
	return &doc
}

func TestHandler(t *testing.T) {
	doc := testDocument(t)
	srv := httptest.NewServer(Handler(5*time.Minute, func() (*Document, error) { return doc, nil }))
	defer srv.Close()
	cases := []struct {
		method, match string
		status        int
		body          bool
		cached        bool // ETag and Cache-Control are there
	}{
		{"GET", "", 200, true, true},
		{"HEAD", "", 200, false, true},
		{"GET", doc.ETag, 304, false, true},
		{"HEAD", doc.ETag, 304, false, true},
		{"GET", "W/" + doc.ETag, 304, false, true},
		{"GET", "*", 304, false, true},
		{"GET", `"x", ` + doc.ETag + ` , "y"`, 304, false, true},
		{"GET", `"x"`, 200, true, true},
		{"GET", strings.Trim(doc.ETag, `"`), 200, true, true},
		{"OPTIONS", "", 204, false, false},
		{"POST", "", 405, false, false},
		{"DELETE", doc.ETag, 405, false, false},
	}
	for _, c := range cases {
		t.Run(c.method+c.match, func(t *testing.T) {
			req := must(http.NewRequest(c.method, srv.URL, nil))
			if c.match != "" {
				req.Header.Set("If-None-Match", c.match)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			body := must(io.ReadAll(res.Body))
			if res.StatusCode != c.status || c.body != (string(body) == string(doc.Body)) || !c.body && len(body) > 0 {
				t.Errorf("%d with %d bytes", res.StatusCode, len(body))
			}
			if res.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Error("no CORS")
			}
			etag, cc := res.Header.Get("ETag"), res.Header.Get("Cache-Control")
			if c.cached && (etag != doc.ETag || cc != "public, max-age=300") || !c.cached && etag+cc != "" {
				t.Errorf("ETag %q, Cache-Control %q", etag, cc)
			}
			if c.status == 200 && (res.Header.Get("Content-Type") != "application/json" || res.ContentLength != int64(len(doc.Body))) {
				t.Errorf("%v", res.Header)
			}
			if allow := res.Header.Get("Allow"); (c.status == 405 || c.status == 204) && allow != "GET, HEAD, OPTIONS" {
				t.Errorf("Allow %q", allow)
			}
		})
	}
}

func TestHandlerMaxAge(t *testing.T) {
	for _, c := range []struct {
		handler, document time.Duration
		want              int
	}{
		{300 * time.Second, 0, 300},
		{300 * time.Second, 17 * time.Second, 17},
		{300 * time.Second, 17900 * time.Millisecond, 17},
		{300 * time.Second, 400 * time.Second, 300},
		{300 * time.Second, time.Millisecond, 1},
		{5 * time.Millisecond, 0, 1},
		{5500 * time.Millisecond, 0, 5},
		{-time.Second, 0, 1},
	} {
		doc := *testDocument(t)
		doc.MaxAge = c.document
		rec := httptest.NewRecorder()
		Handler(c.handler, func() (*Document, error) { return &doc, nil }).ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
		if got := rec.Header().Get("Cache-Control"); got != fmt.Sprintf("public, max-age=%d", c.want) {
			t.Errorf("%v of %v: %q", c.document, c.handler, got)
		}
	}
}

func TestHandlerWithoutDocument(t *testing.T) {
	for _, err := range []error{errors.New("the cause"), nil} {
		h := Handler(time.Minute, func() (*Document, error) { return nil, err })
		seen := map[string]bool{}
		for range 200 {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
			if rec.Code != 503 || strings.Contains(rec.Body.String(), "cause") || rec.Header().Get("Cache-Control") != "" {
				t.Fatalf("%d %s %v", rec.Code, rec.Body, rec.Header())
			}
			after := rec.Header().Get("Retry-After")
			if n, err := strconv.Atoi(after); err != nil || n < 1 || n > 5 {
				t.Fatalf("Retry-After %q", after)
			}
			seen[after] = true
		}
		if len(seen) < 2 {
			t.Error("Retry-After is not jittered")
		}
	}
}

func TestDiscovery(t *testing.T) {
	doc, err := Discovery("https://pa.example.com", jose.RS256, jose.ES256, jose.RS256)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(doc.Body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"issuer":                                "https://pa.example.com",
		"jwks_uri":                              "https://pa.example.com/.well-known/jwks.json",
		"response_types_supported":              []any{"id_token"},
		"subject_types_supported":               []any{"public"},
		"id_token_signing_alg_values_supported": []any{"ES256", "RS256"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	for _, issuer := range []string{"", "https://pa.example.com/"} {
		if _, err := Discovery(issuer, jose.ES256); err == nil {
			t.Errorf("issuer %q accepted", issuer)
		}
	}
	if _, err := Discovery("https://pa.example.com"); err == nil {
		t.Error("no algorithm accepted")
	}
}

// discard is a ResponseWriter that keeps its header map, as a server's does
// between the requests of one connection.
type discard struct {
	header http.Header
	n      int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { d.n += len(b); return len(b), nil }

func TestHandlerAllocatesNothing(t *testing.T) {
	doc := testDocument(t)
	h := Handler(5*time.Minute, func() (*Document, error) { return doc, nil })
	w := &discard{header: http.Header{}}
	for name, match := range map[string]string{"200": "", "304": doc.ETag} {
		r := httptest.NewRequest("GET", "/", nil)
		if match != "" {
			r.Header.Set("If-None-Match", match)
		}
		if n := testing.AllocsPerRun(100, func() { clear(w.header); h.ServeHTTP(w, r) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if w.n == 0 {
		t.Error("nothing was written")
	}
}

func BenchmarkHandler(b *testing.B) {
	doc := testDocument(b)
	h := Handler(5*time.Minute, func() (*Document, error) { return doc, nil })
	w := &discard{header: http.Header{}}
	r := httptest.NewRequest("GET", "/", nil)
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
}
