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

const message = "message:send"

// answers has the provider answer a path with a status while down is set.
func (w *world) answers(path string, status int, down *atomic.Bool) (n *atomic.Int64) {
	n = new(atomic.Int64)
	w.intercept(provider, path, func(rw http.ResponseWriter, _ *http.Request) bool {
		if down.Load() {
			n.Add(1)
			rw.WriteHeader(status)
		}
		return down.Load()
	})
	return n
}

// AP-1, AP-3, DI-11: what was approved and could not be sent, for what it takes is away or
// busy, stays approved. It is sent once, by whatever goes on with it first, when that is
// there again; and it is tried with a pause that grows.
func TestUnsentStaysApproved(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		status int
		reason string
		old    bool // the card is
	}{
		"the card":     {"agent-card.json", 503, agent.ReasonFetchFailed, true},
		"the metadata": {"/oauth/metadata", 503, agent.ReasonMetadataInvalid, true},
		"the signer":   {"", 503, agent.ReasonSignerUnavailable, true},
		"introduction": {message, 503, "http_503", false},
		"limited":      {message, 429, "rate_limited", false},
	} {
		for _, by := range []string{"tended", "approved again"} {
			t.Run(name+" "+by, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					p := w.ask(a, inAssistant("a"), cancelX1)
					if c.old {
						time.Sleep(6 * time.Minute)
					}
					var down atomic.Bool
					down.Store(true)
					tries := func() int64 { return int64(len(w.calls(egress.Signer))) }
					if c.path == "" {
						w.signer.set(func(s *signerStandIn) { s.fail = c.status })
					} else {
						n := w.answers(c.path, c.status, &down)
						tries = n.Load
					}
					r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
					if err != nil || r.Reason != c.reason || r.Approval == nil || r.Approval.State != agent.ApprovalApproved || !strings.Contains(r.Detail, "not sent yet") {
						t.Fatalf("%+v, %v", r, err)
					}
					if v, err := a.Conversation(t.Context(), owner(), p.Conversation); err != nil || v.State != "awaiting_local_authority" {
						t.Errorf("conversation %+v, %v", v, err)
					}
					if by == "tended" {
						w.tend(w.open(), agent.Tending{Caller: ops()})
						before := tries()
						time.Sleep(20 * time.Minute)
						if n := tries() - before; n < 10 || n > 120 { // each can take several requests
							t.Errorf("tried %d times", n)
						}
					}
					w.approval(a, p.ID, agent.ApprovalApproved)
					down.Store(false)
					w.signer.set(func(s *signerStandIn) { s.fail = 0 })
					if by == "tended" {
						time.Sleep(2 * time.Minute)
					} else {
						w.decide(a, owner(), p, true, agent.StatusReplied, "")
					}
					v := w.approval(a, p.ID, agent.ApprovalSent)
					time.Sleep(3 * time.Hour)
					if sent := w.changed(); len(sent) != 1 || bodyDigest(t, sent[0].id, sent[0].text) != p.Digest || v.DecidedBy != "token ops" {
						t.Errorf("sent %+v as %+v", sent, v)
					}
				})
			})
		}
	}
}

// AP-1, CV-10, CV-11: a message that the business was not reached with, or did not take, is
// not sent: its approval stays, and the same message goes out later. One that may have run is.
func TestNotTakenStaysApproved(t *testing.T) {
	for name, c := range map[string]struct {
		err    *egress.Error
		status int
		unsent bool
	}{
		"not reached":  {err: &egress.Error{Code: egress.Network, Purpose: egress.Message, Err: errors.New("refused")}, unsent: true},
		"no such name": {err: &egress.Error{Code: egress.DestinationRefused, Purpose: egress.Message, Err: errors.New("no such host")}, unsent: true},
		"limited":      {status: 429, unsent: true},
		"cut off":      {err: &egress.Error{Code: egress.Network, Purpose: egress.Message, Sent: true, Err: errors.New("reset")}},
		"refused":      {status: 404},
		"failed":       {status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.enrolled().Close()
				var down atomic.Bool
				n := 0
				a := w.openHooked(func(_ context.Context, req egress.Request) (egress.Response, error, bool) {
					if req.Purpose != egress.Message || !down.Load() {
						return egress.Response{}, nil, false
					}
					if n++; n == 1 { // the introduction
						return egress.Response{}, nil, false
					}
					if c.err != nil {
						return egress.Response{}, c.err, true
					}
					return egress.Response{Status: c.status}, nil, true
				})
				p := w.ask(a, inAssistant("a"), cancelX1)
				down.Store(true)
				r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				state, turns := agent.ApprovalSent, 0
				if c.unsent {
					state, turns = agent.ApprovalApproved, 1
				}
				if err != nil || r.Approval == nil || r.Approval.State != state || strings.Contains(r.Detail, "not sent yet") != c.unsent {
					t.Errorf("%+v, %v", r, err)
				}
				w.approval(a, p.ID, state)
				down.Store(false)
				w.tend(a, agent.Tending{})
				time.Sleep(2 * time.Minute)
				if v := w.approval(a, p.ID, agent.ApprovalSent); len(w.changed()) != turns || v.SentMessage == "" {
					t.Errorf("%+v after %d turns", v, len(w.changed()))
				}
			})
		})
	}
}

