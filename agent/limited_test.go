package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// limited has the business limit requests (429) but for the first, which is the
// introduction, until it is opened. n counts them.
func (w *world) limited(after string) (n *atomic.Int64, open func()) {
	n = new(atomic.Int64)
	var opened atomic.Bool
	w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
		if n.Add(1) == 1 || opened.Load() {
			return false
		}
		rw.Header().Set("Retry-After", after)
		rw.WriteHeader(429)
		return true
	})
	return n, func() { opened.Store(true) }
}

// AP-1, AP-3, CV-10: while the business limits requests what was approved is not sent: it can
// be denied, and is taken back with what it was approved by; then it goes out neither after the
// wait nor later by what tends the profile. So it is if that happens while the attempt that is
// not taken is on its way.
func TestTakenBackWhileLimited(t *testing.T) {
	for _, what := range []string{"denied", "revoked", "revoked, and so ended",
		"denied during the attempt", "revoked during the attempt", "revoked during the attempt, and so ended"} {
		during, denied, ends := strings.Contains(what, "during"), strings.HasPrefix(what, "denied"), strings.HasSuffix(what, "ended")
		for _, opens := range []time.Duration{30 * time.Second, 10 * time.Minute} { // before its retries are over, and after
			t.Run(fmt.Sprint(what, " ", opens), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					p := w.ask(a, inAssistant("a"), cancelX1)
					n, open := w.limited("60")
					b := w.open()
					w.around(provider, message, func(_ http.ResponseWriter, _ *http.Request, next func()) {
						switch {
						case !during || n.Load() != 1:
						case denied:
							r := w.decide(b, owner(), p, false, agent.StatusBlocked, agent.ReasonApprovalOver)
							if !strings.Contains(r.Detail, "is on its way") {
								t.Errorf("denied: %s", r.Detail)
							}
						default:
							if taken := w.takeBack("token ops"); taken != 0 {
								t.Errorf("took back %d", taken)
							}
						}
						next()
					})
					w.tend(w.open(), agent.Tending{Caller: owner()})
					ctx, end := context.WithCancelCause(t.Context())
					defer end(nil)
					var deciding sync.WaitGroup
					deciding.Go(func() {
						r, err := a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
						want := agent.StatusApprovalRequired
						switch {
						case denied:
							want = agent.StatusDenied
						case ends:
							want = agent.StatusCancelled
						}
						if err != nil || r.Status != want {
							t.Errorf("%+v, %v", r, err)
						}
					})
					time.Sleep(20 * time.Second)
					state := agent.ApprovalApproved
					switch {
					case during && denied:
						state = agent.ApprovalDenied
					case during:
						state = agent.ApprovalPending
					}
					if v := w.approval(b, p.ID, state); n.Load() != 2 || v.SentMessage != "" {
						t.Errorf("after %d requests %+v", n.Load(), v)
					}
					w.want(`SELECT state FROM messages WHERE data ->> 'Text' = 'Cancel booking X1'`, "prepared")
					switch {
					case denied:
						w.decide(b, owner(), p, false, agent.StatusDone, "")
					case !during:
						if taken := w.takeBack("token ops"); taken != 1 {
							t.Errorf("took back %d", taken)
						}
					}
					if ends {
						end(fmt.Errorf("the token is over: %w", agent.ErrStopping))
					}
					time.Sleep(opens)
					open()
					deciding.Wait()
					time.Sleep(10 * time.Minute)
					if c := len(w.changed()); c != 0 {
						t.Errorf("%d turns", c)
					}
					if denied {
						if v := w.approval(b, p.ID, agent.ApprovalDenied); v.DecidedBy != "owner" || v.Reason != agent.ReasonApprovalDenied {
							t.Errorf("%+v", v)
						}
						return
					}
					w.approvedAnew(b, p)
				})
			})
		}
	}
}

