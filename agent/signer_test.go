package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// SG-1, SG-2, SG-3, ID-2: enrolment by a device key.
func TestEnrollDevice(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.signer.enrolToken = "enrol-secret-token"
		a := w.open()
		_, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL + "/"})
		if agent.ReasonOf(err) != agent.ReasonCredentialRejected {
			t.Errorf("without the token: %v", err)
		}
		v, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL + "/", Token: "enrol-secret-token", Issuer: signerURL})
		if err != nil {
			t.Fatal(err)
		}
		if v.SignerURL != signerURL || v.Issuer != signerURL || v.Subject != "pa_alice" || v.Mode != "device" || v.Deployment != agent.DeploymentSelfHosted || v.Development {
			t.Errorf("got %+v", v)
		}
		// The same signer again: the same key, so the same device.
		again, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL, Token: "enrol-secret-token"})
		if err != nil || again.Thumbprint != v.Thumbprint || len(w.signer.devices) != 1 {
			t.Errorf("got %+v, %v", again, err)
		}
		for _, body := range w.signer.seen {
			if strings.Contains(body, `"iss"`) || strings.Contains(body, `"sub"`) || strings.Contains(body, `"d"`) {
				t.Errorf("the request says too much: %s", body)
			}
		}
		// It outlives the program.
		s, err := w.open().Status(t.Context(), owner())
		if err != nil || !s.Ready || s.Identity.Subject != "pa_alice" || s.Audiences[provider] != audience {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// SG-3, SG-14: a credential works as well, and lies nowhere in the clear.
func TestEnrollCredential(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const credential = "credential-0123456789-very-secret"
		w.signer.credential = credential
		a := w.open()
		for _, bad := range []agent.Secret{"short", agent.Secret(strings.Repeat("x", 4097)), "another-credential-000"} {
			if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL, Credential: bad}); err == nil || strings.Contains(err.Error(), string(bad)) {
				t.Errorf("credential of %d characters: %v", len(bad), err)
			}
		}
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL, Credential: credential}); err != nil {
			t.Fatal(err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		// Whole, for what is sealed can have three letters of anything.
		sealed := []string{credential, "dc_secret_device_code", "ABCD-EFGH", "eyJhbGci", w.biz.refresh, "cust-1"}
		for _, u := range w.biz.sent() {
			sealed = append(sealed, strings.Split(u.token+"."+u.delegation, ".")...)
		}
		entries, err := os.ReadDir(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() { // of locks
				continue
			}
			data, err := os.ReadFile(filepath.Join(w.dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range sealed {
				if bytes.Contains(data, []byte(secret)) {
					t.Errorf("%s holds %q in the clear", e.Name(), secret)
				}
			}
			if info, _ := e.Info(); info.Mode().Perm()&0o077 != 0 && !strings.HasSuffix(e.Name(), "-shm") && !strings.HasSuffix(e.Name(), "-wal") {
				t.Errorf("%s has mode %o", e.Name(), info.Mode().Perm())
			}
		}
	})
}

// UR-2, ID-1: a loopback signer sets development mode, and counts only in it.
func TestEnrollLoopback(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const local = "http://127.0.0.1:8787"
		w.hosts[local] = w.signer
		w.signer.issuer, w.signer.credential = local, "credential-0123456789"
		a := w.open()
		v, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: local, Credential: "credential-0123456789"})
		if err != nil || !v.Development || v.Deployment != agent.DeploymentDevelopment {
			t.Fatalf("got %+v, %v", v, err)
		}
		if !w.open().Rules().Development {
			t.Error("the profile forgot it")
		}
	})
}

// SG-11, ID-2, ID-6: what is refused of a signer's answer.
func TestEnrollRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*signerStandIn)
		req    agent.EnrollRequest
		reason string
	}{
		"another issuer":     {func(*signerStandIn) {}, agent.EnrollRequest{Issuer: "https://other.example.com"}, agent.ReasonIssuerMismatch},
		"issuer with a path": {func(s *signerStandIn) { s.issuer = signerURL + "/" }, agent.EnrollRequest{}, agent.ReasonIssuerMismatch},
		"http issuer":        {func(s *signerStandIn) { s.issuer = "http://pa.example.com" }, agent.EnrollRequest{}, agent.ReasonIssuerMismatch},
		"long subject":       {func(s *signerStandIn) { s.subject = strings.Repeat("x", 257) }, agent.EnrollRequest{}, agent.ReasonIdentityNotReady},
		"disabled":           {func(s *signerStandIn) { s.fail = 403 }, agent.EnrollRequest{}, agent.ReasonSignerDisabled},
		"unavailable":        {func(s *signerStandIn) { s.fail = 503 }, agent.EnrollRequest{}, agent.ReasonSignerUnavailable},
		"rate limited":       {func(s *signerStandIn) { s.fail = 429 }, agent.EnrollRequest{}, agent.ReasonSignerUnavailable},
		"http signer":        {func(*signerStandIn) {}, agent.EnrollRequest{SignerURL: "http://pa.example.com"}, agent.ReasonInvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.open()
				w.signer.set(c.change)
				if c.req.SignerURL == "" {
					c.req.SignerURL = signerURL
				}
				if _, err := a.Enroll(t.Context(), owner(), c.req); agent.ReasonOf(err) != c.reason {
					t.Errorf("got %v, want %s", err, c.reason)
				}
				if s, err := a.Status(t.Context(), owner()); err != nil || s.Identity != nil {
					t.Errorf("it was remembered: %+v, %v", s, err)
				}
			})
		})
	}
}