// AP-1, CV-4: what was approved while another change was on its way there waits for that.
func TestApprovedAtABusyBusiness(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		first := w.ask(a, inAssistant("a"), cancelX1)
		second := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X2", Effect: "change"})
		w.biz.answer = func(u turn) (int, any) {
			if u.text == cancelX1.Message {
				time.Sleep(30 * time.Second)
			}
			return 0, nil
		}
		w.tend(a, agent.Tending{})
		var both sync.WaitGroup
		both.Go(func() { w.decide(a, ops(), first, true, agent.StatusReplied, "") })
		time.Sleep(5 * time.Second)
		r := w.decide(a, ops(), second, true, agent.StatusBlocked, agent.ReasonBusy)
		if r.Approval.State != agent.ApprovalApproved || !strings.Contains(r.Detail, "not sent yet") {
			t.Errorf("%+v", r)
		}
		both.Wait()
		time.Sleep(2 * time.Minute)
		w.approval(a, second.ID, agent.ApprovalSent)
		if n := len(w.changed()); n != 2 {
			t.Errorf("%d turns", n)
		}
	})
}

// AP-1, CV-16, DA-17: who gave the word and leaves before the message goes out takes the word
// back, and nothing is sent that they believe cancelled; where another one gave it, or the
// program stops, it stays approved and is sent by what runs then.
func TestLeftBeforeItWasSent(t *testing.T) {
	for name, c := range map[string]struct {
		role   string
		cause  error
		status agent.Status
		reason string
		state  string // then, and in the end if nothing is sent
		turns  int
	}{
		"who approves leaves":          {"decides", context.Canceled, agent.StatusCancelled, agent.ReasonUserCancelled, agent.ApprovalPending, 0},
		"who approves gives up":        {"decides", agent.ErrAborted, agent.StatusCancelled, agent.ReasonUserCancelled, agent.ApprovalPending, 0},
		"stopped where it is approved": {"decides", agent.ErrStopping, agent.StatusApprovalRequired, agent.ReasonApprovalRequired, agent.ApprovalApproved, 1},
		"who answered leaves":          {"asks", context.Canceled, agent.StatusCancelled, agent.ReasonUserCancelled, agent.ApprovalWithdrawn, 0},
		"stopped where it was asked":   {"asks", agent.ErrStopping, agent.StatusApprovalRequired, agent.ReasonApprovalRequired, agent.ApprovalApproved, 1},
		"who asked elsewhere leaves":   {"waits", context.Canceled, agent.StatusApprovalRequired, agent.ReasonApprovalRequired, agent.ApprovalApproved, 1},
		"who asked elsewhere gives up": {"waits", agent.ErrAborted, agent.StatusCancelled, agent.ReasonUserCancelled, agent.ApprovalWithdrawn, 0},
		"stopped where it waited":      {"waits", agent.ErrStopping, agent.StatusApprovalRequired, agent.ReasonApprovalRequired, agent.ApprovalApproved, 1},
		"confirmed, and left":          {"confirms", context.Canceled, agent.StatusCancelled, agent.ReasonUserCancelled, "", 0},
		"confirmed, and stopped":       {"confirms", agent.ErrStopping, agent.StatusCancelled, agent.ReasonNeverSent, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				ctx, leave := context.WithCancelCause(t.Context())
				first := true
				w.intercept(provider, message, func(_ http.ResponseWriter, r *http.Request) bool { // the introduction hangs
					if first {
						first = false
						leave(c.cause)
						<-r.Context().Done()
					}
					return false
				})
				var r agent.Result
				var err error
				who, id := w.person(), ""
				switch c.role {
				case "decides":
					p := w.ask(a, inAssistant("a"), cancelX1)
					id = p.ID
					r, err = a.Decide(ctx, ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				default:
					var deciding sync.WaitGroup
					who.Confirmed = c.role == "confirms"
					who.Approve = func(ctx context.Context, req agent.ApprovalRequest) (bool, error) {
						if id = req.ID; c.role == "asks" {
							return true, nil
						}
						deciding.Go(func() {
							w.decide(w.open(), ops(), w.approval(a, req.ID, agent.ApprovalPending), true, agent.StatusDone, "")
						})
						<-ctx.Done()
						return false, context.Cause(ctx)
					}
					r, err = a.Send(ctx, who, agent.SendRequest{Business: cardURL, Message: cancelX1.Message, Effect: "change"})
					deciding.Wait()
				}
				if err != nil || r.Status != c.status || r.Reason != c.reason {
					t.Errorf("%+v, %v", r, err)
				}
				if n := len(w.changed()); n != 0 {
					t.Errorf("%d turns", n)
				}
				if c.state != "" {
					if v := w.approval(a, id, c.state); (v.DecidedBy == "") != (c.state == agent.ApprovalPending) {
						t.Errorf("%+v", v)
					}
				}
				b := w.open()
				w.tend(b, agent.Tending{Caller: ops()})
				time.Sleep(30 * time.Minute)
				if n := len(w.changed()); n != c.turns {
					t.Errorf("%d turns", n)
				}
				if c.turns == 1 {
					w.approval(b, id, agent.ApprovalSent)
				} else if c.state != "" {
					w.approval(b, id, c.state)
				}
			})
		})
	}
}

