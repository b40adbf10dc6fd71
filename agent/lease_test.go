package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// around handles requests of a host whose path ends so; next is how it is handled
// without it.
func (w *world) around(host, path string, handle func(rw http.ResponseWriter, r *http.Request, next func())) {
	w.mu.Lock()
	defer w.mu.Unlock()
	inner := w.hosts[host]
	w.hosts[host] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		next := func() { inner.ServeHTTP(rw, r) }
		if strings.HasSuffix(r.URL.Path, path) {
			handle(rw, r, next)
		} else {
			next()
		}
	})
}

// slowSigner makes each signature take d.
func (w *world) slowSigner(d time.Duration) {
	w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
		time.Sleep(d)
		next()
	})
}

// stolen gives the lease of a table's rows to a program that proves nothing.
func (w *world) stolen(table string, until time.Time) {
	w.edit(fmt.Sprintf(`UPDATE %s SET lease_owner = 'run-other/x', lease_until = %d`, table, until.UnixMicro()))
}

// plain401 refuses the identity, not the form.
func plain401(rw http.ResponseWriter) {
	rw.Header().Set("WWW-Authenticate", `Bearer realm="a2a"`)
	rw.WriteHeader(http.StatusUnauthorized)
}

// GR-5: a refresh may take longer than its lease, with everybody slow and each
// within the time that it has: another program never sends the spent token again.
func TestSlowRefresh(t *testing.T) {
	for name, lease := range map[string]time.Duration{"the lease of the rules": 0, "a short one": 12 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if w.config.Params = agent.Defaults(); lease > 0 {
					w.config.Params.RefreshLease = lease
				}
				a := granted(w, 30*time.Second, "trips:read")
				programs := []*agent.Agent{a, w.open(), w.open()}
				w.slowSigner(9 * time.Second)
				var once sync.Once
				w.around(provider, "/oauth/token", func(rw http.ResponseWriter, _ *http.Request, next func()) {
					refused := false
					once.Do(func() { refused = true })
					if refused {
						time.Sleep(14 * time.Second)
						plain401(rw)
						return
					}
					next()
					time.Sleep(14 * time.Second)
				})
				var all sync.WaitGroup
				for i, p := range programs {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Second)
						if lease > 0 && i > 0 { // who waits for the others gives up after two leases
							r, err := p.Send(t.Context(), owner(), agent.SendRequest{Business: cardURL, Message: readTrips.Message, Scopes: readTrips.Scopes})
							if err != nil || r.Status != agent.StatusReplied && r.Reason != agent.ReasonReconnect {
								t.Errorf("%+v, %v", r, err)
							}
							return
						}
						w.send(p, owner(), readTrips, agent.StatusReplied, "")
					})
				}
				all.Wait()
				if n := w.biz.refreshed; n != 1 {
					t.Errorf("the business saw %d refreshes", n)
				}
				if g := onlyGrant(t, a); g.State != "active" {
					t.Errorf("grant %+v", g)
				}
			})
		})
	}
}

// GR-5: the lease of a refresh is longer than all its requests may take, so that a
// renewal that is missed loses nothing.
func TestRefreshLeaseIsLong(t *testing.T) {
	limit := func(p egress.Purpose) time.Duration { return egress.Limits[p].Timeout }
	// The status, twice a signature and the token endpoint, and the keys.
	longest := limit(egress.Signer) + 2*(limit(egress.Signer)+limit(egress.Token)) + limit(egress.JWKS)
	if lease := agent.Defaults().RefreshLease; lease <= longest {
		t.Errorf("the lease is %v, and a refresh may take %v", lease, longest)
	}
}

// GR-5: who lost the lease before the token was sent does not send it, and goes on
// with what the winner got, or when the winner is gone.
func TestRefreshLeaseLostBeforeSending(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:read")
		time.Sleep(5 * time.Minute) // no cached signature
		var lost time.Time
		w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			next()
			if lost.IsZero() {
				lost = time.Now()
				w.stolen("grants", lost.Add(time.Minute))
			}
		})
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		calls := w.calls(egress.Token)
		if at := calls[len(calls)-1].at; len(w.spent()) != 1 || at.Before(lost.Add(time.Minute)) {
			t.Errorf("%d refreshes, the last %v after the lease was lost", len(w.spent()), at.Sub(lost))
		}
	})
}