// SG-5, SG-6, SG-8: what the signer answers to sign, and nothing reaches the
// business.
func TestSignerRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*signerStandIn)
		reason string
	}{
		"disabled":            {func(s *signerStandIn) { s.disabled = true }, agent.ReasonSignerDisabled},
		"unavailable":         {func(s *signerStandIn) { s.fail = 503 }, agent.ReasonSignerUnavailable},
		"device forgotten":    {func(s *signerStandIn) { clear(s.devices) }, agent.ReasonCredentialRejected},
		"another issuer":      {func(s *signerStandIn) { s.issuer = "https://other.example.com" }, agent.ReasonIdentityNotReady},
		"no subject":          {func(s *signerStandIn) { s.subject = "" }, agent.ReasonIdentityNotReady},
		"wrong audience":      {func(s *signerStandIn) { s.change = func(c, _ map[string]any) { c["aud"] = []string{audience} } }, agent.ReasonInvalidToken},
		"too long a life":     {func(s *signerStandIn) { s.change = func(c, _ map[string]any) { c["exp"] = time.Now().Unix() + 301 } }, agent.ReasonInvalidToken},
		"no audience":         {func(s *signerStandIn) { clear(s.audiences) }, agent.ReasonNoAudience},
		"one for two origins": {func(s *signerStandIn) { s.audiences["https://other.example.com"] = audience }, agent.ReasonNoAudience},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.signer.set(c.change)
				w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusBlocked, c.reason)
				if n := len(w.calls(egress.Message)); n != 0 {
					t.Errorf("%d messages", n)
				}
			})
		})
	}
}

// SG-8, SG-10: a disabled signer is noticed within a minute, at once by status,
// and drops the tokens.
func TestKillSwitchIsSeen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		w.signer.set(func(s *signerStandIn) { s.disabled = true })
		s, err := a.Status(t.Context(), owner())
		if err != nil || s.Ready || !s.SignerDisabled || s.Reason != agent.ReasonSignerDisabled {
			t.Errorf("status %+v, %v", s, err)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonSignerDisabled)
		w.signer.set(func(s *signerStandIn) { s.disabled = false })
		before, _ := w.signer.counts()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		if after, _ := w.signer.counts(); after != before+1 {
			t.Error("a token from before was used")
		}
	})
}

// SG-7, SG-10: how long tokens and statuses are used.
func TestTokenAndStatusReuse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		start := time.Now()
		for _, step := range []struct {
			at            time.Duration
			signed, asked int
		}{
			{0, 1, 1}, {59 * time.Second, 1, 1}, {60 * time.Second, 1, 2}, {74 * time.Second, 1, 2},
			{75 * time.Second, 2, 2}, // 45 s of 120 are left: no more
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
			if signed, asked := w.signer.counts(); signed != step.signed || asked != step.asked {
				t.Errorf("at %v: %d signed, %d asked; want %d, %d", step.at, signed, asked, step.signed, step.asked)
			}
		}
	})
}

// ID-4, ID-5: another subject ends grants, sign-ins and conversations, and
// nothing is sent.
func TestSubjectChange(t *testing.T) {
	for name, change := range map[string]func(*signerStandIn){
		"in the status": func(s *signerStandIn) { s.subject = "pa_other" },
		"in the token":  func(s *signerStandIn) { s.tokenSub = "pa_other" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				r := w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
				time.Sleep(5 * time.Minute)
				w.signer.set(change)
				before := len(w.calls(egress.Message))
				w.send(a, w.person(), agent.SendRequest{Message: "Show", Conversation: r.Conversation}, agent.StatusBlocked, agent.ReasonIdentityChanged)
				if len(w.calls(egress.Message)) != before {
					t.Error("something was sent")
				}
				grants, err := a.Grants(t.Context(), owner())
				if err != nil || len(grants) != 1 || grants[0].State != "invalid" || grants[0].Reason != agent.ReasonSubjectChanged {
					t.Errorf("grants %+v, %v", grants, err)
				}
				if v, err := a.Conversation(t.Context(), owner(), r.Conversation); err != nil || v.State != "closed" {
					t.Errorf("conversation %+v, %v", v, err)
				}
			})
		})
	}
}

