package probe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// verdict is what a check comes to.
type verdict struct {
	outcome        Outcome
	detail, remedy string
}

func passed(format string, args ...any) verdict {
	return verdict{outcome: Passed, detail: fmt.Sprintf(format, args...)}
}

func failed(remedy, format string, args ...any) verdict {
	return verdict{Failed, fmt.Sprintf(format, args...), remedy}
}

func leftOut(format string, args ...any) verdict {
	return verdict{outcome: LeftOut, detail: fmt.Sprintf(format, args...)}
}

// round is one round under way.
type round struct {
	*Probe
	began    time.Time
	answered atomic.Bool

	mu      sync.Mutex
	results []Result
	secrets []string // that were sent

	// What the first checks learn, for those after them.
	unknown string   // why the caller's calls are of no use; empty: they are of use
	unwell  string   // why sign tells nothing of what is refused; empty: it does
	subject string   // the caller's
	listed  []string // audiences that status lists
	covered bool     // by the kill switch, or everything is
	sent    time.Time
	request signRequest
	proof   string // the authorization of a sign that was answered 200
	signed  []byte // its answer
	apart   string // how far its clock is from ours, if that is too far
	kid     string // that signed the token, once that verified
}

// Round makes every check once. It ends within a few times Timeout, or Settle and
// that if key sets disagree. If ctx ends meanwhile the report is of no use.
func (p *Probe) Round(ctx context.Context) Report {
	r := &round{Probe: p, began: p.cfg.Now(), subject: p.subject}
	start := time.Now()
	if p.cfg.Device != nil {
		r.timed(CheckEnroll, func() verdict { return r.enroll(ctx) })
	}
	r.timed(CheckStatus, func() verdict { return r.status(ctx) })
	r.timed(CheckSign, func() verdict { return r.sign(ctx) })
	r.check(CheckVerify, func() verdict { return r.verify(ctx) })
	for _, t := range p.grpc {
		r.timed(CheckSignGRPC, func() verdict { return r.signGRPC(ctx, t) })
	}
	var others sync.WaitGroup
	others.Go(func() { r.keySets(ctx) })
	for _, c := range r.refusals() {
		if old, ok := r.stands(c.name); ok {
			r.add(old)
			continue
		}
		others.Go(func() { r.check(c.name, func() verdict { return c.run(ctx) }) })
	}
	others.Wait()

	order := Checks()
	slices.SortFunc(r.results, func(a, b Result) int {
		return slices.Index(order, a.Check) - slices.Index(order, b.Check)
	})
	if p.subject == "" {
		p.subject = r.subject
	}
	for _, c := range r.results {
		p.last[c.Check] = c
	}
	return Report{Issuer: p.cfg.Issuer, At: r.began, Took: time.Since(start), Checks: r.results, Answered: r.answered.Load()}
}

// check makes a check and keeps its result.
func (r *round) check(name string, run func() verdict) {
	at, start := r.cfg.Now(), time.Now()
	v := run()
	r.keep(name, at, time.Since(start), v)
}

// timed makes a check that must be quick.
func (r *round) timed(name string, run func() verdict) {
	at, start := r.cfg.Now(), time.Now()
	v := run()
	took := time.Since(start)
	if v.outcome == Passed && took > r.cfg.Deadline {
		v = failed("The signer is slow: see its latency, Vault's and the store's.", "it worked, but took %v, and %v is the deadline", took.Round(time.Millisecond), r.cfg.Deadline)
	}
	r.keep(name, at, took, v)
}

// maxDetail bounds what is said of a check. What two key sets hold fits in.
const maxDetail = 1500

// keep keeps a result. What answered may be anybody and have sent back what it was
// asked, or more than anybody reads.
func (r *round) keep(name string, at time.Time, took time.Duration, v verdict) {
	r.mu.Lock()
	for _, s := range r.secrets {
		v.detail = strings.ReplaceAll(v.detail, s, "[redacted]")
	}
	r.mu.Unlock()
	if len(v.detail) > maxDetail {
		v.detail = strings.ToValidUTF8(v.detail[:maxDetail], "") + "…"
	}
	r.add(Result{name, v.outcome, at, took, v.detail, v.remedy})
}

// secret notes an authorization that is sent and is not to be repeated.
func (r *round) secret(authorization string) {
	_, s, _ := strings.Cut(authorization, " ")
	if len(s) < 8 { // no secret, and may be part of a word
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, s)
}

func (r *round) add(c Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, c)
}

// stands returns the result of an earlier round that still stands: of a refusal that
// the signer writes to its audit log, as long as the signer works.
func (r *round) stands(name string) (Result, bool) {
	old := r.last[name]
	_, useless := r.useless()
	fresh := !useless && old.Outcome == Passed && r.began.Sub(old.At).Abs() < r.cfg.AuditedEvery
	switch name {
	case CheckUnregistered:
		return old, fresh
	case CheckKilled:
		return old, fresh && !slices.Contains(r.listed, r.cfg.KilledAudience)
	}
	return old, false
}