// GR-5, GR-6: what the business says of a spent token to who has lost the lease
// ends nothing: the winner's tokens are good. What it brought counts.
func TestRefreshLeaseLostWhileSending(t *testing.T) {
	for name, refused := range map[string]bool{"refused": true, "answered": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Second, "trips:read")
				n := 0
				w.around(provider, "/oauth/token", func(rw http.ResponseWriter, _ *http.Request, next func()) {
					if n++; n > 1 {
						next()
						return
					}
					w.stolen("grants", time.Now().Add(time.Minute))
					if refused {
						oauthAnswer(400, "invalid_grant")(rw)
					} else {
						next()
					}
				})
				w.send(a, owner(), readTrips, agent.StatusReplied, "")
				if g := onlyGrant(t, a); g.State != "active" || w.biz.refreshed != 1 {
					t.Errorf("grant %+v after %d refreshes", g, w.biz.refreshed)
				}
			})
		})
	}
}

// GR-5, RS-3: a lease that ends later than any can is of a clock that was wrong:
// nobody waits for it. One that another program keeps is waited for, but not for
// ever, and a caller who leaves does not wait.
func TestRefreshWaitsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		until, most time.Duration
		status      agent.Status
		reason      string
	}{
		"of a wrong clock": {6 * time.Hour, time.Second, agent.StatusReplied, ""},
		"kept":             {5 * time.Minute, 4*time.Minute + time.Second, agent.StatusFailed, agent.ReasonReconnect},
		"over soon":        {time.Minute, time.Minute + time.Second, agent.StatusReplied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Second, "trips:read")
				w.stolen("grants", time.Now().Add(c.until))
				if c.until < time.Hour {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					r, err := a.Send(ctx, owner(), agent.SendRequest{Business: cardURL, Message: readTrips.Message, Scopes: readTrips.Scopes})
					if r.Status == agent.StatusReplied || ctx.Err() == nil {
						t.Errorf("%+v, %v", r, err)
					}
				}
				began := time.Now()
				w.send(a, owner(), readTrips, c.status, c.reason)
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// RS-1, RS-3, DA-4: so it is with a turn and a sign-in of a program that proves
// nothing: who comes later goes on.
func TestLeasesOfAWrongClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		z, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:cancel"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"messages", "conversations", "authorizations"} {
			w.stolen(table, time.Now().Add(24*time.Hour))
		}
		w.edit(`UPDATE messages SET state = 'sending' WHERE rowid = (SELECT max(rowid) FROM messages)`)
		if v, err := a.Conversation(t.Context(), owner(), r.Conversation); err != nil || v.State != "outcome_unknown" {
			t.Errorf("conversation %+v, %v", v, err)
		}
		w.biz.allow("trips:read", "trips:cancel")
		if r, err := a.WaitAuthorization(t.Context(), owner(), z.Authorization.ID); err != nil || r.Status != agent.StatusDone {
			t.Errorf("sign-in %+v, %v", r, err)
		}
	})
}

// RS-1, CV-3: a turn that is taken over has sent nothing, and says so, unless its message was on
// its way then: of that it is not known, for who took the turn over counts it as that.
func TestTurnTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		at     int // request: the introduction, the change; 3: just before that; 4: after it
		code   int // answered to that
		status agent.Status
		reason agent.Reason
	}{
		"while it is introduced":           {1, 200, agent.StatusBlocked, agent.ReasonBusy},
		"while its introduction is no use": {1, 401, agent.StatusBlocked, agent.ReasonBusy},
		"before it is sent":                {3, 200, agent.StatusBlocked, agent.ReasonBusy},
		"while it is carried out":          {2, 200, agent.StatusUnknown, agent.ReasonInterrupted},
		"while it is not taken":            {2, 401, agent.StatusUnknown, agent.ReasonInterrupted},
		"while it is limited":              {2, 429, agent.StatusUnknown, agent.ReasonInterrupted},
		"while it waits for the limit":     {4, 429, agent.StatusBlocked, agent.ReasonBusy},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				n := 0
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					if n++; n == 2 && c.at == 4 {
						time.AfterFunc(time.Second, func() { w.stolen("conversations", time.Now().Add(time.Minute)) })
						rw.WriteHeader(c.code)
						return true
					}
					if n == c.at {
						w.stolen("conversations", time.Now().Add(time.Minute))
						if c.code == 401 {
							plain401(rw)
						} else if c.code != 200 {
							rw.WriteHeader(c.code)
						}
						return c.code != 200
					}
					return false
				})
				p := w.person()
				p.Progress = func(e agent.Event) {
					if e.Kind == agent.EventSending && c.at == 3 {
						w.stolen("conversations", time.Now().Add(time.Minute))
					}
				}
				w.send(a, p, cancelX1, c.status, c.reason)
				if sent := len(w.changed()); c.at < 3 && n != c.at || c.at == 3 && n != 1 || c.at == 4 && n != 2 || c.status == agent.StatusBlocked && sent != 0 {
					t.Errorf("%d turns after %d requests", sent, n)
				}
			})
		})
	}
}

