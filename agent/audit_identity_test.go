package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// ID-1, UR-2: a development identity counts only in development mode.
func TestDevelopmentIdentityCountsOnlyThere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const local = "http://127.0.0.1:8787"
		w.hosts[local] = w.signer
		w.signer.url, w.signer.issuer = local, local
		a := w.open()
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: local}); err != nil {
			t.Fatal(err)
		}
		w.edit(`UPDATE settings SET data = CAST(json_set(CAST(data AS TEXT), '$.Development', json('false')) AS BLOB)`)
		before := len(w.calls(egress.Signer))
		w.send(w.open(), owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityNotSet)
		if len(w.calls(egress.Signer)) != before {
			t.Error("the signer was asked")
		}
		w.config.Development = true // PACT_DEVELOPMENT=1
		if s, err := w.open().Status(t.Context(), owner()); err != nil || !s.Ready {
			t.Errorf("in development mode: %+v, %v", s, err)
		}
	})
}

// ID-1: a real signer that is broken is replaced by nothing.
func TestNoFallbackForABrokenSigner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Development = true
		const local = "http://127.0.0.1:8787"
		w.hosts[local] = newSigner(t)
		a := w.enrolled()
		w.signer.set(func(s *signerStandIn) { s.fail = 503 })
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonSignerUnavailable)
		for _, r := range w.calls(egress.Signer) {
			if !strings.HasPrefix(r.url, signerURL) {
				t.Errorf("asked %s", r.url)
			}
		}
		// Nor may a loopback signer call itself a real one.
		v, err := w.open().Enroll(t.Context(), agent.Caller{Principal: "bob", Origin: agent.OriginOwnerCLI},
			agent.EnrollRequest{SignerURL: local, Deployment: agent.DeploymentManaged})
		if err == nil && v.Deployment != agent.DeploymentDevelopment {
			t.Errorf("got %+v", v)
		}
	})
}

// ID-2: a configured issuer is reduced to its origin before it is compared.
func TestConfiguredIssuerIsAnOrigin(t *testing.T) {
	for issuer, reason := range map[string]string{
		signerURL: "", signerURL + "/": "", "HTTPS://PA.Example.com:443/issuer?x=1": "",
		"https://pa.example.com:8443": agent.ReasonIssuerMismatch, "http://pa.example.com": agent.ReasonIssuerMismatch,
		"pa.example.com": agent.ReasonInvalidInput, "/": agent.ReasonInvalidInput,
	} {
		bubble.Test(t, func(t *testing.T) {
			v, err := newWorld(t).open().Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL + "///", Issuer: issuer})
			if agent.ReasonOf(err) != reason || err == nil && (v.Issuer != signerURL || v.SignerURL != signerURL) {
				t.Errorf("%s: %+v, %v; want %q", issuer, v, err, reason)
			}
		})
	}
}

// ID-3, GR-1: another issuer is another subject binding, under which no grant of
// the first counts; back at the first everything is as it was.
func TestOneBindingForEachIssuer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const second = "https://second.example.com"
		s := newSigner(t)
		s.url, s.issuer, s.subject, s.audiences = second, second, "pa_second", w.signer.audiences
		w.hosts[second] = s
		a := granted(w, 50*time.Minute, "trips:read")
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: second}); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		w.want(`SELECT COUNT(*) FROM bindings`, "2")
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		w.want(`SELECT COUNT(*) FROM bindings`, "2")
		// Another principal has a binding of their own.
		bob := owner()
		bob.Principal = "bob"
		if _, err := a.Enroll(t.Context(), bob, agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		w.want(`SELECT COUNT(*) FROM bindings`, "3")
		w.send(a, bob, readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	})
}

// ID-4, SG-8: a new subject is another revision of the binding, and no token of
// the old one is used again.
func TestNewSubjectMovesTheBinding(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		pending := w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		w.want(`SELECT json_extract(CAST(data AS TEXT), '$.Changes') FROM bindings`, "0")
		time.Sleep(61 * time.Second)
		w.signer.set(func(s *signerStandIn) { s.subject = "pa_new" })
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityChanged)
		w.want(`SELECT json_extract(CAST(data AS TEXT), '$.Changes') || json_extract(CAST(data AS TEXT), '$.Subject') FROM bindings`, "1pa_new")
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		turns := w.biz.sent()
		if c := claimsOf(t, turns[len(turns)-1].token); len(turns) != 2 || c["sub"] != "pa_new" {
			t.Errorf("sent as %v", c)
		}
		list, err := a.Authorizations(t.Context(), owner())
		if err != nil || list[0].ID != pending.Authorization.ID || list[0].State == "pending" {
			t.Errorf("sign-ins %+v, %v", list, err)
		}
	})
}

