package agent_test

import (
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// check runs the doctor and holds every finding to its form.
func check(t *testing.T, a *agent.Agent, c agent.Caller) []agent.Check {
	t.Helper()
	checks, err := a.Doctor(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		fix := c.State == agent.CheckWarning || c.State == agent.CheckFailed
		if c.Detail == "" || fix != (c.Fix != "") || strings.Contains(c.Detail+c.Fix, "\n") {
			t.Errorf("form of %+v", c)
		}
	}
	return checks
}

var checkNames = []string{"policy", "profile key", "store", "signer", "identity", "clock", "key set", "audiences", "approvals", "sign-ins", "evidence", "operations"}

// findings expects the checks to be ok but for those that are named, each with a
// part of its detail.
func (w *world) findings(a *agent.Agent, want map[string]string) []agent.Check {
	w.t.Helper()
	return w.findingsOf("", a, want)
}

func (w *world) findingsOf(name string, a *agent.Agent, want map[string]string) []agent.Check {
	w.t.Helper()
	checks := check(w.t, a, owner())
	var names []string
	for _, c := range checks {
		names = append(names, c.Name)
		state, part, _ := strings.Cut(want[c.Name], ": ")
		if state == "" {
			state = "ok"
		}
		if string(c.State) != state || !strings.Contains(c.Detail, part) {
			w.t.Errorf("%s: %s: %s: %s (%s)\nwant %s: %s", name, c.Name, c.State, c.Detail, c.Fix, state, part)
		}
	}
	if !slices.Equal(names, checkNames) {
		w.t.Errorf("checks %q", names)
	}
	return checks
}

func fixOf(checks []agent.Check, name string) string {
	for _, c := range checks {
		if c.Name == name {
			return c.Fix
		}
	}
	return ""
}

// CL-1, SG-10, SG-13: a profile in order is found so; the signer is asked anew,
// signs one token of its own, and no business hears of it.
func TestDoctorOK(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.findings(a, nil)
		signed, asked := w.signer.counts()
		w.findings(a, nil)
		if s, n := w.signer.counts(); s != signed+1 || n == asked {
			t.Errorf("%d signs and %d statuses more", s-signed, n-asked)
		}
		for _, p := range []egress.Purpose{egress.Card, egress.Metadata, egress.DeviceAuthorization, egress.Token, egress.Message} {
			if n := len(w.calls(p)); n > 0 {
				t.Errorf("%d requests to businesses", n)
			}
		}
		for _, r := range append(w.calls(egress.JWKS), w.calls(egress.Signer)...) {
			if !strings.HasPrefix(r.url, signerURL+"/") {
				t.Errorf("asked %s", r.url)
			}
		}
	})
}

const off = "unknown: PACT is not available"