// AP-1, AP-3, SG-9: so it is between a token that the business refuses and the next, and while
// it is refused.
func TestTakenBackAtANewToken(t *testing.T) {
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint(during), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), cancelX1)
				n, taken, want := 0, -1, 1
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					if n++; n == 2 {
						if during {
							taken, want = w.takeBack("token ops"), 0
						}
						rw.WriteHeader(401)
					}
					return n == 2
				})
				w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
					if next(); n == 2 && !during {
						taken = w.takeBack("token ops")
					}
				})
				w.decide(a, ops(), p, true, agent.StatusApprovalRequired, agent.ReasonApproverRevoked)
				if taken != want || n != 2 {
					t.Errorf("took back %d, %d requests", taken, n)
				}
				w.approvedAnew(a, p)
			})
		})
	}
}

// AP-1, AP-3, CV-10: and at the last attempt that the business does not take, by who tends the
// profile too.
func TestTakenBackAtTheLastAttempt(t *testing.T) {
	for _, tended := range []bool{false, true} {
		t.Run(fmt.Sprint(tended), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				asked, status, reason := cancelX1, agent.StatusFailed, string(egress.RateLimited)
				if tended {
					asked, status, reason = cancelWithPermission, agent.StatusNeedsUserAction, agent.ReasonSignInPending
				}
				p := w.ask(a, inAssistant("a"), asked)
				n, open := w.limited("20")
				w.around(provider, message, func(_ http.ResponseWriter, _ *http.Request, next func()) {
					if n.Load() == 4 {
						if taken := w.takeBack("token ops"); taken != 0 {
							t.Errorf("took back %d", taken)
						}
					}
					next()
				})
				w.decide(a, ops(), p, true, status, reason)
				stop := w.tend(w.open(), agent.Tending{})
				w.biz.allow("trips:cancel")
				time.Sleep(20 * time.Minute)
				stop()
				if n := n.Load(); n != 5 {
					t.Errorf("%d requests", n)
				}
				open()
				w.approvedAnew(a, p)
			})
		})
	}
}

// AP-1, AP-3: of what is on its way it is not told that it was denied or taken back, and if the
// business takes it, or nobody knows, it has been sent.
func TestTakenBackOnItsWay(t *testing.T) {
	for name, c := range map[string]struct {
		answer int
		status agent.Status
		reason agent.Reason
	}{
		"taken":   {200, agent.StatusReplied, ""},
		"unknown": {503, agent.StatusUnknown, "http_503"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				b := w.open()
				p := w.ask(a, inAssistant("a"), cancelX1)
				n := 0
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					if n++; n == 1 {
						return false
					}
					w.decide(b, owner(), p, false, agent.StatusBlocked, agent.ReasonApprovalOver)
					w.decide(b, owner(), p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
					if taken := w.takeBack("token ops"); taken != 0 {
						t.Errorf("took back %d", taken)
					}
					if c.answer != 200 {
						rw.WriteHeader(c.answer)
					}
					return c.answer != 200
				})
				w.decide(a, ops(), p, true, c.status, c.reason)
				w.tend(b, agent.Tending{})
				time.Sleep(20 * time.Minute)
				if v := w.approval(b, p.ID, agent.ApprovalSent); v.DecidedBy != "token ops" || v.Reason != "" || n != 2 {
					t.Errorf("%+v after %d requests", v, n)
				}
				if r := w.decide(b, owner(), p, false, agent.StatusBlocked, agent.ReasonApprovalOver); !strings.Contains(r.Detail, "was used") {
					t.Errorf("denied: %s", r.Detail)
				}
			})
		})
	}
}

