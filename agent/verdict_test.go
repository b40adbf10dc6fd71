package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// held lets requests whose path ends so wait until the returned func is called.
func (w *world) held(path string) (release func()) {
	gate := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	inner := w.hosts[provider]
	w.hosts[provider] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, path) {
			<-gate
		}
		inner.ServeHTTP(rw, r)
	})
	return func() { close(gate) }
}

// EV-2: of two replies with one receipt at once one is verified, and what the
// caller is told is what is on record.
func TestOneReceiptForTwoRepliesAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		time.Sleep(11 * time.Minute) // the keys' cache is old
		var first map[string]any
		w.biz.receipt = func(claims, envelope map[string]any) {
			if first == nil {
				first = map[string]any{"claims": claims, "jws": w.biz.key.sign(claims)}
			}
			envelope["claims"], envelope["jws"] = first["claims"], first["jws"]
		}
		release := w.held("/jwks")
		results := make([]agent.Result, 2)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() { results[i] = w.send(a, owner(), readTrips, agent.StatusReplied, "") })
		}
		synctest.Wait()
		release()
		wg.Wait()
		verdicts := map[agent.Verdict]int{}
		for _, r := range results {
			verdicts[r.Evidence.Verdict]++
			v, err := a.Receipt(t.Context(), owner(), r.Evidence.Receipt)
			if err != nil || v.Verdict != r.Evidence.Verdict {
				t.Errorf("told %s, on record %s, %v", r.Evidence.Verdict, v.Verdict, err)
			}
			c, err := a.Conversation(t.Context(), owner(), r.Conversation)
			if want := map[agent.Verdict]string{agent.VerdictVerified: "evidence_verified", agent.VerdictInvalid: "evidence_invalid"}[v.Verdict]; err != nil || c.State != want {
				t.Errorf("conversation %s, want %s, %v", c.State, want, err)
			}
			if v.Verdict == agent.VerdictInvalid && (len(v.Issues) != 1 || v.Issues[0] != agent.IssueReplayed) {
				t.Errorf("issues %v", v.Issues)
			}
		}
		if verdicts[agent.VerdictVerified] != 1 || verdicts[agent.VerdictInvalid] != 1 {
			t.Errorf("verdicts %v", verdicts)
		}
	})
}

// EV-4, GR-4: a receipt is judged by the delegation that was sent, though its
// grant was superseded or disconnected before the reply came.
func TestEvidenceOfAGrantThatEndedMeanwhile(t *testing.T) {
	for name, end := range map[string]func(*world, *agent.Agent) error{
		"superseded": func(w *world, a *agent.Agent) error {
			_, err := a.Authorize(w.t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:history"}})
			return err
		},
		"disconnected": func(w *world, a *agent.Agent) error {
			_, err := a.Disconnect(w.t.Context(), owner(), onlyGrant(w.t, a).ID)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 50*time.Minute, "trips:read")
				release := w.held("message:send")
				done := make(chan agent.Result)
				go func() { done <- w.send(a, owner(), readTrips, agent.StatusReplied, "") }()
				synctest.Wait()
				if err := end(w, a); err != nil {
					t.Error(err)
				}
				release()
				if r := <-done; r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
					t.Errorf("evidence %+v", r.Evidence)
				}
				w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
			})
		})
	}
}

// EV-5, EV-7: a check that now finds better is told apart from the verdict on
// record, which keeps holding changes back.
func TestRecheckIsToldApart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		other := newKey(t)
		w.biz.receipt = func(claims, envelope map[string]any) { envelope["jws"] = other.sign(claims) }
		r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		w.biz.set(func(b *business) { b.key = other })
		time.Sleep(11 * time.Minute)
		v, err := a.VerifyStoredReceipt(t.Context(), owner(), r.Evidence.Receipt)
		if err != nil || v.Verdict != agent.VerdictInvalid || len(v.Issues) == 0 || v.Recheck == nil || v.Recheck.Verdict != agent.VerdictVerified {
			t.Errorf("%+v, %+v, %v", v, v.Recheck, err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
	})
}