// CL-1, PO-1, SG-5, SG-6, SG-11, SG-13, ID-4, PR-6: whatever is wrong is found at
// its place, with what to do; what hangs on it is unknown.
func TestDoctorFinds(t *testing.T) {
	other := newKey(t)
	set := func(s string) func(*world) {
		return func(w *world) { w.signer.set(func(g *signerStandIn) { g.published = &s }) }
	}
	skew := func(d time.Duration, noDate bool) func(*world) {
		return func(w *world) { w.signer.set(func(g *signerStandIn) { g.skew, g.noDate = d, noDate }) }
	}
	var policy func() (agent.Policy, error)
	cases := map[string]struct {
		change func(*world)
		want   map[string]string
		fix    map[string]string
	}{
		"switched off by the administrator": {
			change: func(*world) { policy = fixed(agent.Policy{}) },
			want:   map[string]string{"policy": "failed: disabled_by_admin", "signer": off, "identity": off, "clock": "unknown: ", "key set": off, "audiences": off},
			fix:    map[string]string{"policy": "administrator"},
		},
		"the policy cannot be read": {
			change: func(*world) {
				policy = func() (agent.Policy, error) { return agent.Policy{}, errors.New("no") }
			},
			want: map[string]string{"policy": "failed: disabled_by_admin", "signer": off, "identity": off, "clock": "unknown: ", "key set": off, "audiences": off},
		},
		"the signer is down": {
			change: func(w *world) { delete(w.hosts, signerURL) },
			want:   map[string]string{"signer": "failed: signer_unavailable", "identity": "unknown: ", "clock": "unknown: ", "key set": "failed: destination_refused", "audiences": "unknown: "},
			fix:    map[string]string{"signer": "can be reached"},
		},
		"the signer answers HTTP 500": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { s.fail = 500 }) },
			want:   map[string]string{"signer": "failed: signer_unavailable: the signer answers HTTP 500", "identity": "unknown: ", "key set": "unknown: ", "audiences": "unknown: "},
		},
		"the signer is disabled": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { s.disabled = true }) },
			want:   map[string]string{"signer": "failed: signer_disabled", "identity": "unknown: ", "key set": "unknown: "},
			fix:    map[string]string{"signer": "pactctl resume"},
		},
		"the signer forgot the device": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { clear(s.devices) }) },
			want:   map[string]string{"signer": "failed: credential_rejected", "identity": "unknown: ", "key set": "unknown: ", "audiences": "unknown: "},
			fix:    map[string]string{"signer": "pactctl enroll --signer " + signerURL},
		},
		"another issuer": {
			change: func(w *world) {
				w.signer.set(func(s *signerStandIn) { s.issuer = "https://other.example.com" })
			},
			want: map[string]string{"identity": "failed: identity_not_ready: the signer is now for issuer https://other.example.com", "key set": "unknown: "},
			fix:  map[string]string{"identity": "pactctl enroll --signer " + signerURL},
		},
		"another subject": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { s.subject = "pa_else" }) },
			want:   map[string]string{"identity": "failed: identity_changed", "key set": "unknown: "},
		},
		"tokens of another subject": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { s.tokenSub = "pa_else" }) },
			want:   map[string]string{"key set": "unknown: "},
		},
		"31 s behind": {
			change: skew(31*time.Second, false),
			want:   map[string]string{"clock": "failed: this machine's clock is 31s behind", "key set": "failed: ; the token that the signer makes is no good: invalid_token"},
			fix:    map[string]string{"clock": "NTP"},
		},
		"31 s ahead":            {change: skew(-32*time.Second, false), want: map[string]string{"clock": "failed: this machine's clock is 31s ahead of"}},
		"30 s behind":           {change: skew(30*time.Second, false), want: map[string]string{"clock": "warning: 30s behind"}},
		"6 s behind":            {change: skew(6*time.Second, false), want: map[string]string{"clock": "warning: 6s behind"}},
		"5 s behind":            {change: skew(5*time.Second, false)},
		"no date, 20 s behind":  {change: skew(20*time.Second, true), want: map[string]string{"clock": "warning: 20s behind"}},
		"no date":               {change: skew(0, true)},
		"another key published": {change: set(string(other.set())), want: map[string]string{"key set": "failed: is not among them"}, fix: map[string]string{"key set": "pactctl keys list"}},
		"another key of the same name": {
			change: func(w *world) { set(string(key{other.private, w.signer.key.kid}.set()))(w) },
			want:   map[string]string{"key set": "failed: is not the one that the signer signs with"},
		},
		"no key published": {change: set(`{"keys":[]}`), want: map[string]string{"key set": "failed: has no usable key"}},
		"no key set":       {change: set(`no`), want: map[string]string{"key set": "failed: "}},
		"the key set elsewhere": {
			change: func(w *world) {
				there := "https://air.example.com/keys"
				w.hosts["https://air.example.com"] = w.signer
				w.hosts[signerURL] = except(w.signer, "/.well-known/jwks.json", http.RedirectHandler(there, http.StatusFound))
				w.hosts["https://air.example.com"] = http.HandlerFunc(func(o http.ResponseWriter, _ *http.Request) { respond(o, 200, string(w.signer.key.set())) })
			},
			want: map[string]string{"key set": "failed: leads to another origin"},
		},
		"the key set is gone": {
			change: func(w *world) {
				w.hosts[signerURL] = except(w.signer, "/.well-known/jwks.json", http.NotFoundHandler())
			},
			want: map[string]string{"key set": "failed: answers HTTP 404"},
		},
		"no audience": {
			change: func(w *world) { w.signer.set(func(s *signerStandIn) { clear(s.audiences) }) },
			want:   map[string]string{"key set": "ok: they were not tried", "audiences": "warning: nothing can be sent"},
			fix:    map[string]string{"audiences": "pactctl audiences set"},
		},
		"one audience twice": {
			change: func(w *world) {
				w.signer.set(func(s *signerStandIn) { s.audiences["https://evil.example.net"] = audience })
			},
			want: map[string]string{"key set": "ok: they were not tried", "audiences": "failed: have the same audience"},
			fix:  map[string]string{"audiences": "pactctl providers remove"},
		},
		"a blocked provider": {
			change: func(*world) {
				policy = fixed(agent.Policy{Enabled: true, BlockedProviders: []string{provider}})
			},
			want: map[string]string{"key set": "ok: they were not tried", "audiences": "warning: " + provider + " is blocked"},
			fix:  map[string]string{"audiences": "administrator"},
		},
		"the key file is gone": {
			change: func(w *world) { must(w.t, os.Remove(w.keyPath())) },
			want:   map[string]string{"profile key": "failed: it is gone"},
			fix:    map[string]string{"profile key": "restore"},
		},
		"the key file is open": {
			change: func(w *world) { must(w.t, os.Chmod(w.keyPath(), 0o644)) },
			want:   map[string]string{"profile key": "failed: chmod 600"},
		},
		"the key file is another's": {
			change: func(w *world) { must(w.t, os.WriteFile(w.keyPath(), []byte(strings.Repeat("k", 32)), 0o600)) },
			want:   map[string]string{"profile key": "failed: another key"},
			fix:    map[string]string{"profile key": "restore"},
		},
	}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Policy = func() (agent.Policy, error) { return policy() }
		policy = fixed(agent.DefaultPolicy())
		a := w.enrolled()
		file, err := os.ReadFile(w.keyPath())
		must(t, err)
		s := w.signer
		devices, hosts := maps.Clone(s.devices), maps.Clone(w.hosts)
		for name, test := range cases {
			test.change(w)
			checks := w.findingsOf(name, a, test.want)
			for at, part := range test.fix {
				if fix := fixOf(checks, at); !strings.Contains(fix, part) {
					t.Errorf("%s: fix of %s: %q", name, at, fix)
				}
			}
			// All is well again.
			s.set(func(s *signerStandIn) {
				s.skew, s.noDate, s.published, s.fail, s.disabled = 0, false, nil, 0, false
				s.issuer, s.subject, s.tokenSub = signerURL, "pa_alice", ""
				s.devices, s.audiences = maps.Clone(devices), map[string]string{provider: audience}
			})
			w.hosts, policy = maps.Clone(hosts), fixed(agent.DefaultPolicy())
			must(t, errors.Join(os.WriteFile(w.keyPath(), file, 0o600), os.Chmod(w.keyPath(), 0o600)))
			if _, err := a.Status(t.Context(), owner()); err != nil { // takes a subject that changed
				t.Fatal(err)
			}
		}
		w.findingsOf("at last", a, nil)
	})
}