// AP-1: what is denied while it is on its way is denied if the business refuses it, or
// asks for a permission: nothing ran.
func TestDeniedOnItsWay(t *testing.T) {
	for name, answer := range map[string]func(w *world, rw http.ResponseWriter, next func()){
		"malformed": func(_ *world, rw http.ResponseWriter, _ func()) { rw.WriteHeader(400) },
		"forbidden": func(_ *world, rw http.ResponseWriter, _ func()) { rw.WriteHeader(403) },
		"step-up": func(w *world, _ http.ResponseWriter, next func()) {
			normal := w.biz.answer
			w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return 200, stepUp("ctx-1", "trips:cancel") } })
			next()
			w.biz.set(func(b *business) { b.answer = normal })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				b := w.open()
				p := w.ask(a, inAssistant("a"), cancelX1)
				var n atomic.Int64
				w.around(provider, message, func(rw http.ResponseWriter, _ *http.Request, next func()) {
					if n.Add(1) != 2 {
						next()
						return
					}
					w.decide(b, owner(), p, false, agent.StatusBlocked, agent.ReasonApprovalOver)
					answer(w, rw, next)
				})
				r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				if err != nil || name == "step-up" && (r.Status != agent.StatusDenied || r.Reason != agent.ReasonApprovalDenied) {
					t.Errorf("%+v, %v", r, err)
				}
				w.tend(b, agent.Tending{})
				time.Sleep(20 * time.Minute)
				if v := w.approval(b, p.ID, agent.ApprovalDenied); v.DecidedBy != "owner" || v.SentMessage != "" || v.Next != "" || n.Load() != 2 {
					t.Errorf("%+v after %d requests", v, n.Load())
				}
				if list, err := b.Approvals(t.Context(), owner(), true); err != nil || len(list) != 1 {
					t.Errorf("%+v, %v", list, err)
				}
			})
		})
	}
}

// RS-2, AP-1: a program that dies while the business limits requests leaves what is not sent:
// the next one sends it, once.
func TestDiedWhileLimited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		n, open := w.limited("60")
		var dead sync.WaitGroup
		dead.Go(func() {
			r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
			if err == nil && r.Status == agent.StatusReplied {
				t.Errorf("the dead one: %+v", r)
			}
		})
		time.Sleep(20 * time.Second)
		if n := n.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		w.dies()
		b := w.open()
		w.approval(b, p.ID, agent.ApprovalApproved)
		w.want(`SELECT state FROM messages WHERE data ->> 'Text' = 'Cancel booking X1'`, "cancelled")
		open()
		w.tend(b, agent.Tending{})
		dead.Wait()
		time.Sleep(time.Hour)
		w.approval(b, p.ID, agent.ApprovalSent)
		if n := len(w.changed()); n != 1 {
			t.Errorf("%d turns", n)
		}
	})
}

// AP-1, CV-11: what was approved stays so where the business closed its context and is away
// when a fresh one is begun.
func TestClosedAndAway(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint(leaves), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				n, away := 0, true
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					switch n++; {
					case n == 1 || !away:
						return false
					case n == 2:
						respond(rw, 400, a2aError(400, "UNSUPPORTED_OPERATION", "closed"))
						return true
					case leaves:
						leave()
					}
					rw.WriteHeader(503)
					return true
				})
				p := w.ask(a, inAssistant("a"), cancelX1)
				state, turns := agent.ApprovalApproved, 1
				if leaves {
					state, turns = agent.ApprovalPending, 0
				}
				r, err := a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				if err != nil || r.Approval == nil || r.Approval.State != state || n < 3 {
					t.Errorf("%+v, %v after %d requests", r, err, n)
				}
				if v := w.approval(a, p.ID, state); v.SentMessage != "" {
					t.Errorf("%+v", v)
				}
				away = false
				w.tend(a, agent.Tending{})
				time.Sleep(20 * time.Minute)
				if n := len(w.changed()); n != turns {
					t.Errorf("%d turns", n)
				}
			})
		})
	}
}

