package sandbox

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// ControlPath is where, at the Provider, a running sandbox is told which faults it has.
const ControlPath = "/sandbox/faults"

// Control is how a running sandbox is told which faults it has: POST {"specs": […]} to
// URL with Token as bearer token does what [Sandbox.SetFaults] does, and GET
// returns {"active": […], "faults": [{"name", "about"}]}. It prints without the token, and
// encodes as JSON with it: the ready line is there to tell it.
type Control struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// String leaves the token out.
func (c Control) String() string { return c.URL + " [redacted]" }

// GoString leaves the token out.
func (c Control) GoString() string { return c.String() }

// Format leaves the token out, whatever the verb.
func (c Control) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// LogValue leaves the token out.
func (c Control) LogValue() slog.Value { return slog.StringValue(c.String()) }

// controlTimeout bounds a call of SetFaults.
const controlTimeout = 10 * time.Second

// SetFaults tells a running sandbox what [Sandbox.SetFaults] would, and returns
// what is on then. Errors do not hold the token.
func (c Control) SetFaults(ctx context.Context, specs ...string) (active []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	body, err := json.Marshal(map[string][]string{"specs": specs})
	if err != nil {
		return nil, fmt.Errorf("sandbox: faults: a spec is not UTF-8: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("sandbox: control: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", typeJSON)
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("sandbox: control: is it running there? %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("sandbox: control: %w", err)
	}
	var out struct {
		Active  []string `json:"active"`
		Problem string   `json:"error_description"`
	}
	decodes := json.Unmarshal(answer, &out) == nil
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, errors.New("sandbox: control: it does not take the token; each start draws a new one")
	case resp.StatusCode == http.StatusBadRequest && decodes && out.Problem != "":
		return nil, errors.New(out.Problem)
	case resp.StatusCode != http.StatusOK || !decodes || out.Active == nil:
		return nil, fmt.Errorf("sandbox: control: %s is no sandbox's: it answered %d", c.URL, resp.StatusCode)
	}
	return out.Active, nil
}

// control is GET and POST of ControlPath.
func (s *Sandbox) control(w http.ResponseWriter, r *http.Request) {
	token, _, err := bearer(r.Header, "Authorization")
	if err != nil || subtle.ConstantTimeCompare([]byte(token), []byte(s.controlKey)) != 1 {
		w.Header().Set("WWW-Authenticate", `Bearer realm="sandbox"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodPost {
		if refusal := s.controlled(w, r); refusal != nil {
			writeJSON(w, http.StatusBadRequest, typeJSON, refusal)
			return
		}
	}
	writeJSON(w, http.StatusOK, typeJSON, struct {
		Active []string `json:"active"`
		Faults []Fault  `json:"faults"`
	}{s.faults.active(), allFaults})
}

// controlled does what the body of a POST says.
func (s *Sandbox) controlled(w http.ResponseWriter, r *http.Request) *oauthError {
	if mediaType(r.Header.Get("Content-Type")) != typeJSON {
		return oauthFail("invalid_request", "Content-Type must be application/json")
	}
	body, err := readBody(w, r)
	if err != nil {
		return oauthFail("invalid_request", "The body is too large or was cut off")
	}
	var in struct {
		Specs *[]string `json:"specs"`
	}
	if json.Unmarshal(body, &in, json.RejectUnknownMembers(true)) != nil || in.Specs == nil {
		return oauthFail("invalid_request", `The body must be {"specs": ["name", "name=value*N"]}; an empty list clears`)
	}
	if err := s.SetFaults(*in.Specs...); err != nil {
		return oauthFail("invalid_spec", err.Error())
	}
	return nil
}

// Execution is a turn that a brand really carried out: it answered, and asked for
// no step-up. A stored reply that was given again is none.
type Execution struct {
	Brand     string   // the brand's id
	MessageID string   // of the message that ran
	Text      string   // of the message
	Tools     []string // that ran, in order
	Time      time.Time
}

// Bounds of the memory: turns, and bytes of what they hold.
const (
	maxExecutions     = 10_000
	maxExecutionBytes = 8 << 20
)

// executions are the latest turns that ran.
type executions struct {
	mu    sync.Mutex
	list  []Execution
	bytes int // of list
}

// bytes is about what the memory of an execution takes.
func (x *Execution) bytes() int {
	const fixed, header = 128, 16 // of the struct, of a string
	n := fixed + len(x.MessageID) + len(x.Text)
	for _, tool := range x.Tools {
		n += header + len(tool)
	}
	return n
}

func (e *executions) add(brand string, m message, r Reply, at time.Time) {
	// A text may be part of a longer one, which would stay with it.
	x := Execution{Brand: brand, MessageID: m.id, Text: strings.Clone(m.text), Time: at}
	for _, a := range r.Actions {
		x.Tools = append(x.Tools, strings.Clone(a.Tool))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, x)
	if e.bytes += x.bytes(); len(e.list) <= maxExecutions && e.bytes <= maxExecutionBytes {
		return
	}
	forget := 0
	for ; len(e.list)-forget > maxExecutions/2 || e.bytes > maxExecutionBytes/2; forget++ {
		e.bytes -= e.list[forget].bytes()
	}
	e.list = slices.Clone(e.list[forget:])
}

// Executed are the turns that were carried out, in their order. Of very many, the
// oldest are forgotten; the latest 5000 are always there, if they take no more than 4
// MiB.
func (s *Sandbox) Executed() []Execution {
	s.executions.mu.Lock()
	defer s.executions.mu.Unlock()
	return slices.Clone(s.executions.list)
}