// DA-4: a poll and what follows it may take longer than the lease: no other program
// polls meanwhile, and what was granted is kept.
func TestSlowPoll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Params = agent.Defaults()
		w.config.Params.PollLease = 20 * time.Second
		w.biz.cardHeader.Set("Cache-Control", "max-age=60")
		a := w.enrolled()
		other := w.open()
		var slow, refused atomic.Bool
		var sent atomic.Int32
		crawl := func(rw http.ResponseWriter, r *http.Request, next func()) {
			switch polled := r.URL.Path == "/a2a/air/oauth/token"; {
			case !slow.Load():
				next()
			case polled && !refused.Swap(true): // nothing ran: it is tried again
				time.Sleep(14 * time.Second)
				plain401(rw)
			case polled:
				sent.Add(1)
				next()
				time.Sleep(14 * time.Second)
			default:
				next()
				time.Sleep(9 * time.Second)
			}
		}
		w.around(signerURL, "", crawl)
		w.around(provider, "", crawl)
		c := w.person()
		shown := make(chan string, 1)
		c.SignIn = func(_ context.Context, s agent.SignIn) error {
			shown <- s.Authorization
			time.AfterFunc(236*time.Second, func() { // the card is old
				slow.Store(true)
				w.biz.allow("trips:read")
			})
			return nil
		}
		var all sync.WaitGroup
		all.Go(func() {
			if r, err := a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}}); err != nil || r.Status != agent.StatusDone {
				t.Errorf("%+v, %v", r, err)
			}
		})
		id := <-shown
		time.Sleep(236 * time.Second)
		began := time.Now()
		if r, err := other.WaitAuthorization(t.Context(), owner(), id); r.Status != agent.StatusDone || err != nil {
			t.Errorf("the other: %+v, %v", r, err)
		}
		all.Wait()
		if took := time.Since(began); sent.Load() != 1 || took <= 45*time.Second {
			t.Errorf("the code was sent %d times, in %v", sent.Load(), took)
		}
	})
}

// DA-4, DA-8: what the business answers to who has lost the lease settles nothing;
// nor is the code sent without it.
func TestPollLeaseLost(t *testing.T) {
	for name, c := range map[string]struct {
		steal func(w *world, steal func())
		polls int
	}{
		"while signing": {func(w *world, steal func()) {
			w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) { next(); steal() })
		}, 0},
		"while polling": {func(w *world, steal func()) {
			w.around(provider, "/oauth/token", func(rw http.ResponseWriter, _ *http.Request, _ func()) {
				steal()
				oauthAnswer(400, "invalid_grant")(rw)
			})
		}, 1},
		"while the identity is refused": {func(w *world, steal func()) {
			w.around(provider, "/oauth/token", func(rw http.ResponseWriter, _ *http.Request, _ func()) {
				steal()
				plain401(rw)
			})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				begun, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
				if err != nil {
					t.Fatal(err)
				}
				w.edit(fmt.Sprintf(`UPDATE authorizations SET data = CAST(json_set(CAST(data AS TEXT), '$.NextPoll', '%s') AS BLOB)`,
					time.Now().Add(5*time.Minute).UTC().Format(time.RFC3339))) // no cached signature
				c.steal(w, func() { w.stolen("authorizations", time.Now().Add(time.Minute)) })
				who, told := owner(), ""
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				who.Progress = func(e agent.Event) {
					if e.Kind == agent.EventElsewhere {
						told = e.Detail
						stop()
					}
				}
				r, err := a.WaitAuthorization(ctx, who, begun.Authorization.ID)
				if err != nil || r.Status != agent.StatusNeedsUserAction || !strings.Contains(told, agent.ReasonLeaseLost) {
					t.Errorf("%+v, %v; told %q", r, err, told)
				}
				if list, err := a.Authorizations(t.Context(), owner()); err != nil || list[0].State != "pending" || len(w.polls()) != c.polls {
					t.Errorf("%+v, %v after %d polls", list, err, len(w.polls()))
				}
			})
		})
	}
}

