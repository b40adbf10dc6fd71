package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// call is one request. Without a token or a contentType, the header is not sent.
type call struct {
	method, url string
	token       string // PA-JWT
	delegation  string // delegation token
	contentType string
	header      http.Header // set over the others; a nil value takes a header away
	body        []byte
}

// answer is what came back.
type answer struct {
	asked  string // method and path, for findings
	status int
	header http.Header
	body   []byte
}

const (
	maxAnswer  = 512 << 10 // bytes; the most that agents read of anything
	maxRetries = 2         // of a request after a 429
	maxGivenUp = 2         // requests in a row that got nothing but 429
	maxWaited  = 2 * time.Minute
)

// busyError is a request that was answered 429 for as long as the suite waits. How
// often one may call is open, so it is why a check cannot be done, unless the check
// insists.
type busyError struct{ notRunError }

func (e *busyError) Unwrap() error { return errNotRun }

func busy(format string, args ...any) error {
	return &busyError{notRunError{fmt.Sprintf(format, args...)}}
}

// seconds is Retry-After as delay-seconds; else it is a date (RFC 9110 section 10.2.3).
var seconds = regexp.MustCompile(`^[0-9]{1,9}$`)

// do makes a request and reads the answer. Redirects are not followed. After a 429
// it waits as the Provider says and asks again, twice at most, and in a whole run for
// maxWaited; then it is a *busyError. An answer that does not come in time, or is too
// long, is an error.
func (r *run) do(ctx context.Context, c call) (*answer, error) {
	asked := c.method + " " + r.short(c.url)
	if r.givenUp(asked) {
		return nil, busy("%s: nothing but 429 before", asked)
	}
	for retries := 0; ; retries++ {
		a, err := r.once(ctx, c)
		if err != nil || a.status != http.StatusTooManyRequests {
			r.through(asked, true)
			return a, err
		}
		wait, err := r.retryAfter(a, retries)
		if err != nil {
			r.through(asked, false)
			return nil, err
		}
		if err := r.cfg.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// givenUp tells whether a route answers nothing but 429.
func (r *run) givenUp(asked string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaveUp[asked] >= maxGivenUp
}

// through notes that a request got another answer than 429, or none but that.
func (r *run) through(asked string, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gaveUp == nil {
		r.gaveUp = map[string]int{}
	}
	if r.gaveUp[asked]++; yes {
		r.gaveUp[asked] = 0
	}
}

// retryAfter is how long a 429 says to wait, if that is still to be waited. A date is
// taken by the suite's clock.
func (r *run) retryAfter(a *answer, retries int) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tooMany++
	wait, ok := r.delay(a.header.Get("Retry-After"))
	switch {
	case !ok:
		r.unsaid = fmt.Errorf("%s: 429 with Retry-After %q: must be seconds or a date to come back after", a.asked, clip(a.header.Get("Retry-After")))
		return 0, busy("%v", r.unsaid)
	case retries == maxRetries:
		return 0, busy("%s: still 429 after %d waits of the Retry-After", a.asked, retries)
	case wait > maxWait:
		return 0, busy("%s: 429 with a Retry-After of %v: the suite waits %v at most; let it through", a.asked, wait, maxWait)
	case r.waited+wait > maxWaited:
		return 0, busy("%s: 429, and the suite waited %v after those before, of %v at most in all; let it through", a.asked, r.waited, maxWaited)
	}
	r.waited += wait
	return wait, nil
}

// delay reads a Retry-After.
func (r *run) delay(after string) (time.Duration, bool) {
	if seconds.MatchString(after) {
		n, _ := strconv.Atoi(after) // digits, few
		return time.Duration(n) * time.Second, true
	}
	date, err := http.ParseTime(after)
	return max(0, date.Sub(r.now())), err == nil
}

// once makes one request.
func (r *run) once(ctx context.Context, c call) (*answer, error) {
	if err := r.silent(); err != nil {
		return nil, err
	}
	asked := c.method + " " + r.short(c.url)
	within, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(within, c.method, c.url, bytes.NewReader(c.body))
	if err != nil {
		return nil, fmt.Errorf("%s: not a URL that can be asked", asked)
	}
	req.Header.Set("User-Agent", "pact-conformance")
	req.Header.Set("Accept", "application/json")
	set := func(name, value string) {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	set("Content-Type", c.contentType)
	if c.token != "" {
		set("Authorization", "Bearer "+c.token)
	}
	if c.delegation != "" {
		set("X-A2A-User-Delegation", "Bearer "+c.delegation)
	}
	for name, values := range c.header {
		if len(values) == 0 {
			req.Header.Del(name)
			continue
		}
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, r.unanswered(ctx, asked, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, r.unanswered(ctx, asked, err)
	}
	r.answered(true)
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("%s: %d with more than %d KiB, which no agent reads", asked, resp.StatusCode, maxAnswer>>10)
	}
	return &answer{asked: asked, status: resp.StatusCode, header: resp.Header, body: body}, nil
}

// unanswered is the error of a request that got no whole answer.
func (r *run) unanswered(ctx context.Context, asked string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err() // the run ends
	}
	if near := tooNear(err); near != nil {
		return near
	}
	r.answered(false)
	var detail *url.Error
	if errors.As(err, &detail) {
		err = detail.Err // without the URL, which may hold a code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: not answered within %v", asked, r.cfg.Timeout)
	}
	return fmt.Errorf("%s: no answer: %w", asked, err)
}

// short is a URL as findings name it: what follows the interface URL, or the path,
// and the host if it is another one than the cards'; no query.
func (r *run) short(raw string) string {
	for _, c := range r.cards {
		if rest, ok := strings.CutPrefix(raw, c.interfaceURL+"/"); ok && c.interfaceURL != "" {
			path, _, _ := strings.Cut(rest, "?")
			return path
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "(bad URL)"
	}
	if u.Host == "" {
		return "(no absolute URL)"
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// form posts a form with a PA-JWT, as every OAuth call is made.
func (r *run) form(ctx context.Context, address, token string, values url.Values) (*answer, error) {
	return r.do(ctx, call{
		method: http.MethodPost, url: address, token: token,
		contentType: "application/x-www-form-urlencoded", body: []byte(values.Encode()),
	})
}

// mediaType is the answer's Content-Type without parameters, in lower case.
func (a *answer) mediaType() string {
	t, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// object decodes the body, which must be one JSON object. The error quotes nothing.
func (a *answer) object(into any) error {
	if jsontext.Value(a.body).Kind() != '{' || json.Unmarshal(a.body, into) != nil {
		return fmt.Errorf("%s: %s: the body is not a JSON object of the right members", a.asked, a.summary())
	}
	return nil
}

// summary says what an answer is, without its texts.
func (a *answer) summary() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d", a.status)
	switch kind := a.kind(); {
	case a.header.Get("Location") != "":
		s.WriteString(" to another address")
	case kind != "":
		s.WriteString(" " + kind)
	case len(bytes.TrimSpace(a.body)) > 0:
		fmt.Fprintf(&s, " with %d bytes", len(a.body))
		if t := a.mediaType(); t != "" {
			fmt.Fprintf(&s, " of %s", clip(t))
		}
	}
	return s.String()
}

// kind is what a body is in words of the protocol; empty if it is none of that.
func (a *answer) kind() string {
	var body struct {
		Error   jsontext.Value `json:"error"`
		Message jsontext.Value `json:"message"`
		Task    *struct {
			Status struct {
				State string `json:"state"`
			} `json:"status"`
		} `json:"task"`
	}
	if json.Unmarshal(a.body, &body) != nil {
		return ""
	}
	switch {
	case body.Error.Kind() == '"':
		var code string
		_ = json.Unmarshal(body.Error, &code) // it is a string
		return clip(code)
	case body.Error.Kind() == '{':
		var e a2aError
		_ = json.Unmarshal(body.Error, &e) // what is there
		if reason := e.reason(); reason != "" {
			return clip(reason)
		}
		return "with an error that has no reason"
	case body.Message.Kind() == '{':
		return "with a message"
	case body.Task != nil:
		return "with a task of " + clip(body.Task.Status.State)
	}
	return ""
}

// clip shortens what a Provider says, for findings.
func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