// CL-1, PO-1: the same of what a program is started with or cannot run on with.
func TestDoctorFindsAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.damage()
		checks := w.findings(a, map[string]string{"store": "failed: quick_check"})
		if fix := fixOf(checks, "store"); !strings.Contains(fix, "backup") {
			t.Errorf("fix %q", fix)
		}
		w.config.DisabledByEnv = true
		checks = w.findings(w.open(), map[string]string{
			"policy": "failed: disabled_by_env", "store": "failed: ",
			"signer": off, "identity": off, "clock": "unknown: ", "key set": off, "audiences": off,
		})
		if fix := fixOf(checks, "policy"); fix != "unset PACT_DISABLED" {
			t.Errorf("fix %q", fix)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// except serves one path otherwise.
func except(h http.Handler, path string, other http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			other.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// damage overwrites a page of the database that nothing reads in passing.
func (w *world) damage() {
	w.t.Helper()
	path := filepath.Join(w.dir, "agent.db")
	db, err := openDatabase(w.dir)
	must(w.t, err)
	var page, size int64
	must(w.t, db.QueryRow("SELECT rootpage FROM sqlite_schema WHERE name = 'receipts_conversation'").Scan(&page))
	must(w.t, db.QueryRow("PRAGMA page_size").Scan(&size))
	must(w.t, db.Close())
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(w.t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("x", int(size))), (page-1)*size)
	must(w.t, errors.Join(err, f.Close()))
}

// CL-1, ID-6, ID-7, TR-9: a profile without identity, a caller without network and
// one without principal are no surprise.
func TestDoctorWithout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.open()
		checks := w.findings(a, map[string]string{
			"policy": "failed: disabled_in_settings", "signer": off, "identity": off, "clock": "unknown: ", "key set": off, "audiences": off,
		})
		if fix := fixOf(checks, "policy"); fix != "pactctl enroll --signer URL" {
			t.Errorf("fix %q", fix)
		}
		if n := len(w.calls(egress.Signer)); n != 0 {
			t.Errorf("%d calls of no signer", n)
		}
		if _, err := a.Doctor(t.Context(), agent.Caller{Origin: agent.OriginOwnerCLI}); err == nil {
			t.Error("no principal is needed")
		}
		a = w.enrolled()
		calls := len(w.calls(egress.Signer))
		for _, c := range check(t, a, agent.TaskCaller(alice, nil, nil)) {
			if c.Name == "signer" && (c.State != agent.CheckFailed || !strings.Contains(c.Detail, "policy_denied")) {
				t.Errorf("signer without network: %+v", c)
			}
		}
		if len(w.calls(egress.Signer)) != calls {
			t.Error("a caller without network reached the signer")
		}
		must(t, a.SetPreference(t.Context(), owner(), agent.DisabledPACT))
		w.findings(a, map[string]string{"policy": "failed: pact_disabled"})
	})
}