// AP-1, RS-3: a program that dies between the word and the message leaves it approved; the
// next one sends it, once.
func TestDiedBeforeItWasSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		came, died := make(chan bool), make(chan bool)
		first := true
		w.intercept(provider, message, func(http.ResponseWriter, *http.Request) bool {
			if first {
				first = false
				came <- true
				<-died
			}
			return false
		})
		var dead sync.WaitGroup
		dead.Go(func() {
			r, err := a.Decide(t.Context(), ops(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
			if err == nil && r.Status == agent.StatusReplied {
				t.Errorf("the dead one: %+v", r)
			}
		})
		<-came
		w.dies()
		b := w.open()
		w.approval(b, p.ID, agent.ApprovalApproved)
		w.tend(b, agent.Tending{})
		time.Sleep(time.Minute)
		close(died)
		dead.Wait()
		time.Sleep(time.Hour)
		w.approval(b, p.ID, agent.ApprovalSent)
		if n := len(w.changed()); n != 1 {
			t.Errorf("%d turns", n)
		}
	})
}

// fullDisk fails what is written while full is set.
type fullDisk struct {
	agent.Store
	full *atomic.Bool
}

func (f fullDisk) Update(ctx context.Context, fn func(agent.Tx) error) error {
	if f.full.Load() {
		return errors.New("disk full")
	}
	return f.Store.Update(ctx, fn)
}

// RS-1, CV-12: of a message that went out it is never told that it was not sent, whatever
// becomes of the journal and of who asked; of one that did not go out it is not told that it
// was given up, if that could not be written down.
func TestTheJournalFails(t *testing.T) {
	for _, at := range []int{1, 2} { // the introduction, the change
		for _, confirmed := range []bool{true, false} {
			for _, leaves := range []bool{true, false} {
				t.Run(fmt.Sprint(at, confirmed, leaves), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						w := newWorld(t)
						w.enrolled().Close()
						store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { _ = store.Close() })
						var full atomic.Bool
						cfg := w.config
						cfg.Dir, cfg.Store = w.dir, fullDisk{store, &full}
						cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
						a, err := agent.Open(cfg)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(a.Close)
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						n := 0
						w.intercept(provider, message, func(http.ResponseWriter, *http.Request) bool {
							if n++; n == at {
								full.Store(true)
								if leaves {
									leave()
								}
							}
							return false
						})
						c := w.person()
						c.Confirmed = confirmed
						r, err := a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Effect: "change"})
						switch {
						case at == 2 && (err != nil || r.Status != agent.StatusUnknown || r.Reason != agent.ReasonInterrupted || r.Approval != nil ||
							!strings.Contains(r.Detail, "disk full")):
							t.Errorf("it was sent: %+v, %v", r, err)
						case at == 1 && len(w.changed()) != 0, at == 1 && r.Status == agent.StatusUnknown:
							t.Errorf("it was not sent: %+v, %v", r, err)
						case at == 1 && leaves && !confirmed && r.Status != agent.StatusApprovalRequired:
							t.Errorf("nobody knows that it was given up: %+v, %v", r, err)
						}
					})
				})
			}
		}
	}
}