// ID-6: a signer that states no subject makes no identity, then and later.
func TestNoSubject(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.signer.set(func(s *signerStandIn) { s.subject = "" })
		s, err := a.Status(t.Context(), owner())
		if err != nil || s.Ready || s.Reason != agent.ReasonIdentityNotReady {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// callerMethods calls each method of the agent that takes a caller, with zero
// values for the rest.
func callerMethods(t *testing.T, a *agent.Agent, c agent.Caller, do func(name string, err error)) {
	t.Helper()
	v := reflect.ValueOf(a)
	for i := range v.NumMethod() {
		m := v.Method(i)
		if m.Type().NumIn() < 2 || m.Type().In(1) != reflect.TypeFor[agent.Caller]() {
			continue
		}
		args := []reflect.Value{reflect.ValueOf(t.Context()), reflect.ValueOf(c)}
		for j := 2; j < m.Type().NumIn(); j++ {
			args = append(args, reflect.Zero(m.Type().In(j)))
		}
		out := m.Call(args)
		err, _ := out[len(out)-1].Interface().(error)
		do(v.Type().Method(i).Name, err)
	}
}

// ID-7: no call has a principal by default.
func TestEveryCallNamesItsPrincipal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		before, n := len(w.requests), 0
		callerMethods(t, a, agent.Caller{Origin: agent.OriginOwnerCLI, Human: agent.HumanInteractive}, func(name string, err error) {
			if n++; err == nil || !strings.Contains(err.Error(), "Principal") {
				t.Errorf("%s without a principal: %v", name, err)
			}
		})
		if n < 15 || len(w.requests) != before {
			t.Errorf("%d methods, %d requests", n, len(w.requests)-before)
		}
	})
}

// ID-7: what belongs to one principal is not there for another, by any id.
func TestNothingOfAnotherPrincipal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.set(func(b *business) { b.receipt = func(_, e map[string]any) { e["none"] = true } })
		r := w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		pending := w.send(a, owner(), agent.SendRequest{Message: "Show past trips", Scopes: []string{"trips:history"}}, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if _, err := a.AddProvider(t.Context(), owner(), "https://mine.example", "aud-mine", ""); err != nil {
			t.Fatal(err)
		}
		grant := onlyGrant(t, a).ID

		bob := w.person()
		bob.Principal = "bob"
		shown := false
		bob.SignIn = func(context.Context, agent.SignIn) error { shown = true; return nil }
		if _, err := a.Enroll(t.Context(), bob, agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		for name, err := range map[string]error{
			"conversation": second(a.Conversation(ctx, bob, r.Conversation)),
			"receipt":      second(a.Receipt(ctx, bob, r.Evidence.Receipt)),
			"verify":       second(a.VerifyStoredReceipt(ctx, bob, r.Evidence.Receipt)),
			"acknowledge":  second(a.Acknowledge(ctx, bob, r.Evidence.Receipt)),
			"disconnect":   second(a.Disconnect(ctx, bob, grant)),
			"cancel":       second(a.CancelAuthorization(ctx, bob, pending.Authorization.ID)),
			"wait":         second(a.WaitAuthorization(ctx, bob, pending.Authorization.ID)),
			"provider":     a.RemoveProvider(ctx, bob, "https://mine.example"),
		} {
			if !errors.Is(err, agent.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if shown {
			t.Error("bob saw alice's link")
		}
		w.send(a, bob, agent.SendRequest{Message: "Show", Conversation: r.Conversation}, agent.StatusFailed, agent.ReasonNotFound)
		counts := func(c agent.Caller) string {
			t.Helper()
			conversations, err1 := a.Conversations(ctx, c)
			receipts, err2 := a.Receipts(ctx, c)
			grants, err3 := a.Grants(ctx, c)
			signIns, err4 := a.Authorizations(ctx, c)
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(len(conversations), len(receipts), len(grants), len(signIns))
		}
		if got := counts(bob); got != "0 0 0 0" {
			t.Errorf("bob has %s", got)
		}
		if got := counts(owner()); !strings.HasSuffix(got, " 1 1 2") {
			t.Errorf("alice has %s", got)
		}
		providers, err := a.Providers(ctx, bob)
		if err != nil || len(providers) != 1 || providers[0].Source != agent.SourceSigner {
			t.Errorf("providers %+v, %v", providers, err)
		}
		// Nor does alice's evidence hold bob's changes back (CV-4, EV-6 are per principal).
		w.biz.set(func(b *business) { b.receipt = nil })
		w.send(a, bob, agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
	})
}

func second[T any](_ T, err error) error { return err }

// PR-1: nothing that a business says is an audience.
func TestAudienceIsNoBusinessesWord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.card["audience"], w.biz.metadata["audience"], w.biz.metadata["resource"] = "aud-evil", "aud-evil", "aud-evil"
		w.biz.card["securitySchemes"].(map[string]any)["pa"].(map[string]any)["httpAuthSecurityScheme"].(map[string]any)["audience"] = "aud-evil"
		w.biz.answer = func(u turn) (int, any) {
			return 401, http.Header{"Www-Authenticate": {`Bearer realm="a2a", audience="aud-evil", resource="aud-evil"`}}
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityRejected)
		// Nor where its card came from: there only the interface counts.
		w.signer.set(func(s *signerStandIn) { s.audiences = map[string]string{"https://air.example.com": "aud-evil"} })
		time.Sleep(time.Minute)
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonNoAudience)
		n := 0
		for _, r := range w.calls(egress.Signer) {
			if strings.Contains(r.body, "aud-evil") {
				t.Errorf("asked for %s", r.body)
			}
			if strings.HasSuffix(r.url, "/sign") {
				n++
			}
		}
		if n != 2 {
			t.Errorf("%d signed", n)
		}
	})
}

