package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// fixed is a policy that stays as it is.
func fixed(p agent.Policy) func() (agent.Policy, error) {
	return func() (agent.Policy, error) { return p, nil }
}

// PO-6, PR-5: both spellings, what is not said, and what is refused by member.
func TestParsePolicy(t *testing.T) {
	for doc, want := range map[string]string{
		`{}`:                           "on route",
		`{"other":{"enabled":1}}`:      "on route",
		`{"pact":{}}`:                  "on route",
		`{"pact":{"enabled":false}}`:   "off route",
		`{"pact.enabled":false}`:       "off route",
		`{"pact":{"autoRoute":false}}`: "on",
		`{"pact.autoRoute":false,"pact":{"enabled":false}}`:                                 "off",
		`{"pact":{"blockedProviders":["*.x.example","y.example","https://Z.example:444"]}}`: "on route *.x.example y.example https://Z.example:444",
		`{"pact.blockedProviders":["::1"," 10.0.0.1 "]}`:                                    "on route ::1  10.0.0.1 ",
	} {
		p, err := agent.ParsePolicy([]byte(doc))
		got := []string{"off"}
		if p.Enabled {
			got[0] = "on"
		}
		if p.AutoRoute {
			got = append(got, "route")
		}
		if got := strings.Join(append(got, p.BlockedProviders...), " "); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", doc, got, err, want)
		}
	}
	for doc, member := range map[string]string{
		``:                                          "",
		`[]`:                                        "",
		`{"pact":{"enabled":true}} x`:               "",
		`{"a":1,"a":2}`:                             "",
		`{"pact":[]}`:                               "pact:",
		`{"pact":null}`:                             "pact:",
		`{"pact":{"enabled":"false"}}`:              "pact.enabled:",
		`{"pact":{"enabled":null}}`:                 "pact.enabled:",
		`{"pact.enabled":0}`:                        "pact.enabled:",
		`{"pact":{"Enabled":false}}`:                "pact.Enabled:",
		`{"pact":{"blocked":[]}}`:                   "pact.blocked:",
		`{"pact.":1}`:                               "pact.:",
		`{"PACT":{"enabled":false}}`:                "PACT:",
		`{"Pact.enabled":false}`:                    "Pact.enabled:",
		`{"pact":{"autoRoute":[]}}`:                 "pact.autoRoute:",
		`{"pact":{"blockedProviders":{}}}`:          "pact.blockedProviders:",
		`{"pact":{"enabled":false,"enabled":true}}`: "",
		`{"pact.enabled":true,"pact":{"enabled":true}}`:         "pact.enabled:",
		`{"pact":{"blockedProviders":["x.example",1]}}`:         "pact.blockedProviders[1]:",
		`{"pact":{"blockedProviders":[""]}}`:                    "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["*"]}}`:                   "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["*."]}}`:                  "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["x.example:444"]}}`:       "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["x.example/path"]}}`:      "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["https://"]}}`:            "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["a.*.example"]}}`:         "pact.blockedProviders[0]:",
		`{"pact":{"blockedProviders":["https://*.x.example"]}}`: "pact.blockedProviders[0]:",
	} {
		if p, err := agent.ParsePolicy([]byte(doc)); err == nil || !strings.Contains(err.Error(), member) {
			t.Errorf("%s: %+v, %v; want an error of %q", doc, p, err, member)
		}
	}
}

// PO-6: whatever a policy file holds, it widens nothing, and what is refused
// allows nothing by accident.
func FuzzParsePolicy(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"pact":{"enabled":false,"autoRoute":true,"blockedProviders":["*.x"]}}`, `{"pact.enabled":false}`,
		`{"pact":{"enabled":null}}`, `{"pact":{"blockedProviders":["https://x:1","::1"]}}`, `{"pact":1}`, `{"pact.x":1}`, `{"PACT":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := agent.ParsePolicy(data)
		if err != nil {
			if p.Enabled || p.AutoRoute || p.BlockedProviders != nil {
				t.Errorf("refused, and yet %+v", p)
			}
			return
		}
		// Read among others it stays at least as narrow, in either order.
		path := filepath.Join(t.TempDir(), "p.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := agent.PolicyFiles(path, path)()
		if len(data) > 64<<10 {
			return
		}
		if err != nil || all.Enabled != p.Enabled || all.AutoRoute != p.AutoRoute {
			t.Errorf("%+v alone, %+v twice, %v", p, all, err)
		}
		for _, e := range p.BlockedProviders {
			if !slices.Contains(all.BlockedProviders, e) {
				t.Errorf("%q is lost", e)
			}
		}
	})
}