// DA-1, DA-12: a sign-in is joined only by what would ask for just the same; and what is
// granted is judged by what the operation itself needs.
func TestOthersSignInIsNotJoined(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		wide, err := a.Authorize(t.Context(), ops(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read", "trips:cancel"}, Purpose: "of ops"})
		if err != nil || wide.Status != agent.StatusNeedsUserAction {
			t.Fatalf("%+v, %v", wide, err)
		}
		own, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}, Purpose: "to look"})
		if err != nil || own.Authorization.ID == wide.Authorization.ID || own.Authorization.Purpose != "to look" || len(own.Authorization.Scopes) != 1 {
			t.Errorf("%+v, %v", own, err)
		}
		same, err := a.Authorize(t.Context(), ops(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
		if err != nil || same.Authorization.ID != own.Authorization.ID {
			t.Errorf("%+v, %v", same, err)
		}
		c := w.person()
		c.SignIn = func(_ context.Context, s agent.SignIn) error {
			if len(s.Scopes) != 1 {
				t.Errorf("asked for %+v", s.Scopes)
			}
			w.biz.allow("trips:read")
			return nil
		}
		w.send(a, c, readTrips, agent.StatusReplied, "")
	})
}

// DA-12: two operations may ask for the same, and need different parts of it.
func TestPartOfASignInIsEnough(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 20*time.Minute, "trips:read") // so the union is asked for
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { return nil }
		both := []string{"trips:read", "trips:cancel"}
		var waiting sync.WaitGroup
		for _, x := range []struct {
			needs  []string
			status agent.Status
			reason string
		}{{both, agent.StatusDenied, agent.ReasonInsufficient}, {[]string{"trips:cancel"}, agent.StatusDone, ""}} {
			waiting.Go(func() {
				r, err := a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: cardURL, Scopes: x.needs})
				if err != nil || r.Status != x.status || r.Reason != x.reason || x.reason != "" && len(r.MissingScopes) != 1 {
					t.Errorf("%v: %+v, %v", x.needs, r, err)
				}
			})
			time.Sleep(time.Second)
		}
		if n := len(w.calls(egress.DeviceAuthorization)); n != 2 { // with the first grant's
			t.Errorf("%d sign-ins", n)
		}
		w.biz.allow("trips:cancel")
		waiting.Wait()
	})
}

// CV-1, DA-8: a conversation tells how what it waited for ended: expired is not denied, and
// where no word is waited for any more it says so.
func TestConversationTellsTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		scopes []string
		end    func(w *world, a *agent.Agent, p agent.ApprovalView)
		state  string
		reason string
	}{
		"nobody signed in": {[]string{"trips:cancel"}, func(w *world, a *agent.Agent, p agent.ApprovalView) {
			w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
			time.Sleep(40 * time.Minute)
		}, "expired", agent.ReasonConsentExpired},
		"denied there": {[]string{"trips:cancel"}, func(w *world, a *agent.Agent, p agent.ApprovalView) {
			w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
			w.biz.set(func(b *business) { b.denied = true })
			w.tend(a, agent.Tending{})
			time.Sleep(time.Minute)
		}, "denied", agent.ReasonAccessDenied},
		"switched off": {nil, func(w *world, a *agent.Agent, p agent.ApprovalView) {
			if err := a.SetEnabled(w.t.Context(), owner(), false); err != nil {
				w.t.Error(err)
			}
			w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonDisabledInSettings)
		}, "ready", agent.ReasonDisabledInSettings},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: c.scopes})
				c.end(w, a, p)
				w.approval(a, p.ID, agent.ApprovalFailed)
				if v, err := a.Conversation(t.Context(), owner(), p.Conversation); err != nil || v.State != c.state || v.Reason != c.reason {
					t.Errorf("%+v, %v", v, err)
				}
			})
		})
	}
}