// EV-9, EV-6: the oldest receipts go, but none that the owner has yet to look at.
func TestHeldReceiptIsNotEvicted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read")
		w.biz.receipt = func(_, e map[string]any) { e["none"] = true }
		bad := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		w.biz.set(func(b *business) { b.receipt = nil })
		good := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		w.edit(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
			INSERT INTO receipts SELECT 'old-' || i, principal, business, conversation, NULL, state, revision, created, lease_owner, lease_until, data
			FROM receipts, n WHERE id = '%s'`, good.Evidence.Receipt))
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if _, err := a.Receipt(t.Context(), owner(), good.Evidence.Receipt); err == nil {
			t.Error("nothing was evicted")
		}
		if _, err := a.Acknowledge(t.Context(), owner(), bad.Evidence.Receipt); err != nil {
			t.Errorf("acknowledge: %v", err)
		}
	})
}

// CV-2, CV-3: a turn that waits for a sign-in keeps its conversation.
func TestConversationIsKeptDuringConsent(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		b := w.open()
		w.biz.device["expires_in"] = 1800
		first := w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error {
			go func() {
				time.Sleep(10 * time.Minute)
				w.send(b, owner(), agent.SendRequest{Message: "Show status", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
				w.biz.allow("trips:read")
			}()
			return nil
		}
		req := readTrips
		req.Conversation = first.Conversation
		w.send(a, c, req, agent.StatusReplied, "")
	})
}

// DA-10, DA-17: a caller that leaves while the code is exchanged loses nothing.
func TestLeavingDuringTheExchange(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		allow bool
		state string
	}{
		"the program stops, and it was granted":  {nil, true, "granted"},
		"the owner gives up, and it was granted": {agent.ErrAborted, true, "granted"},
		"the program stops, and it is pending":   {nil, false, "pending"},
		"the owner gives up while it is pending": {agent.ErrAborted, false, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				ctx, cancel := context.WithCancelCause(t.Context())
				p := w.person()
				p.SignIn = func(context.Context, agent.SignIn) error {
					if c.allow {
						w.biz.allow("trips:read")
					}
					return nil
				}
				release := w.held("/oauth/token")
				go func() {
					time.Sleep(6 * time.Second) // the first poll is under way
					cancel(c.cause)
					synctest.Wait()
					release()
				}()
				r, err := a.Authorize(ctx, p, agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
				if err != nil {
					t.Fatal(err)
				}
				list, err := a.Authorizations(t.Context(), owner())
				if err != nil || len(list) != 1 || list[0].State != c.state {
					t.Errorf("%+v, %+v, %v", r, list, err)
				}
				grants, err := a.Grants(t.Context(), owner())
				if err != nil || len(grants) == 1 != c.allow {
					t.Errorf("grants %+v, %v", grants, err)
				}
			})
		})
	}
}

// DI-3: a card's life is clamped, however large max-age is, and several lines of
// Cache-Control are one list.
func TestCardLife(t *testing.T) {
	for want, values := range map[time.Duration][][]string{
		60 * time.Minute: {{"max-age=99999999999"}, {"max-age=99999999999999999999999"}, {"public", "max-age=7200"}},
		time.Minute:      {{"max-age=3600", "no-store"}, {"max-age=1"}, {"max-age=0"}},
		5 * time.Minute:  {nil, {"max-age=-5"}, {"max-age=-99999999999999999999999"}, {"max-age=x"}},
	} {
		for _, v := range values {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				if v != nil {
					w.biz.cardHeader = http.Header{"Cache-Control": v}
				}
				b, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL})
				if got := b.Expires.Sub(b.Fetched); err != nil || got != want {
					t.Errorf("%q: %v, want %v (%v)", v, got, want, err)
				}
			})
		}
	}
}