// AP-5: what was approved and is about to be sent is not confirmed a second time.
func TestConfirmedWhileTended(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		var n atomic.Int64
		w.intercept(provider, message, func(http.ResponseWriter, *http.Request) bool {
			if n.Add(1) == 1 { // the introduction
				time.Sleep(90 * time.Second)
			}
			return false
		})
		time.Sleep(6 * time.Minute) // no token is cached
		w.signer.set(func(s *signerStandIn) { s.fail = 503 })
		w.decide(a, ops(), p, true, agent.StatusBlocked, agent.ReasonSignerUnavailable)
		w.signer.set(func(s *signerStandIn) { s.fail = 0 })
		w.tend(w.open(), agent.Tending{Caller: owner()})
		time.Sleep(30 * time.Second)
		if n := n.Load(); n != 1 {
			t.Fatalf("%d requests", n)
		}
		c := owner()
		c.Confirmed = true
		if r := w.send(a, c, cancelX1, agent.StatusBlocked, agent.ReasonBusy); r.Approval == nil || r.Approval.ID != p.ID {
			t.Errorf("%+v", r)
		}
		time.Sleep(10 * time.Minute)
		w.approval(a, p.ID, agent.ApprovalSent)
		if n := len(w.changed()); n != 1 {
			t.Errorf("%d turns", n)
		}
	})
}

// stepped is a Store after each of whose writes something happens.
type stepped struct {
	agent.Store
	then *atomic.Pointer[func()]
}

func (s stepped) Update(ctx context.Context, fn func(agent.Tx) error) error {
	err := s.Store.Update(ctx, fn)
	if then := s.then.Load(); then != nil {
		(*then)()
	}
	return err
}

func (w *world) openStepped(then *atomic.Pointer[func()]) *agent.Agent {
	w.t.Helper()
	return w.openOn(func(s agent.Store) agent.Store { return stepped{s, then} })
}

// openOn opens the profile on another store over its own.
func (w *world) openOn(over func(agent.Store) agent.Store) *agent.Agent {
	w.t.Helper()
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = store.Close() })
	cfg := w.config
	cfg.Dir, cfg.Store = w.dir, over(store)
	cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
	a, err := agent.Open(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(a.Close)
	return a
}

// AP-1, CV-16: who leaves takes their word back, though their turn took longer than a lease and
// the disk is slow: nothing takes it up between the turn's end and the approval's.
func TestLeftOnASlowDisk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.enrolled().Close()
		var then atomic.Pointer[func()]
		a := w.openStepped(&then)
		p := w.ask(a, inAssistant("a"), cancelX1)
		var n atomic.Int64
		var open atomic.Bool
		w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
			if n.Add(1); !open.Load() {
				rw.Header().Set("Retry-After", "120")
				rw.WriteHeader(429)
			}
			return !open.Load()
		})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var deciding sync.WaitGroup
		deciding.Go(func() {
			r, err := a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
			if err != nil || r.Status != agent.StatusCancelled || r.Approval == nil || r.Approval.State != agent.ApprovalPending {
				t.Errorf("%+v, %v", r, err)
			}
		})
		time.Sleep(210 * time.Second)
		w.tend(w.open(), agent.Tending{Caller: owner()})
		time.Sleep(10 * time.Second)
		if n := n.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		open.Store(true)
		slow := func() { time.Sleep(3 * time.Second) }
		then.Store(&slow)
		leave()
		deciding.Wait()
		then.Store(nil)
		time.Sleep(10 * time.Minute)
		w.approval(a, p.ID, agent.ApprovalPending)
		if n := len(w.changed()); n != 0 {
			t.Errorf("%d turns", n)
		}
	})
}

