package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// carriage is what a route calls the faults in how its answers travel: those that
// replace or hold back an answer, and those of its body. Behind the prefix stand
//
//	replies: status redirect slow hang cut-headers
//	bodies:  garbage malformed missing content-type oversize
//
// of which a page has only garbage, and a reply not missing.
type carriage struct{ replies, bodies string }

var (
	cardCarriage     = carriage{"card-", "card-"}
	metadataCarriage = carriage{"metadata-", "metadata-"}
	keysCarriage     = carriage{"jwks-", "jwks-"}
	deviceCarriage   = carriage{"device-", "device-"}
	tokenCarriage    = carriage{"token-", "token-"}
	messageCarriage  = carriage{"", "reply-"}
	pageCarriage     = carriage{"page-", "page-"}
)

// carry has a route answer under the faults of its carriage.
func (s *Sandbox) carry(w http.ResponseWriter, r *http.Request, c carriage, answer func(http.ResponseWriter)) {
	ctx := r.Context()
	if c == (carriage{}) || !s.faults.on(ctx, c.replies) && !s.faults.on(ctx, c.bodies) && r.URL.RawQuery == "" {
		answer(w)
		return
	}
	if s.redirect(w, r, c.replies+"redirect") || s.answerStatus(w, r, c.replies+"status") {
		return
	}
	r.Header.Del("If-None-Match") // a 304 has no body to spoil
	held := &heldAnswer{ResponseWriter: w, status: http.StatusOK}
	answer(held)
	if held.status == http.StatusOK {
		s.spoilBody(ctx, held, c.bodies)
	}
	if n, on := s.faults.number(ctx, c.replies+"slow"); on {
		s.pause(w, r, time.Duration(n)*time.Second)
	}
	if s.faults.hit(ctx, c.replies+"hang") {
		s.pause(w, r, forever)
	}
	held.send(s.faults.hit(ctx, c.replies+"cut-headers"))
}

// answerStatus answers with a status and nothing else.
func (s *Sandbox) answerStatus(w http.ResponseWriter, r *http.Request, fault string) bool {
	n, on := s.faults.number(r.Context(), fault)
	if on {
		_, _ = readBody(w, r) // else the client might not get to read the answer
		w.WriteHeader(n)
	}
	return on
}

// forever is longer than anybody waits.
const forever = 1000 * time.Hour

// pause waits, and ends the request if the client or the sandbox goes meanwhile.
func (s *Sandbox) pause(w http.ResponseWriter, r *http.Request, d time.Duration) {
	// The time to read a request is over some day, which would end its context.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	wait := s.timer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
		return
	case <-r.Context().Done():
	case <-s.closing:
	}
	panic(http.ErrAbortHandler)
}

// heldAnswer is an answer that is complete before it goes out. Its headers are the
// connection's.
type heldAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap is for http.ResponseController.
func (a *heldAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader keeps the status.
func (a *heldAnswer) WriteHeader(status int) { a.status = status }

// Write keeps the body.
func (a *heldAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }

// send sends the answer, or its headers only before the connection closes.
func (a *heldAnswer) send(cut bool) {
	a.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	a.ResponseWriter.WriteHeader(a.status)
	if cut {
		_ = http.NewResponseController(a.ResponseWriter).Flush() // the client may have gone
		panic(http.ErrAbortHandler)
	}
	_, _ = a.ResponseWriter.Write(a.body.Bytes()) // a client that went away is nobody's error
}

// replace puts another body in place.
func (a *heldAnswer) replace(body []byte) {
	a.body.Reset()
	a.body.Write(body)
}

func (s *Sandbox) spoilBody(ctx context.Context, a *heldAnswer, prefix string) {
	if member, on := s.faults.take(ctx, prefix+"missing"); on {
		var all map[string]jsontext.Value
		if json.Unmarshal(a.body.Bytes(), &all) == nil {
			delete(all, member)
			rest, _ := json.Marshal(all, json.Deterministic(true)) // it was JSON
			a.replace(rest)
		}
	}
	if s.faults.hit(ctx, prefix+"malformed") {
		a.body.Truncate(a.body.Len() / 2)
	}
	if s.faults.hit(ctx, prefix+"garbage") {
		a.Header().Set("Content-Type", "text/html; charset=utf-8")
		a.replace([]byte("<!doctype html><title>It works!</title>\n"))
	}
	if contentType, on := s.faults.take(ctx, prefix+"content-type"); on {
		a.Header().Set("Content-Type", contentType)
	}
	if n, on := s.faults.number(ctx, prefix+"oversize"); on {
		// Ahead of the body: who reads only so much must not find all of it.
		a.replace(append(bytes.Repeat([]byte(" "), n), a.body.Bytes()...))
	}
}

// redirects is how many redirects "many" are.
const redirects = 20

// redirectParam marks, in a query, an address that a redirect of ours leads to:
// proof, KIND and how many there were.
const redirectParam = "redirected"

// redirectProof lets nobody but us make up such an address.
func (s *Sandbox) redirectProof() string { return hashOf("redirect " + s.controlKey)[:16] }

// redirected reads the mark of an address: the KIND and how many there were.
func (s *Sandbox) redirected(r *http.Request) (kind string, n int, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Query().Get(redirectParam), s.redirectProof()+".")
	if !ok {
		return "", 0, false
	}
	kind, digits, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	return kind, n, err == nil
}

// redirect answers with a redirect of the KIND that a fault says. Where one leads to
// the same address or the other origin, the answer is there in the end.
func (s *Sandbox) redirect(w http.ResponseWriter, r *http.Request, fault string) bool {
	kind, n, followed := s.redirected(r)
	switch {
	case followed && kind == "loop", followed && kind == "many" && n < redirects:
	case followed:
		return false
	default:
		var on bool
		if kind, on = s.faults.take(r.Context(), fault); !on {
			return false
		}
	}
	path, query, here := r.URL.EscapedPath(), r.URL.Query(), s.publicURL
	if path == loginPath {
		here = s.brandURL
	}
	query.Set(redirectParam, fmt.Sprintf("%s.%s.%d", s.redirectProof(), kind, n+1))
	marked := path + "?" + query.Encode()
	status, location := http.StatusFound, ""
	if r.Method == http.MethodPost {
		status = http.StatusTemporaryRedirect // a client that follows says it all again
	}
	switch kind {
	case "http":
		location = elsewhereOrigin
		if strings.HasPrefix(s.publicURL, "https:") {
			location = s.publicURL
		}
		location = "http" + strings.TrimPrefix(location, "https") + path
	case "internal":
		location = "https://10.0.0.1" + path
	case "javascript":
		location = "javascript:alert(1)"
	case "loop", "many":
		location = here + marked
	case "no-location":
	case "userinfo":
		u, err := url.Parse(here + marked)
		if err != nil {
			return false // it was an address of ours
		}
		u.User = url.UserPassword("user", "password")
		location = u.String()
	default:
		status, _ = strconv.Atoi(kind) // checkValue did
		location = s.elsewhere("", s.publicURL+marked)
		if here != s.publicURL {
			location = s.publicURL + marked
		}
	}
	_, _ = readBody(w, r) // else the client might not get to read the answer
	if location != "" {
		w.Header().Set("Location", location)
	}
	w.WriteHeader(status)
	return true
}