// PO-6: several files combine and only narrow; a missing one narrows nothing; one
// that is there and cannot be used is an error that names it.
func TestPolicyFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, doc string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	missing := filepath.Join(dir, "missing.json")
	if p, err := agent.PolicyFiles(missing)(); err != nil || !p.Enabled || !p.AutoRoute || len(p.BlockedProviders) > 0 || p.Sources[0].Read {
		t.Errorf("missing: %+v, %v", p, err)
	}
	a := file("a.json", `{"pact":{"enabled":false,"blockedProviders":["a.example"]}}`)
	b := file("b.json", `{"pact":{"enabled":true,"autoRoute":false,"blockedProviders":["b.example","a.example"]}}`)
	for _, order := range [][]string{{a, missing, b}, {b, a, missing}} {
		p, err := agent.PolicyFiles(order...)()
		if err != nil || p.Enabled || p.AutoRoute || !slices.Equal(p.BlockedProviders, []string{"a.example", "b.example"}) || len(p.Sources) != 3 {
			t.Errorf("%v: %+v, %v", order, p, err)
		}
	}
	long := file("long.json", `{"x":"`+strings.Repeat("x", 64<<10)+`"}`)
	just := file("just.json", `{"x":"`+strings.Repeat("x", 64<<10-8)+`"}`)
	if _, err := agent.PolicyFiles(just)(); err != nil {
		t.Errorf("64 KiB: %v", err)
	}
	dangling := filepath.Join(dir, "dangling.json")
	if err := os.Symlink(missing, dangling); err != nil {
		t.Fatal(err)
	}
	for path, why := range map[string]string{
		long: "longer than", dir: "regular file", dangling: "link to nothing", file("bad.json", `{"pact":{"enabled":1}}`): "pact.enabled",
		filepath.Join(a, "below-a-file.json"): "cannot be read",
	} {
		p, err := agent.PolicyFiles(a, path)()
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), path) || p.Sources[1].Problem == "" || !p.Sources[0].Read {
			t.Errorf("%s: %+v, %v", path, p.Sources, err)
		}
	}
}