// AP-1, CV-16: who leaves when another one has taken it up already is not told that it is
// cancelled.
func TestLeftAfterAnotherTookIt(t *testing.T) {
	for _, introduced := range []time.Duration{0, 5 * time.Minute} { // how long the other takes
		t.Run(introduced.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), cancelX1)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				other := w.open()
				var asked, sent atomic.Bool
				w.around(signerURL, "/pact/status", func(_ http.ResponseWriter, _ *http.Request, next func()) {
					if asked.CompareAndSwap(false, true) {
						w.tend(other, agent.Tending{Caller: owner()})
						time.Sleep(4 * time.Minute)
						leave()
					}
					next()
				})
				w.intercept(provider, message, func(http.ResponseWriter, *http.Request) bool {
					if sent.CompareAndSwap(false, true) {
						time.Sleep(introduced)
					}
					return false
				})
				time.Sleep(6 * time.Minute) // what is cached is old
				r, err := a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				want := agent.StatusBlocked
				if introduced > 0 {
					want = agent.StatusApprovalRequired
				}
				if err != nil || r.Status != want {
					t.Errorf("%+v, %v", r, err)
				}
				time.Sleep(10 * time.Minute)
				w.approval(a, p.ID, agent.ApprovalSent)
				if n := len(w.changed()); n != 1 {
					t.Errorf("%d turns", n)
				}
			})
		})
	}
}

// AP-1, AP-3: what is approved anew in the last moment of the operation that it was taken back
// from stays approved, and is sent.
func TestApprovedAnewAtTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.enrolled().Close()
		var then atomic.Pointer[func()]
		a := w.openStepped(&then)
		b := w.open()
		p := w.ask(a, inAssistant("a"), cancelX1)
		n, anew := 0, false
		w.around(provider, "/message:send", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			if next(); n == 0 {
				w.takeBack("token ops")
				last := func() {
					v, err := b.Conversation(t.Context(), owner(), p.Conversation)
					if !anew && err == nil && v.State == "awaiting_local_authority" { // what comes is the approval
						anew = true
						w.decide(b, owner(), p, true, agent.StatusDone, "")
					}
				}
				then.Store(&last)
			}
			n++
		})
		r := w.decide(a, ops(), p, true, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if then.Store(nil); !anew || !strings.Contains(r.Detail, "approved and is not sent yet") {
			t.Errorf("approved anew %v: %+v", anew, r)
		}
		w.tend(b, agent.Tending{})
		time.Sleep(time.Minute)
		if v := w.approval(b, p.ID, agent.ApprovalSent); v.DecidedBy != "owner" || len(w.changed()) != 1 {
			t.Errorf("%+v after %d turns", v, len(w.changed()))
		}
	})
}

// CV-16: of a message that went out and was not taken it is not told that it was not sent.
func TestNotTakenIsNotUnsent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		n := 0
		w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
			if n++; n == 2 {
				leave()
				rw.WriteHeader(401)
			}
			return n == 2
		})
		c := w.person()
		c.Confirmed = true
		r, err := a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: cancelX1.Message, Effect: "change"})
		if err != nil || r.Status != agent.StatusCancelled || r.Detail != "nothing was carried out" || n != 2 {
			t.Errorf("%+v, %v after %d requests", r, err, n)
		}
	})
}

// AP-1, AP-3, CV-15: so it is where the business is asked what became of a message: that stays of
// unknown outcome, and who may give the word no more has it asked no more.
func TestReconcileTakenBackWhileLimited(t *testing.T) {
	for _, when := range []string{"waiting", "waiting, and so ended", "during the attempt"} {
		t.Run(when, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				during, ended := strings.HasPrefix(when, "during"), strings.HasSuffix(when, "ended")
				w := newWorld(t)
				a, sent, _ := lost(w, cancelTrip)
				r, err := a.Reconcile(t.Context(), asked(), agent.ReconcileRequest{Conversation: sent.Conversation})
				if err != nil || r.Approval == nil {
					t.Fatalf("%+v, %v", r, err)
				}
				p := *r.Approval
				n := 0
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					if n++; n == 1 {
						if during {
							w.takeBack("token ops")
						}
						rw.Header().Set("Retry-After", "60")
						rw.WriteHeader(429)
					}
					return n == 1
				})
				w.tend(w.open(), agent.Tending{Caller: owner()})
				ctx, end := context.WithCancelCause(t.Context())
				defer end(nil)
				var deciding sync.WaitGroup
				deciding.Go(func() {
					r, err := a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
					if err != nil || r.Status != agent.StatusUnknown {
						t.Errorf("%+v, %v", r, err)
					}
				})
				time.Sleep(20 * time.Second)
				if taken := w.takeBack("token ops"); (taken == 1) == during {
					t.Errorf("took back %d", taken)
				}
				if ended {
					end(fmt.Errorf("the token is over: %w", agent.ErrStopping))
				}
				deciding.Wait()
				time.Sleep(10 * time.Minute)
				if v := w.approval(a, p.ID, agent.ApprovalPending); n != 1 || v.Reason != agent.ReasonApproverRevoked {
					t.Errorf("%+v after %d requests", v, n)
				}
				w.decide(a, owner(), p, true, agent.StatusReplied, "")
			})
		})
	}
}

