package agent_test

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// expires is when a token ends.
func expires(token string) time.Time {
	var c struct {
		Exp int64 `json:"exp"`
	}
	payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	_ = json.Unmarshal(payload, &c)
	return time.Unix(c.Exp, 0)
}

// spent are the refresh tokens that were sent.
func (w *world) spent() (out []string) {
	for _, r := range w.calls(egress.Token) {
		if form, err := url.ParseQuery(r.body); err == nil && form.Get("grant_type") == "refresh_token" {
			out = append(out, form.Get("refresh_token"))
		}
	}
	return out
}

var invalidToken = http.Header{"Www-Authenticate": {`Bearer realm="a2a", error="invalid_token"`}}

// GR-5: a token that ends while a message waits is refreshed before the next
// attempt.
func TestTokenEndsWhileWaiting(t *testing.T) {
	for name, wait := range map[string]func(u turn) (int, any){
		"rate limited": func(u turn) (int, any) {
			if u.n == 0 {
				return 429, http.Header{"Retry-After": {"90"}}
			}
			return 0, nil
		},
		"no reply yet": func(u turn) (int, any) {
			if u.n < 5 {
				return 400, a2aError(400, "INVALID_PARAMS", "no reply yet")
			}
			return 0, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 61*time.Second, "trips:read")
				w.biz.answer = func(u turn) (int, any) {
					if !time.Now().Before(expires(u.delegation)) {
						return 401, invalidToken
					}
					return wait(u)
				}
				r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
				if w.biz.refreshed != 1 || r.Evidence.Verdict != agent.VerdictVerified {
					t.Errorf("%d refreshes, evidence %+v", w.biz.refreshed, r.Evidence)
				}
				turns := w.biz.sent()
				if turns[0].id != turns[len(turns)-1].id {
					t.Error("another message")
				}
			})
		})
	}
}

// GR-5, GR-7: tokens that cannot be checked at once are kept and checked later,
// also by another program; the refresh token that bought them is not sent again.
func TestRefreshedWhileKeysAreAway(t *testing.T) {
	for name, away := range map[string]time.Duration{"the new token is still good": time.Second, "it has ended meanwhile": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Second, "trips:read") // the keys' cache is old
				w.biz.set(func(b *business) { b.noKeys, b.tokenLife = true, 10*time.Minute })
				w.send(a, owner(), readTrips, agent.StatusFailed, agent.ReasonReconnect)
				w.send(a, owner(), readTrips, agent.StatusFailed, agent.ReasonReconnect)
				if w.biz.refreshed != 1 {
					t.Errorf("%d refreshes", w.biz.refreshed)
				}
				w.biz.set(func(b *business) { b.noKeys = false })
				time.Sleep(away)
				w.send(w.open(), owner(), readTrips, agent.StatusReplied, "")
				spent := w.spent()
				slices.Sort(spent)
				if n := len(spent); n != len(slices.Compact(spent)) {
					t.Errorf("a spent refresh token was sent again: %d refreshes", n)
				}
				if g := onlyGrant(t, a); g.State != "active" {
					t.Errorf("grant %+v", g)
				}
			})
		})
	}
}

// CV-15, CV-12, GR-8: once the business worked on a change, a refused token says
// nothing about it.
func TestRefusedTokenAfterNoReplyYet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:cancel")
		n := 0
		w.biz.answer = func(u turn) (int, any) {
			if u.text != cancelTrip.Message {
				return 0, nil
			}
			if n++; n == 1 {
				return 400, a2aError(400, "INVALID_PARAMS", "no reply yet")
			}
			return 401, invalidToken
		}
		r := w.send(a, w.person(), cancelTrip, agent.StatusUnknown, "delegation_rejected")
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || v.State != "outcome_unknown" || v.Messages[1].State != "outcome_unknown" {
			t.Errorf("conversation %+v, %v", v, err)
		}
		if g := onlyGrant(t, a); g.State != "invalid" || g.Reason != agent.ReasonDelegationGone {
			t.Errorf("grant %+v", g)
		}
		w.send(a, w.person(), cancelTrip, agent.StatusBlocked, agent.ReasonUnresolved)
	})
}

// CV-15: nor does it say anything that the permission was ended here meanwhile.
func TestNoCredentialsAfterNoReplyYet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:cancel")
		w.biz.answer = func(u turn) (int, any) {
			if u.text == cancelTrip.Message {
				return 400, a2aError(400, "INVALID_PARAMS", "no reply yet")
			}
			return 0, nil
		}
		c := w.person()
		c.Progress = func(e agent.Event) {
			if g := onlyGrant(t, a); e.Kind == agent.EventWaiting && g.State == "active" {
				if _, err := a.Disconnect(t.Context(), owner(), g.ID); err != nil {
					t.Error(err)
				}
			}
		}
		w.send(a, c, cancelTrip, agent.StatusUnknown, agent.ReasonReconnect)
		w.send(a, w.person(), cancelTrip, agent.StatusBlocked, agent.ReasonUnresolved)
	})
}

// CV-12: an operation that was refused later does not hide that the outcome of
// one before is unknown.
func TestRefusalDoesNotHideAnUnknownOutcome(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(turn) (int, any) { return 200, nil }
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusUnknown, "network")
		w.send(a, owner(), agent.SendRequest{Message: "Cancel it", Conversation: r.Conversation}, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if v, err := a.Conversation(t.Context(), owner(), r.Conversation); err != nil || v.State != "outcome_unknown" {
			t.Errorf("conversation %+v, %v", v, err)
		}
	})
}

// GR-6: an answer to a renewal that is none, such as a proxy's page, ends nothing;
// only the business's own word does.
func TestRefreshAnswerThatIsNone(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"a page":              func(rw http.ResponseWriter) { respond(rw, 200, "<html>") },
		"no token":            func(rw http.ResponseWriter) { respond(rw, 200, `{"token_type":"Bearer"}`) },
		"a server's trouble":  oauthAnswer(500, "invalid_grant"),
		"an error of no kind": oauthAnswer(400, "invalid_request"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Second, "trips:read")
				broken := true
				w.intercept(provider, "/oauth/token", func(rw http.ResponseWriter, _ *http.Request) bool {
					if broken {
						answer(rw)
					}
					return broken
				})
				w.send(a, owner(), readTrips, agent.StatusFailed, agent.ReasonReconnect)
				if g := onlyGrant(t, a); g.State != "active" || len(w.biz.sent()) != 0 {
					t.Errorf("grant %+v, %d turns", g, len(w.biz.sent()))
				}
				broken = false
				w.send(a, owner(), readTrips, agent.StatusReplied, "")
			})
		})
	}
}