// PR-2: the limits at their edges.
func TestProviderLimits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		add := func(n int, audience, label, reason string) {
			t.Helper()
			v, err := a.AddProvider(t.Context(), owner(), fmt.Sprintf("https://p%d.example", n), audience, label)
			if agent.ReasonOf(err) != reason || err == nil && v.Audience != strings.TrimSpace(audience) {
				t.Errorf("%d: %+v, %v; want %q", n, v, err, reason)
			}
		}
		long := strings.Repeat("ä", 512)
		add(0, long+"x", "", agent.ReasonInvalidInput)
		add(0, "aud", strings.Repeat("ä", 121), agent.ReasonInvalidInput)
		add(0, " "+long+" ", strings.Repeat("ä", 120), "")
		for n := 1; n < 100; n++ {
			add(n, fmt.Sprint("aud-", n), "", "")
		}
		add(100, "aud-100", "", agent.ReasonInvalidInput)
		add(99, "aud-99b", "", "") // an entry that is there already is no more
		if err := a.RemoveProvider(t.Context(), owner(), "https://p0.example"); err != nil {
			t.Fatal(err)
		}
		add(100, "aud-100", "", "")
	})
}

// PR-2: what the signer lists is held to the same: trimmed, not overlong, one for
// an origin.
func TestRegisteredAudiences(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.intercept(signerURL, "/pact/status", func(rw http.ResponseWriter, _ *http.Request) bool {
			respond(rw, 200, `{"issuer":"`+signerURL+`","subject":"pa_alice","disabled":false,"audiences":{
				"`+provider+`":" `+audience+` ","https://long.example":"`+strings.Repeat("x", 513)+`",
				"HTTPS://PROVIDER.example.com:443":"aud-evil","https://fits.example":"`+strings.Repeat("x", 512)+`"}}`)
			return true
		})
		a := w.enrolled()
		list, err := a.Providers(t.Context(), owner())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, p := range list {
			got[p.Origin] = len(p.Audience)
		}
		if want := map[string]int{provider: len(audience), "https://fits.example": 512}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		if c := claimsOf(t, w.biz.sent()[0].token); c["aud"] != audience {
			t.Errorf("asked for %v", c["aud"])
		}
	})
}

// PR-3: each state with its reason.
func TestProviderReadiness(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.open()
		if err := second(a.AddProvider(t.Context(), owner(), provider, "aud-mine", "")); err != nil {
			t.Fatal(err)
		}
		state := func(want string) {
			t.Helper()
			list, err := a.Providers(t.Context(), owner())
			if err != nil || len(list) != 1 || list[0].State+" "+list[0].Reason != want {
				t.Errorf("%+v, %v; want %s", list, err, want)
			}
		}
		state("not_ready " + agent.ReasonIdentityNotSet)
		if err := second(a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL})); err != nil {
			t.Fatal(err)
		}
		state("ready ")
		// No audience at all: nothing is listed, and a send says so.
		if err := a.RemoveProvider(t.Context(), owner(), provider); err != nil {
			t.Fatal(err)
		}
		w.signer.set(func(s *signerStandIn) { clear(s.audiences) })
		time.Sleep(time.Minute)
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonNoAudience)
	})
}

const configRevision = `SELECT json_extract(CAST(data AS TEXT), '$.ConfigRevision') FROM providers WHERE key = '` + provider + `'`

// PR-4: another audience or issuer is another revision, and the same one is not.
func TestConfigRevision(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for i, change := range []func(){
			func() {}, func() {},
			func() {
				if err := second(a.AddProvider(t.Context(), owner(), provider, "aud-mine", "")); err != nil {
					t.Fatal(err)
				}
			},
			func() {
				w.signer.set(func(s *signerStandIn) { s.issuer = "https://next.example.com" })
				if err := second(a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL})); err != nil {
					t.Fatal(err)
				}
			},
		} {
			change()
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
			w.want(configRevision, []string{"1", "1", "2", "3"}[i])
		}
	})
}

// PR-4, PO-7: a provider that is no longer ready ends the wait for a sign-in at
// the next poll, and is sent no refresh token.
func TestReadinessIsAskedAtEachPollAndRefresh(t *testing.T) {
	lose := func(w *world) { w.signer.set(func(s *signerStandIn) { clear(s.audiences) }) }
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := patient(w)
		c.SignIn = func(context.Context, agent.SignIn) error { lose(w); return nil }
		time.Sleep(50 * time.Second) // the status is old at the third poll
		w.authorize(a, c, agent.StatusFailed, agent.ReasonNoAudience)
		if n := len(w.polls()); n > 12 {
			t.Errorf("%d polls", n)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:read")
		lose(w)
		w.send(a, owner(), readTrips, agent.StatusBlocked, agent.ReasonNoAudience)
		if w.biz.refreshed != 0 || len(w.biz.sent()) != 0 {
			t.Error("something was sent")
		}
	})
}