// DA-3, DA-4: who takes over from a program that died as it polled waits for the interval
// too, though the identity token that went with that poll took long.
func TestTakenOverPollKeepsTheInterval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, owner(), "trips:read").Authorization.ID
		time.Sleep(5 * time.Minute) // no token is cached
		var slow, dead atomic.Bool
		w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			next()
			if slow.CompareAndSwap(false, true) {
				time.Sleep(9 * time.Second)
			}
		})
		died, gone := make(chan struct{}), make(chan struct{})
		w.around(provider, "/oauth/token", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			if dead.CompareAndSwap(false, true) {
				close(died)
				<-gone
				panic(http.ErrAbortHandler)
			}
			next()
		})
		ctx, leave := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		waits.Go(func() { _, _ = a.WaitAuthorization(ctx, owner(), id) })
		<-died
		w.dies()
		w.biz.allow("trips:read")
		w.wait(w.open(), owner(), id, agent.StatusDone, "")
		everyInterval(t, w)
		if n := len(w.polls()); n != 2 {
			t.Errorf("%d polls", n)
		}
		leave()
		close(gone)
		waits.Wait()
	})
}

// A record that cannot be read is named as damage of the store, and Doctor, which
// still can be asked, finds it; nothing is sent.
func TestDamagedRecord(t *testing.T) {
	for _, table := range []string{"messages", "conversations", "receipts", "grants", "businesses", "authorizations", "bindings"} {
		t.Run(table, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 50*time.Minute, "trips:read")
				w.send(a, w.person(), readTrips, agent.StatusReplied, "")
				w.edit(`UPDATE ` + table + ` SET state = CASE '` + table + `' WHEN 'messages' THEN 'sending' WHEN 'conversations' THEN 'sending' WHEN 'authorizations' THEN 'pending' ELSE state END, data = X'7B226B65793A'`)
				sent := len(w.biz.sent())
				b, err := w.tryOpen()
				if err != nil {
					t.Fatal(err)
				}
				r, err := b.Send(t.Context(), w.person(), agent.SendRequest{Business: cardURL, Message: readTrips.Message, Scopes: readTrips.Scopes})
				if (err != nil || table != "receipts") && (!errors.Is(err, agent.ErrDamaged) || !strings.Contains(err.Error(), "pactctl doctor") || !strings.Contains(err.Error(), table) || len(w.biz.sent()) != sent) {
					t.Errorf("send: %+v, %v", r, err)
				}
				checks, err := b.Doctor(t.Context(), owner())
				i := slices.IndexFunc(checks, func(c agent.Check) bool { return c.Name == "store" })
				if err != nil || checks[i].State != agent.CheckFailed || !strings.Contains(checks[i].Detail, table) || checks[i].Fix == "" {
					t.Errorf("doctor: %+v, %v", checks, err)
				}
			})
		})
	}
}

// GR-5: a refresh whose caller has left goes on, and closing the agent waits for it:
// what it brings is not lost, and the spent token not sent again.
func TestCloseWaitsForARefresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:read")
		w.around(provider, "/oauth/token", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			time.Sleep(10 * time.Second)
			next()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		r, err := a.Send(ctx, owner(), agent.SendRequest{Business: cardURL, Message: readTrips.Message, Scopes: readTrips.Scopes})
		if err != nil || r.Status != agent.StatusCancelled {
			t.Errorf("%+v, %v", r, err)
		}
		a.Close()
		w.send(w.open(), owner(), readTrips, agent.StatusReplied, "")
		if w.biz.refreshed != 1 {
			t.Errorf("%d refreshes", w.biz.refreshed)
		}
	})
}

// DA-10, DA-11: a token that cannot be checked now is kept, sealed, until it can be:
// the code that brought it is spent, and not sent again, by nobody.
func TestGrantedWithoutKeys(t *testing.T) {
	for name, restart := range map[string]bool{"same program": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				down := true
				w.intercept(provider, "/oauth/jwks", func(rw http.ResponseWriter, _ *http.Request) bool {
					if down {
						rw.WriteHeader(http.StatusServiceUnavailable)
					}
					return down
				})
				ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
				defer cancel()
				r, err := a.Authorize(ctx, w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
				if err != nil || r.Status != agent.StatusNeedsUserAction || r.Authorization.State != "pending" {
					t.Fatalf("%+v, %v", r, err)
				}
				if restart {
					a.Close()
					a = w.open()
				}
				down = false
				r, err = a.WaitAuthorization(t.Context(), w.person(), r.Authorization.ID)
				if err != nil || r.Status != agent.StatusDone || onlyGrant(t, a).State != "active" {
					t.Errorf("%+v, %v", r, err)
				}
				if n := len(w.calls(egress.Token)); n != 1 {
					t.Errorf("the code was sent %d times", n)
				}
			})
		})
	}
}