// PO-1: the order of what stands in the way, told by Policy with every file.
func TestPolicyView(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		path := filepath.Join(w.dir, "policies.json")
		w.config.Policy = agent.PolicyFiles(filepath.Join(w.dir, "none.json"), path)
		view := func(a *agent.Agent, reason string) agent.PolicyView {
			t.Helper()
			v, err := a.Policy(t.Context(), owner())
			if err != nil || v.Reason != reason || v.Available != (reason == "") {
				t.Errorf("%+v, %v; want %q", v, err, reason)
			}
			return v
		}
		a := w.open()
		view(a, agent.ReasonDisabledInSettings)
		if err := a.SetEnabled(t.Context(), owner(), true); err != nil {
			t.Fatal(err)
		}
		if v := view(a, agent.ReasonIdentityNotSet); !v.Enabled || v.Preference != agent.PreferPACT { // PO-2
			t.Errorf("%+v", v)
		}
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		v := view(a, "")
		if !v.Policy.Enabled || !v.Policy.AutoRoute || len(v.Sources) != 2 || v.Sources[0].Read || v.Sources[1].Read {
			t.Errorf("%+v", v)
		}
		if err := a.SetEnabled(t.Context(), owner(), false); err != nil {
			t.Fatal(err)
		}
		view(a, agent.ReasonDisabledInSettings)
		if err := os.WriteFile(path, []byte(`{"pact":{"enabled":"yes"}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		v = view(a, agent.ReasonDisabledByAdmin)
		if v.Policy.Enabled || v.Policy.AutoRoute || !strings.Contains(v.Sources[1].Problem, "pact.enabled") || !strings.Contains(v.Detail, path) {
			t.Errorf("%+v", v)
		}
		w.config.DisabledByEnv = true
		if v := view(w.open(), agent.ReasonDisabledByEnv); !v.DisabledByEnv {
			t.Errorf("%+v", v)
		}
		// Only the owner, on their own surface, changes settings.
		for name, c := range map[string]agent.Caller{"task": inTask("t-1", "work"), "bot": {Principal: alice, Origin: agent.OriginBot}} {
			if err := a.SetEnabled(t.Context(), c, true); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", name, err)
			}
			if err := a.SetPreference(t.Context(), c, agent.PreferPACT); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := a.Enroll(t.Context(), c, agent.EnrollRequest{SignerURL: signerURL}); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := a.AddProvider(t.Context(), c, provider, "mine", ""); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", name, err)
			}
			if err := a.RemoveProvider(t.Context(), c, provider); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// PO-7, PO-1: the policy is asked anew at every send; one that cannot be read
// switches PACT off, and nothing leaves, not to the signer either.
func TestPolicyAtEverySend(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, failure := agent.DefaultPolicy(), error(nil)
		w.config.Policy = func() (agent.Policy, error) { return p, failure }
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		w.send(a, owner(), show, agent.StatusReplied, "")
		before := len(w.calls(egress.Message))
		quiet := func(reason string) {
			t.Helper()
			w.mu.Lock()
			all := len(w.requests)
			w.mu.Unlock()
			r := w.send(a, owner(), show, agent.StatusBlocked, reason)
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.requests) != all {
				t.Errorf("%s: %d requests", reason, len(w.requests)-all)
			}
			if failure != nil && !strings.Contains(r.Detail, failure.Error()) {
				t.Errorf("detail %q", r.Detail)
			}
		}
		p.Enabled = false
		quiet(agent.ReasonDisabledByAdmin)
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); agent.ReasonOf(err) != agent.ReasonDisabledByAdmin {
			t.Errorf("enrol: %v", err)
		}
		p = agent.DefaultPolicy()
		failure = errors.New("policies.json: pact.enabled: must be true or false")
		quiet(agent.ReasonDisabledByAdmin)
		failure = nil
		p.BlockedProviders = []string{"provider.example.com"}
		quiet(agent.ReasonBlockedByAdmin)
		p.BlockedProviders = []string{"no such form*"}
		quiet(agent.ReasonDisabledByAdmin)
		p = agent.Policy{}
		// Where no gate is asked the network still is.
		time.Sleep(2 * time.Minute) // no status in store
		_, asked := w.signer.counts()
		if _, err := a.Providers(t.Context(), owner()); err != nil {
			t.Error(err)
		}
		if _, now := w.signer.counts(); now != asked {
			t.Error("the signer was asked")
		}
		p = agent.DefaultPolicy()
		w.send(a, owner(), show, agent.StatusReplied, "")
		if got := len(w.calls(egress.Message)); got != before+1 {
			t.Errorf("%d messages", got)
		}
	})
}

// PO-7, DA-9: and before each poll of a sign-in.
func TestPolicyAtEveryPoll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var blocked atomic.Bool
		w.config.Policy = func() (agent.Policy, error) {
			p := agent.DefaultPolicy()
			if blocked.Load() {
				p.BlockedProviders = []string{"*.example.com"}
			}
			return p, nil
		}
		a := w.enrolled()
		c := w.person()
		c.SignIn = nil
		r := w.send(a, c, agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		done := make(chan agent.Result)
		go func() {
			got, _ := a.WaitAuthorization(t.Context(), c, r.Authorization.ID)
			done <- got
		}()
		time.Sleep(11 * time.Second) // two polls
		polls := len(w.calls(egress.Token))
		blocked.Store(true)
		w.biz.allow("trips:read")
		got := <-done
		if got.Status != agent.StatusFailed || got.Reason != agent.ReasonBlockedByAdmin || polls != 2 || len(w.calls(egress.Token)) != polls {
			t.Errorf("%s %s after %d polls, then %d", got.Status, got.Reason, polls, len(w.calls(egress.Token)))
		}
	})
}

// PO-7, GR-5: and before each refresh; the grant stays.
func TestPolicyAtEveryRefresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		disabled := false
		w.config.Policy = func() (agent.Policy, error) {
			p := agent.DefaultPolicy()
			p.Enabled = !disabled
			return p, nil
		}
		a := w.enrolled()
		read := agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}
		w.send(a, w.person(), read, agent.StatusReplied, "")
		time.Sleep(59*time.Minute + 30*time.Second)
		c := w.person()
		c.Progress = func(e agent.Event) { disabled = disabled || e.Kind == agent.EventRefreshing }
		w.send(a, c, read, agent.StatusBlocked, agent.ReasonDisabledByAdmin)
		if !disabled || w.biz.refreshed != 0 {
			t.Errorf("disabled %v, refreshed %d times", disabled, w.biz.refreshed)
		}
		disabled = false
		w.send(a, w.person(), read, agent.StatusReplied, "")
	})
}

// PO-7: a setting that another process on the profile changes counts at the next
// gate.
func TestSettingsOfAnotherProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		b := w.open()
		show := agent.SendRequest{Message: "Show my trips"}
		w.send(a, owner(), show, agent.StatusReplied, "")
		if err := b.SetEnabled(t.Context(), owner(), false); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), show, agent.StatusBlocked, agent.ReasonDisabledInSettings)
		if err := b.SetEnabled(t.Context(), owner(), true); err != nil {
			t.Fatal(err)
		}
		if err := b.SetPreference(t.Context(), owner(), agent.DisabledPACT); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), show, agent.StatusBlocked, agent.ReasonPACTDisabled)
	})
}

// PO-1, PO-2: settings that are changed together are changed at once, or none of them.
func TestChangeSettings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		told := w.watch(a, owner())
		off, require, none := false, agent.RequirePACT, agent.Preference("sometimes")
		if err := a.ChangeSettings(t.Context(), owner(), agent.SettingsChange{Enabled: &off, Preference: &none}); agent.ReasonOf(err) != agent.ReasonInvalidInput {
			t.Errorf("%v", err)
		}
		if err := a.ChangeSettings(t.Context(), owner(), agent.SettingsChange{}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if v, err := a.Policy(t.Context(), owner()); err != nil || !v.Enabled || v.Preference != agent.PreferPACT || len(told.all()) != 0 {
			t.Errorf("%+v, %v, told %+v", v, err, told.all())
		}
		if err := a.ChangeSettings(t.Context(), ops(), agent.SettingsChange{Enabled: &off, Preference: &require}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if v, err := a.Policy(t.Context(), owner()); err != nil || v.Enabled || v.Preference != agent.RequirePACT || v.By != "token ops" {
			t.Errorf("%+v, %v", v, err)
		}
		if n := len(told.of(agent.KindSettings, "", "")); n != 1 {
			t.Errorf("%d changes", n)
		}
	})
}