// CV-2, CV-10: the start of a sign-in may be limited for longer than a turn's lease: the turn
// stays its own, and that of who waits for the same sign-in, and nothing else sends what they
// were about to.
func TestLimitedStart(t *testing.T) {
	for _, who := range []string{"one", "tended", "two"} {
		t.Run(who, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				var n atomic.Int64
				w.intercept(provider, "/oauth/device", func(rw http.ResponseWriter, _ *http.Request) bool {
					limits := n.Add(1) <= 3
					if limits {
						rw.Header().Set("Retry-After", "120")
						rw.WriteHeader(429)
					}
					return limits
				})
				b := w.open()
				if who == "tended" {
					w.tend(b, agent.Tending{})
				}
				asked, turns := cancelWithPermission, 1
				if who == "two" {
					asked, turns = readTrips, 2
				}
				var sending sync.WaitGroup
				for range turns {
					sending.Go(func() { w.send(a, w.person(), asked, agent.StatusReplied, "") })
				}
				time.Sleep(5 * time.Minute)
				under, err := b.Conversations(t.Context(), owner())
				if err != nil || len(under) != turns {
					t.Errorf("%+v, %v", under, err)
				}
				for _, c := range under {
					w.send(b, owner(), agent.SendRequest{Message: "Show my trips", Conversation: c.ID}, agent.StatusBlocked, agent.ReasonBusy)
				}
				sending.Wait()
				if n := n.Load(); n != 4 || len(w.changed()) != turns {
					t.Errorf("%d starts, %d turns", n, len(w.changed()))
				}
			})
		})
	}
}

// failsOnce is a Store whose next write fails.
type failsOnce struct {
	agent.Store
	next *atomic.Bool
}

func (f failsOnce) Update(ctx context.Context, fn func(agent.Tx) error) error {
	if f.next.CompareAndSwap(true, false) {
		return errors.New("database is locked")
	}
	return f.Store.Update(ctx, fn)
}

// AP-1, CV-10, SG-9: what was approved, was not taken, and could not be written down as that is
// not told as cancelled, and stays approved: it is sent later, once.
func TestNotTakenAndNotWrittenDown(t *testing.T) {
	for _, code := range []int{429, 401} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.enrolled().Close()
				var next atomic.Bool
				a := w.openOn(func(s agent.Store) agent.Store { return failsOnce{s, &next} })
				p := w.ask(a, inAssistant("a"), cancelX1)
				n := 0
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					if n++; n == 2 {
						next.Store(true)
						rw.WriteHeader(code)
					}
					return n == 2
				})
				r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				if err == nil || !strings.Contains(err.Error(), "database is locked") {
					t.Errorf("%+v, %v", r, err)
				}
				w.approval(a, p.ID, agent.ApprovalApproved)
				w.tend(w.open(), agent.Tending{})
				time.Sleep(10 * time.Minute)
				w.approval(a, p.ID, agent.ApprovalSent)
				if n := len(w.changed()); n != 1 {
					t.Errorf("%d turns", n)
				}
			})
		})
	}
}

// asked is who can be asked later.
func asked() agent.Caller {
	c := owner()
	c.Human = agent.HumanOutOfBand
	return c
}