// CL-1, EV-5, CV-4, PR-1: what waits for the owner is told, and a business that is
// known and cannot be sent to.
func TestDoctorHolds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.set(func(b *business) { b.receipt = func(_, envelope map[string]any) { envelope["none"] = true } })
		w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		checks := w.findings(a, map[string]string{"evidence": "warning: 1 to look at"})
		if fix := fixOf(checks, "evidence"); fix != "pactctl review list" {
			t.Errorf("fix %q", fix)
		}
		p, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:cancel"}})
		if err != nil || p.Status != agent.StatusNeedsUserAction {
			t.Fatalf("%+v, %v", p, err)
		}
		w.edit(`UPDATE messages SET state = 'outcome_unknown', data = CAST(json_set(data, '$.Effect', 'change') AS BLOB)`)
		w.signer.set(func(s *signerStandIn) { clear(s.audiences) })
		checks = w.findings(a, map[string]string{
			"evidence": "warning: 1 to look at", "sign-ins": "warning: 1 not finished", "operations": "warning: of unknown outcome",
			"audiences": "warning: " + provider + ", of a business that you know, has none", "key set": "ok: they were not tried",
		})
		for name, want := range map[string]string{
			"operations": "pactctl reconcile", "sign-ins": "pactctl authorization list", "audiences": "pactctl providers add " + provider,
		} {
			if fix := fixOf(checks, name); !strings.Contains(fix, want) {
				t.Errorf("fix of %s: %q", name, fix)
			}
		}
		// An audience that only the owner entered: the signer does not sign for it.
		if _, err := a.AddProvider(t.Context(), owner(), provider, "aud-mine", ""); err != nil {
			t.Fatal(err)
		}
		w.findings(a, map[string]string{
			"evidence": "warning: ", "sign-ins": "warning: ", "operations": "warning: ", "key set": "ok: they were not tried",
			"audiences": "warning: the signer does not sign for the audience of " + provider,
		})
	})
}

// CL-1, GR-6: a lost key is told until the owner has enrolled again.
func TestDoctorKeyLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.used()
		must(t, os.Remove(w.keyPath()))
		a := w.open()
		checks := w.findings(a, map[string]string{
			"profile key": "warning: permissions ended: 1", "signer": "unknown: ", "identity": "failed: signer_key_unusable",
			"clock": "unknown: ", "key set": "unknown: ", "audiences": "unknown: ",
		})
		for _, name := range []string{"profile key", "identity"} {
			if fix := fixOf(checks, name); fix != "pactctl enroll --signer "+signerURL {
				t.Errorf("fix of %s: %q", name, fix)
			}
		}
		w.recovered(a)
		w.findings(a, nil)
	})
}