// CP-2, CV-14: who had a message asked about again is on record, and whether they confirmed it.
func TestReconcileIsRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 55*time.Minute, "trips:cancel")
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				if u.delegation != "" {
					return 200, nil
				}
				return 0, nil
			}
		})
		p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
		in := w.decide(a, owner(), p, true, agent.StatusUnknown, "network").Conversation
		asked, err := a.Reconcile(t.Context(), inAssistant("a"), agent.ReconcileRequest{Conversation: in})
		if err != nil || asked.Approval == nil {
			t.Fatalf("%+v, %v", asked, err)
		}
		check := func(by string, confirmed bool) {
			t.Helper()
			v, err := a.Conversation(t.Context(), owner(), in)
			if m := v.Messages[len(v.Messages)-1]; err != nil || m.ReconciledBy != by || m.ReconciledConfirmed != confirmed || m.Actor != "assistant a" {
				t.Errorf("%+v, %v", m, err)
			}
		}
		c := ops()
		c.Confirmed = true
		w.reconcile(a, c, agent.ReconcileRequest{Conversation: in}, agent.StatusUnknown, "network")
		check("token ops", true)
		if v := w.approval(a, asked.Approval.ID, agent.ApprovalWithdrawn); v.DecidedBy != "token ops" {
			t.Errorf("%+v", v)
		}
		asked, err = a.Reconcile(t.Context(), inAssistant("a"), agent.ReconcileRequest{Conversation: in})
		if err != nil || asked.Approval == nil {
			t.Fatalf("%+v, %v", asked, err)
		}
		w.decide(a, ops(), *asked.Approval, true, agent.StatusUnknown, "network")
		check("assistant a", false)
	})
}

// DA-7, DA-11: what a code brought in time is checked after the sign-in's deadline too, for
// some minutes and no longer.
func TestCheckedAfterTheDeadline(t *testing.T) {
	for _, back := range []time.Duration{0, time.Minute, 20 * time.Minute} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprint(back, restarts), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					stop := w.tend(a, agent.Tending{})
					id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
					v := w.state(a, id)
					time.Sleep(time.Until(v.Deadline) - 20*time.Second)
					var down atomic.Bool
					down.Store(true)
					w.answers("/oauth/jwks", 503, &down)
					w.biz.allow("trips:read")
					time.Sleep(18 * time.Second)
					if restarts {
						stop()
						a.Close()
						a = w.open()
						w.tend(a, agent.Tending{})
					}
					polls := len(w.polls())
					time.Sleep(back)
					down.Store(false)
					time.Sleep(2 * time.Minute)
					state := "granted"
					if back > 5*time.Minute {
						state = "failed" // or expired
					}
					if v := w.state(a, id); v.State != state && (state == "granted" || v.State != "expired") {
						t.Errorf("%+v", v)
					}
					if n := len(w.polls()); n != polls {
						t.Errorf("polled %d times more", n-polls)
					}
				})
			})
		}
	}
}

// SG-12, RS-5: each approval is tended under the network profile that it was asked under, and
// under no other.
func TestApprovedIsTendedUnderItsNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		asked, tends string
		network      func(string) *agent.Network
		state        string
	}{
		"the default one, by another":     {"", "wide", nil, agent.ApprovalSent},
		"the same":                        {"wide", "wide", nil, agent.ApprovalSent},
		"another, which is known":         {"wide", "", anywhere, agent.ApprovalSent},
		"another, which is not known":     {"wide", "", nil, agent.ApprovalApproved},
		"another, which there is no more": {"wide", "", func(string) *agent.Network { return nil }, agent.ApprovalFailed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				asker, decider, tender := inAssistant("a"), ops(), owner()
				if c.asked != "" {
					asker.Network, decider.Network = anywhere(c.asked), anywhere(c.asked)
				}
				if c.tends != "" {
					tender.Network = anywhere(c.tends)
				}
				w.signer.set(func(s *signerStandIn) { s.fail = 0 })
				p := w.ask(a, asker, cancelX1)
				time.Sleep(2 * time.Minute)
				w.signer.set(func(s *signerStandIn) { s.fail = 503 })
				r := w.decide(a, decider, p, true, agent.StatusBlocked, agent.ReasonSignerUnavailable)
				if strings.Contains(r.Detail, "the running agent") != (c.asked == "") || strings.Contains(r.Detail, "the program that asked") != (c.asked != "") {
					t.Errorf("who sends it: %s", r.Detail)
				}
				w.signer.set(func(s *signerStandIn) { s.fail = 0 })
				w.tend(a, agent.Tending{Caller: tender, Network: c.network})
				time.Sleep(2 * time.Minute)
				w.approval(a, p.ID, c.state)
				w.want(`SELECT count(*) FROM messages WHERE coalesce(data ->> 'Network', '') <> '`+c.asked+`'`, "0")
			})
		})
	}
}
