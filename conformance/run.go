package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// errNotRun: a check could not be done; the text says why.
var errNotRun = errors.New("not run")

// notRunError wraps errNotRun with nothing but the reason as its text.
type notRunError struct{ reason string }

func (e *notRunError) Error() string { return e.reason }
func (e *notRunError) Unwrap() error { return errNotRun }

// notRun is why a check cannot be done.
func notRun(format string, args ...any) error { return &notRunError{fmt.Sprintf(format, args...)} }

// maxSilence is how many requests in a row may stay without an answer.
const maxSilence = 3

// run is one run of the suite: whom it checks, as whom, and what it found out.
// What several checks need is made when the first one asks for it.
type run struct {
	cfg     Config
	client  *http.Client
	issuers [2]*issuer
	// subject and stranger are two users of each issuer.
	subject, stranger string

	mu      sync.Mutex     // guards those that follow: a check may ask several things at once
	silence int            // requests in a row without an answer
	tooMany int            // answers 429
	unsaid  error          // a 429 without a Retry-After
	waited  time.Duration  // after answers 429, in all
	gaveUp  map[string]int // by method and path: requests in a row that got nothing but 429

	remarks  []string // of the check that runs
	loaded   bool
	cards    []*card
	leftOut  []*card   // of which nothing is checked
	admitted [2]*error // whether an issuer's good token is taken: nil until known

	delegatedState // what the sections of the profile Delegated share
}

func newRun(cfg Config) (*run, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	if !cfg.Development {
		limit(transport, cfg.Cards)
	}
	r := &run{
		cfg: cfg,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		subject:  "user-" + newID(),
		stranger: "user-" + newID(),
	}
	for i, endpoint := range cfg.Issuers {
		var err error
		if r.issuers[i], err = openIssuer(i, endpoint); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

func (r *run) close() {
	for _, i := range r.issuers {
		if i != nil {
			i.close()
		}
	}
	r.client.CloseIdleConnections()
}

// result does one check.
func (r *run) result(ctx context.Context, c check) Result {
	started := r.cfg.Now()
	r.remarks = nil
	err := r.perform(ctx, c)
	result := Result{Check: c.Check, Status: Passed, Detail: strings.Join(r.remarks, "\n"), Took: r.cfg.Now().Sub(started)}
	switch {
	case errors.Is(err, errNotRun):
		result.Status, result.Detail = NotRun, err.Error()
	case err != nil:
		result.Status, result.Detail = Failed, err.Error()
	}
	return result
}

func (r *run) perform(ctx context.Context, c check) error {
	if err := r.silent(); err != nil {
		return err
	}
	return c.do(ctx, r)
}

// insist makes a check fail that got nothing but 429: how often one may call is the
// Provider's to say, but one call, made as slowly as it says, must get through.
func insist(do func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		err := do(ctx, r)
		var busy *busyError
		if errors.As(err, &busy) {
			return errors.New(busy.reason)
		}
		return err
	}
}

// silent is why nothing more is asked, once a Provider stopped answering.
func (r *run) silent() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silence >= maxSilence {
		return notRun("%d requests in a row were not answered", maxSilence)
	}
	return nil
}

// answered notes that a request was answered or not.
func (r *run) answered(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silence++; yes {
		r.silence = 0
	}
}

// remark adds something worth knowing to the result of the check that runs.
func (r *run) remark(format string, args ...any) {
	r.remarks = append(r.remarks, fmt.Sprintf(format, args...))
}

// now is the time in whole seconds, as JWTs state it.
func (r *run) now() time.Time { return r.cfg.Now().Truncate(time.Second) }

// maxWait bounds every single wait of a check that is not slow.
const maxWait = 60 * time.Second

// sleep waits, at most maxWait.
func (r *run) sleep(ctx context.Context, d time.Duration) error {
	if d > maxWait {
		return notRun("it would have to wait %v, and waits %v at most", d, maxWait)
	}
	return r.cfg.Sleep(ctx, d)
}

// newID is unique and says nothing.
func newID() string { return strings.ToLower(rand.Text()[:20]) }

// newUUID is a messageId as agents make them.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// findings collect what is wrong in the cases of one check.
type findings struct {
	lines   []string
	reached error // why a case could not be done
}

// add notes what is wrong in a case, if anything.
func (f *findings) add(what string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, errNotRun):
		f.reached = cmp.Or(f.reached, err)
	case what == "":
		f.note(err.Error())
	default:
		f.note(what + ": " + err.Error())
	}
}

// note adds what is not there yet.
func (f *findings) note(line string) {
	if !slices.Contains(f.lines, line) {
		f.lines = append(f.lines, line)
	}
}

// maxLines is how many findings a result tells.
const maxLines = 5

// err is nil if nothing was found.
func (f *findings) err() error {
	if len(f.lines) == 0 {
		return f.reached
	}
	lines := f.lines
	if more := len(lines) - maxLines; more > 0 {
		lines = append(lines[:maxLines:maxLines], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}