// SG-4: a signer secret does not open for another signer or issuer.
func TestSignerSecretIsBound(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		// Somebody turns the profile to another signer by editing the database.
		evil := "https://evil.example.net"
		w.hosts[evil] = w.signer
		w.edit(`UPDATE identities SET data = CAST(replace(CAST(data AS TEXT), '` + signerURL + `', '` + evil + `') AS BLOB)`)
		before := len(w.calls(egress.Signer))
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityKeyRejected)
		for _, r := range w.calls(egress.Signer)[before:] {
			t.Errorf("asked %s", r.url)
		}
	})
}

// PO-1, PO-2: availability in its order.
func TestAvailability(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.open()
		status := func(a *agent.Agent, want string) {
			t.Helper()
			if s, err := a.Status(t.Context(), owner()); err != nil || s.Reason != want {
				t.Errorf("status %q, %v; want %q", s.Reason, err, want)
			}
		}
		status(a, agent.ReasonDisabledInSettings)
		if _, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL)); err != nil { // DI-12
			t.Errorf("discover without identity: %v", err)
		}
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		status(a, "")
		if err := a.SetPreference(t.Context(), owner(), agent.DisabledPACT); err != nil {
			t.Fatal(err)
		}
		status(a, agent.ReasonPACTDisabled)
		w.config.Policy = fixed(agent.Policy{})
		status(w.open(), agent.ReasonDisabledByAdmin)
		w.config.DisabledByEnv = true
		b := w.open()
		status(b, agent.ReasonDisabledByEnv)
		if _, err := b.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL)); agent.ReasonOf(err) != agent.ReasonDisabledByEnv {
			t.Errorf("discover: %v", err)
		}
	})
}

// PR-1, PR-2, PR-3, PR-5, PR-6: the registry of providers.
func TestProviders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Policy = fixed(agent.Policy{Enabled: true, BlockedProviders: []string{"*.bad.example", "Exact.example", "https://origin.example:8443"}})
		a := w.enrolled()
		add := func(origin, aud string) error {
			_, err := a.AddProvider(t.Context(), owner(), origin, aud, " label ")
			return err
		}
		for origin, aud := range map[string]string{
			"https://x.example/path": "a", "x.example": "a", "http://x.example": "a", "https://x.example": " ",
			"https://y.example": strings.Repeat("x", 513), "https://z.example": audience, // the signer's for provider
		} {
			if err := add(origin, aud); agent.ReasonOf(err) != agent.ReasonInvalidInput {
				t.Errorf("%s %.10s: %v", origin, aud, err)
			}
		}
		for origin, aud := range map[string]string{"https://X.Example:443/": " aud-x ", "https://a.bad.example": "b", "https://exact.example": "c", "https://origin.example:8443": "d", "https://bad.example": "e"} {
			if err := add(origin, aud); err != nil {
				t.Errorf("%s: %v", origin, err)
			}
		}
		if err := add("https://other.example", "aud-x"); agent.ReasonOf(err) != agent.ReasonInvalidInput {
			t.Errorf("one audience for two: %v", err)
		}
		got := map[string]string{}
		list, err := a.Providers(t.Context(), owner())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			got[p.Origin] = p.Audience + " " + p.Source + " " + p.State
		}
		want := map[string]string{
			"https://x.example": "aud-x settings ready", "https://a.bad.example": "b settings blocked", "https://exact.example": "c settings blocked",
			"https://origin.example:8443": "d settings blocked", "https://bad.example": "e settings ready", provider: audience + " signer ready",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		// The owner's entry counts before the signer's.
		if err := add(provider, "mine"); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		if err := a.RemoveProvider(t.Context(), owner(), provider); err != nil {
			t.Fatal(err)
		}
		if err := a.RemoveProvider(t.Context(), owner(), provider); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
	})
}

// PR-5: a blocked provider is not contacted at all.
func TestBlockedProvider(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Policy = fixed(agent.Policy{Enabled: true, BlockedProviders: []string{"provider.example.com"}})
		a := w.enrolled()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusFailed, "policy_denied")
		for _, r := range w.calls(egress.Card) {
			if strings.HasPrefix(r.url, provider) {
				t.Errorf("asked %s", r.url)
			}
		}
	})
}
