package console

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/internal/console/consoletest"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

var testTime = time.Date(2026, 11, 30, 3, 12, 40, 0, time.UTC)

// desk is a page over a made-up fleet, at a time that tests move.
type desk struct {
	t       testing.TB
	service *consoletest.Service
	console *Console
	now     time.Time
	unready bool // custody has not told the first token
	nobody  bool // no token is known at all
	log     bytes.Buffer
	cookies []*http.Cookie
}

func newDesk(t testing.TB, service *consoletest.Service, secret func(context.Context) ([]byte, error)) *desk {
	t.Helper()
	d := &desk{t: t, service: service, now: testTime}
	var err error
	d.console, err = New(Config{
		Admin: func() (Admin, bool) {
			if d.nobody {
				return nil, false
			}
			return d.service, !d.unready
		},
		Secret: secret, Issuers: []Issuer{{URL: consoletest.Issuer, Period: 30 * 24 * time.Hour, Lead: time.Hour}},
		Replica: "replica-of-the-test", Version: "1.4.0", Now: func() time.Time { return d.now }, Log: slog.New(slog.NewTextHandler(&d.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func sharedSecret(context.Context) ([]byte, error) { return bytes.Repeat([]byte{7}, 32), nil }

// answer is what came back, with what its page says.
type reply struct {
	status int
	header http.Header
	body   string
	says   string
}

var tags = regexp.MustCompile(`(?s)<style>.*</style>|<[^>]*>`)

func (d *desk) do(method, path, body string, header ...string) reply {
	d.t.Helper()
	r := httptest.NewRequest(method, "http://10.0.0.5:8789"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	for _, c := range d.cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	d.console.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		d.cookies = slices.DeleteFunc(d.cookies, func(x *http.Cookie) bool { return x.Name == c.Name })
		if c.MaxAge >= 0 {
			d.cookies = append(d.cookies, c)
		}
	}
	text := html.UnescapeString(tags.ReplaceAllString(w.Body.String(), ""))
	return reply{w.Code, w.Header(), w.Body.String(), strings.Join(strings.Fields(text), " ")}
}

func (d *desk) signIn(token string) reply {
	d.t.Helper()
	return d.do("POST", "/sign-in", url.Values{"token": {token}}.Encode())
}

// look is the page for somebody with a token.
func (d *desk) look() reply {
	d.t.Helper()
	return d.do("GET", "/", "", "Authorization", "Bearer "+consoletest.ViewerToken)
}

func (r reply) want(t testing.TB, status int, says ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("status %d, want %d: %s", r.status, status, r.says)
	}
	for _, s := range says {
		if !strings.Contains(r.says, s) {
			t.Errorf("does not say %q:\n%s", s, r.says)
		}
	}
}

func (r reply) headline() string {
	_, rest, _ := strings.Cut(r.body, "<h1")
	_, rest, _ = strings.Cut(rest, ">")
	text, _, _ := strings.Cut(rest, "</h1>")
	return html.UnescapeString(text)
}

// What is told of a fleet, for each state that it can be in.
func TestStates(t *testing.T) {
	stamp := timestamppb.New
	for name, c := range map[string]struct {
		fleet    *consoletest.Service
		change   func(s *consoletest.Service)
		headline string
		says     []string
	}{
		"calm": {fleet: consoletest.Calm(testTime), headline: "Nothing is stopped", says: []string{
			"All 3 replicas that the store knows are ready", "Read 30 Nov 2026 03:12:40 UTC by replica pact-signer-7d9f-a (1.4.0), by the store’s clock",
			"Kill switch: Nothing is stopped", "Key 9f3KQm2v… signs (ES256), since 19 Nov 04:12:40 UTC", "every 30 days",
			"Last 5 min: 6,263 signed, 10 refused, 0 failed. Last 60 min: 88,968 signed, 120 refused, 0 failed.", "184,223", "2.8 s", "+0.004 s",
		}},
		"one replica": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas = s.Fleet.Replicas[:1] }, headline: "Nothing is stopped",
			says: []string{"The one replica that the store knows is ready"}},
		"no period": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.AddOther() }, headline: "Nothing is stopped",
			says: []string{"Nothing is planned after that: a rotation begins when somebody asks for it"}},
		"overdue": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Keys[0].SignAt = stamp(testTime.Add(-31 * 24 * time.Hour)) },
			headline: "Attention needed", says: []string{"a rotation is overdue. The next key should have been published 25 h ago"}},
		"published": {fleet: consoletest.Published(testTime, 27*time.Minute), headline: "Nothing is stopped",
			says: []string{"a rotation is in progress. Key Tz81bYwQ… takes over in 27 min", "Replicas that serve it: 3 of 3", "will sign"}},
		"retiring":  {fleet: consoletest.Retiring(testTime, 18*time.Minute), headline: "Nothing is stopped", says: []string{"a rotation ends in 42 min", "retiring"}},
		"postponed": {fleet: consoletest.Postponed(testTime), headline: "Attention needed", says: []string{"postponed by 80 s", "only 2 of 3 replicas serve the next key"}},
		"waiting":   {fleet: consoletest.Emergency(testTime), headline: "No key signs for 1 issuer", says: []string{"waits to sign until every replica serves it: 2 of 3 do", "revoked 9 s ago"}},
		"revoked":   {fleet: consoletest.Revoked(testTime), headline: "Attention needed", says: []string{"Emergency: a key was revoked", "revoked 40 min ago"}},
		"pending": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.AddKey(consoletest.Issuer, consoletest.NextKID, "pending", testTime.Add(time.Hour), testTime.Add(2*time.Hour), time.Time{}, time.Time{})
		}, headline: "Nothing is stopped", says: []string{"Key Tz81bYwQ… is published at 30 Nov 04:12:40 UTC (in 60 min)"}},
		"all stopped": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Throw(4*time.Minute, "all", "", "", "leak", time.Hour) },
			headline: "Everything is stopped", says: []string{"everything: no issuer issues any token", "30 Nov 03:08:40 UTC (4 min ago)", "ops@example.com", "leak", "in 56 min", "Stopped by the kill switch"}},
		"the only issuer stopped": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Throw(0, "issuer", consoletest.Issuer, "", "leak", 0) },
			headline: "Every issuer is stopped"},
		"one issuer stopped": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.AddOther()
			s.Throw(0, "issuer", consoletest.Other, "", "leak", 0)
			s.Throw(0, "issuer", consoletest.Other, "", "again", 0)
		}, headline: "1 issuer stopped", says: []string{"The switch does not stop the other issuers", "2 stops in force"}},
		"one issuer stopped, custody away": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.AddOther()
			s.Throw(0, "issuer", consoletest.Other, "", "leak", 0)
			s.State.Condition = "unknown"
		}, headline: "1 issuer stopped", says: []string{"Whether the other issuers sign is not known"}},
		"one issuer stopped, nobody ready": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.AddOther()
			s.Throw(0, "issuer", consoletest.Other, "", "leak", 0)
			for _, r := range s.Fleet.Replicas {
				r.Ready = false
			}
		}, headline: "No replica is ready", says: []string{"1 stop in force"}},
		"the probe's": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Throw(0, "audience", "urn:pact:probe-killed", consoletest.Issuer, signer.ProbeReason, 0)
		}, headline: "Nothing is stopped", says: []string{"Kill switch: Nothing is stopped", "The probe’s standing stop is on the audience urn:pact:probe-killed of https://pa.example.com: it stops nobody"}},
		"as the probe's, for a while": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Throw(0, "audience", "urn:pact:probe-killed", consoletest.Issuer, signer.ProbeReason, time.Hour)
		}, headline: "Signing, but for 1 stop"},
		"narrow": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Throw(0, "subject", "pa_xyz", consoletest.Issuer, "asked to", 0)
		}, headline: "Signing, but for 1 stop", says: []string{"the subject pa_xyz of https://pa.example.com"}},
		"narrow, and a replica": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Silence()
			s.Throw(0, "subject", "pa_xyz", consoletest.Issuer, "asked to", 0)
		}, headline: "Attention needed, and 1 stop in force"},
		"silent": {fleet: consoletest.Calm(testTime), change: (*consoletest.Service).Silence, headline: "Attention needed", says: []string{
			"Replica pact-signer-7d9f-c is silent for 8 s: its permit has run out, so it signs nothing.", "pact-signer-64bb-x is gone", "last heard of 11 min ago"}},
		"not ready": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas[1].Ready = false }, headline: "Attention needed",
			says: []string{"Replica pact-signer-7d9f-b is not ready."}},
		"behind": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas[1].Epoch = 6 }, headline: "Attention needed",
			says: []string{"pact-signer-7d9f-b did not report it yet", "has not reported the switch’s epoch 7"}},
		"clock": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas[1].ClockOffset = durationpb.New(-7 * time.Second) },
			headline: "Attention needed", says: []string{"has a clock that is 7.0 s behind the store’s", "-7.000 s"}},
		"no permit told": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas[1].PermitUntil = nil }, headline: "Nothing is stopped",
			says: []string{"unknown"}},
		"silent, no permit told": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Fleet.Replicas[1].PermitUntil, s.Fleet.Replicas[1].Seen = nil, stamp(testTime.Add(-5*time.Second))
		}, headline: "Attention needed", says: []string{"Replica pact-signer-7d9f-b is silent for 5 s."}},
		"versions": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas[1].Version = "1.5.0" }, headline: "Nothing is stopped",
			says: []string{"different versions"}},
		"no replica": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Fleet.Replicas = nil }, headline: "Attention needed"},
		"cannot sign": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.Fleet.Issuers[0].Ready, s.Fleet.Issuers[0].Why = false, "custody is away"
		},
			headline: "Attention needed", says: []string{"cannot sign for https://pa.example.com: custody is away."}},
		"failures": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Activity.Minutes[57].Failed = 12 }, headline: "Attention needed",
			says: []string{"12 sign requests could not be served in the last 5 minutes, of 6,285"}},
		"not all counted": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Activity.Missing = []string{"replica x tells nothing"} },
			headline: "Nothing is stopped", says: []string{"Not all is counted.", "replica x tells nothing"}},
		"enrolment closed": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.State.EnrolmentClosed = true }, headline: "Attention needed",
			says: []string{"pactctl state open-enrolment"}},
		"rolled back": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.State.Condition, s.State.Problem, s.State.Remedy = "rolled_back", "its audit log lacks entry 7", "restore it"
		}, headline: "The store is rolled back: nothing is signed on it", says: []string{
			"The store is rolled back: its audit log lacks entry 7: restore it.", "Kill switch: Unknown", "it may have forgotten stops"}},
		"lost, with a stop": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) {
			s.AddOther()
			s.Throw(0, "issuer", consoletest.Other, "", "leak", 0)
			s.State.Condition = "lost"
		}, headline: "The store is lost: nothing is signed on it", says: []string{"Kill switch: Unknown"}},
		"store away": {fleet: consoletest.Calm(testTime), change: (*consoletest.Service).StoreAway, headline: "Not known: the switch cannot be read", says: []string{
			"Do not take this for calm", "Kill switch: Unknown", "by replica replica-of-the-test (1.4.0), by this replica’s own clock", "connection refused"}},
		"no activity": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Activity = nil }, headline: "Nothing is stopped",
			says: []string{"Not available. This signer does not tell."}},
		"no keys": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Keys = nil }, headline: "No key signs for 1 issuer", says: []string{"This replica has no key schedule yet."}},
		"no audit": {fleet: consoletest.Calm(testTime), change: func(s *consoletest.Service) { s.Audit, s.State.StoreHead = nil, nil }, headline: "Nothing is stopped",
			says: []string{"The audit log has no entry."}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.fleet)
			}
			r := newDesk(t, c.fleet, sharedSecret).look()
			r.want(t, http.StatusOK, c.says...)
			if r.headline() != c.headline {
				t.Errorf("headed %q, want %q", r.headline(), c.headline)
			}
			if !strings.Contains(r.body, "<title>"+html.EscapeString(c.headline)) {
				t.Error("the title does not say it")
			}
		})
	}
}

// Whatever cannot be read, the page says so and never that all is well.
func TestUnknownIsNotFine(t *testing.T) {
	methods := []string{"FleetStatus", "KillStatus", "ListKeys", "GetActivity", "GetState", "ListAudit"}
	rapid.Check(t, func(rt *rapid.T) {
		s := consoletest.Calm(testTime)
		if rapid.Bool().Draw(rt, "stopped") {
			s.Throw(time.Minute, "all", "", "", "leak", 0)
		}
		failed := rapid.SliceOfNDistinct(rapid.SampledFrom(methods), 1, len(methods), rapid.ID).Draw(rt, "failed")
		for _, m := range failed {
			s.Fails[m] = consoletest.Away
		}
		r := newDesk(t, s, sharedSecret).look()
		if r.status != http.StatusOK || !strings.Contains(r.says, "Unknown") && !strings.Contains(r.says, "Not available") {
			rt.Fatalf("%d: %s", r.status, r.says)
		}
		fails := func(m string) bool { return slices.Contains(failed, m) }
		switch head := r.headline(); {
		case fails("KillStatus"):
			if head != "Not known: the switch cannot be read" || strings.Contains(r.says, "Nothing is stopped") {
				rt.Fatalf("headed %q: %s", head, r.says)
			}
		case len(s.Kills) > 0:
			if head != "Everything is stopped" {
				rt.Fatalf("headed %q", head)
			}
		case fails("FleetStatus") || fails("ListKeys") || fails("GetState"):
			if head == "Nothing is stopped" {
				rt.Fatal("calm, though not all is known")
			}
		}
		if fails("FleetStatus") && strings.Contains(r.says, "184,223") || fails("ListKeys") && strings.Contains(r.says, "signs (ES256)") {
			rt.Fatal("tells what it cannot know")
		}
	})
}

// What others wrote is text.
func TestEscapes(t *testing.T) {
	s := consoletest.Calm(testTime)
	s.Throw(0, "audience", `"><script>alert(1)</script>`, consoletest.Issuer, "<img src=x onerror=alert(1)> \u202egnp.exe\u2066", 0)
	s.Audit[29].Reason, s.Audit[29].Target = "</td><form action=//evil>", "a\u200bb"
	s.Fleet.Replicas[0].Id, s.Keys[0].Kid = "<svg onload=1>", "<text>'\"&"
	r := newDesk(t, s, sharedSecret).look()
	r.want(t, http.StatusOK, `"><script>alert(1)</script>`, "⟨U+202E⟩gnp.exe⟨U+2066⟩", "a⟨U+200B⟩b", "</td><form action=//evil>")
	for _, bad := range []string{"<script", "<img", "<form action=//", "<svg onload", "<text>'", "\u202e"} {
		if strings.Contains(r.body, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// Every answer is kept nowhere, framed nowhere, and loads nothing.
func TestHeaders(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	foreign := []string{"Sec-Fetch-Site", "cross-site"}
	replies := map[string]reply{
		"sign-in": d.do("GET", "/", ""), "page": d.look(), "refused": d.signIn("x"), "signed in": d.signIn(consoletest.ViewerToken),
		"foreign": d.do("POST", "/sign-in", "token=x", foreign...), "method": d.do("PUT", "/", ""), "form": d.do("POST", "/sign-in", "x"),
	}
	d.nobody = true
	replies["nobody"] = d.do("GET", "/", "")
	for name, r := range replies {
		for header, want := range map[string]string{
			"Cache-Control": "no-store", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Content-Security-Policy": "default-src 'none'; style-src " + styleHash + "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
		} {
			if got := r.header.Get(header); got != want {
				t.Errorf("%s: %s is %q", name, header, got)
			}
		}
		for _, secret := range []string{consoletest.ViewerToken, consoletest.AdminToken} {
			if strings.Contains(r.body, secret) {
				t.Errorf("%s: the page has a token", name)
			}
		}
		if strings.Contains(r.body, " style=") || strings.Contains(r.body, "http-equiv=\"refresh\" content=\"0\"") {
			t.Errorf("%s: an inline style, or a refresh without a pause", name)
		}
	}
	replies["method"].want(t, http.StatusMethodNotAllowed)
	replies["foreign"].want(t, http.StatusForbidden, "sent from another website")
	if strings.Contains(d.log.String(), consoletest.ViewerToken) {
		t.Error("the log has a token")
	}
	if got := d.do("HEAD", "/", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("HEAD: %d", got.status)
	}
}

// The page reads again by itself, unless it is told not to; forms never do.
func TestRefresh(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	if r := d.do("GET", "/", ""); strings.Contains(r.body, `http-equiv="refresh"`) {
		t.Error("the sign-in would lose what is typed")
	}
	d.signIn(consoletest.ViewerToken)
	if r := d.do("GET", "/", ""); !strings.Contains(r.body, `<meta http-equiv="refresh" content="10">`) {
		t.Error("it stands still")
	}
	if r := d.do("GET", "/?refresh=off", ""); strings.Contains(r.body, `http-equiv="refresh"`) || !strings.Contains(r.says, "Holds still: this is old.") {
		t.Error("it does not hold still")
	}
}

// While no token is known the page says so; while the first one is not, only those of
// the configuration are taken.
func TestTokensNotKnown(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	d.nobody = true
	for _, r := range []reply{d.do("GET", "/", ""), d.signIn(consoletest.ViewerToken), d.look()} {
		r.want(t, http.StatusServiceUnavailable, "Nobody can sign in yet", "custody, which has its hash, cannot be reached", "This says nothing about the fleet")
		if r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	d.do("POST", "/sign-out", "x=y").want(t, http.StatusSeeOther)
	d.nobody, d.unready = false, true
	d.do("GET", "/", "").want(t, http.StatusOK, "The first admin token is not known yet", "only tokens that the configuration names")
	d.signIn(consoletest.ViewerToken).want(t, http.StatusSeeOther)
	d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped")
}

// A session looks, as a viewer, for an hour, on every replica that shares the secret.
func TestSession(t *testing.T) {
	s := consoletest.Calm(testTime)
	d, other, stranger := newDesk(t, s, sharedSecret), newDesk(t, s, sharedSecret), newDesk(t, s, nil)
	r := d.signIn("  " + consoletest.AdminToken + "\n")
	r.want(t, http.StatusSeeOther)
	if r.header.Get("Location") != "/" || len(d.cookies) != 1 {
		t.Fatalf("to %q with %v", r.header.Get("Location"), d.cookies)
	}
	c := d.cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure || c.Domain != "" || c.MaxAge != 0 || strings.Contains(c.Value, consoletest.AdminToken) {
		t.Errorf("cookie %v", c)
	}
	d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped", "Signed in as initial (admin) until 30 Nov 04:12:40 UTC (in 60 min). This page")
	if len(s.Roles) != 1 || !s.Roles[signer.RoleViewer] {
		t.Errorf("the page asks as %v", s.Roles)
	}
	other.cookies = slices.Clone(d.cookies)
	other.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped")
	stranger.cookies = slices.Clone(d.cookies)
	stranger.do("GET", "/", "").want(t, http.StatusOK, "Sign in", "This replica does not take your session")
	if len(stranger.cookies) != 0 {
		t.Error("a cookie that is of no use is kept")
	}
	d.now = testTime.Add(SessionTTL - time.Second)
	d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped")
	d.now = testTime.Add(SessionTTL)
	d.do("GET", "/", "").want(t, http.StatusOK, "Your session has ended")
	for _, want := range []string{"signed in\" token=initial", "192.0.2.1"} {
		if !strings.Contains(d.log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, d.log.String())
		}
	}
}

// Replicas' clocks may differ: a session that one began is one at another that is behind.
func TestSessionAcrossClocks(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	for behind, says := range map[time.Duration]string{
		300 * time.Millisecond: "Nothing is stopped", 25 * time.Second: "Nothing is stopped", 2 * time.Minute: "Your session has ended",
	} {
		d.now = testTime
		d.signIn(consoletest.ViewerToken)
		d.now = testTime.Add(-behind)
		d.do("GET", "/", "").want(t, http.StatusOK, says)
	}
}

// A session ends with its token, and with the sign-out also for who copied its cookie.
func TestSessionEnds(t *testing.T) {
	for name, end := range map[string]func(d *desk){
		"withdrawn": func(d *desk) { d.service.Tokens = d.service.Tokens[1:] },
		"changed":   func(d *desk) { d.service.Tokens[0].Hash[0] ^= 1 },
		"no role":   func(d *desk) { d.service.Tokens[0].Role = 0 },
		"renamed":   func(d *desk) { d.service.Tokens[0].Name = "another" },
	} {
		d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
		d.signIn(consoletest.ViewerToken)
		d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped")
		end(d)
		if r := d.do("GET", "/", ""); !strings.Contains(r.says, "This replica does not take your session") {
			t.Errorf("%s: %s", name, r.says)
		}
	}
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	d.signIn(consoletest.ViewerToken)
	copied := slices.Clone(d.cookies)
	d.do("POST", "/sign-out", "").want(t, http.StatusSeeOther)
	if len(d.cookies) != 0 {
		t.Error("the cookie is left")
	}
	d.cookies = slices.Clone(copied)
	d.do("GET", "/", "").want(t, http.StatusOK, "Your session has ended")
	// The list of those who signed out does not grow.
	for range 3 {
		d.now = d.now.Add(SessionTTL + time.Second)
		d.signIn(consoletest.ViewerToken)
		d.do("POST", "/sign-out", "")
	}
	if n := len(d.console.sessions.signedOut); n != 1 {
		t.Errorf("%d sessions that were signed out are remembered", n)
	}
}

// Who has a token's hash, as configurations hold it, but not the secret makes no
// session; nor does anybody change one.
func TestSessionCannotBeForged(t *testing.T) {
	s := consoletest.Calm(testTime)
	d := newDesk(t, s, sharedSecret)
	forger := newSessions(Config{Issuers: d.console.cfg.Issuers, Now: func() time.Time { return testTime }})
	d.cookies = []*http.Cookie{forger.begin(httptest.NewRequest("GET", "/", nil), s.Tokens[1])}
	d.do("GET", "/", "").want(t, http.StatusOK, "Sign in")
	d.signIn(consoletest.ViewerToken)
	good := *d.cookies[0]
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=%"
	rapid.Check(t, func(rt *rapid.T) {
		i := rapid.IntRange(0, len(good.Value)-1).Draw(rt, "at")
		with := alphabet[rapid.IntRange(0, len(alphabet)-1).Draw(rt, "with")]
		value := good.Value[:i] + string(with) + good.Value[i+1:]
		if rapid.Bool().Draw(rt, "cut") {
			value = good.Value[:i]
		}
		if value == good.Value {
			rt.Skip("the same")
		}
		d.cookies = []*http.Cookie{{Name: good.Name, Value: value}}
		if r := d.do("GET", "/", ""); strings.Contains(r.says, "Nothing is stopped") {
			rt.Fatalf("taken: %s instead of %s", value, good.Value)
		}
	})
}

// Until custody answers a session is of one replica, and says so; then it is of all.
func TestSessionWithoutCustody(t *testing.T) {
	away := true
	secret := func(ctx context.Context) ([]byte, error) {
		if away {
			return nil, errors.New("custody is away")
		}
		return sharedSecret(ctx)
	}
	s := consoletest.Calm(testTime)
	d, other := newDesk(t, s, secret), newDesk(t, s, secret)
	d.signIn(consoletest.ViewerToken)
	d.do("GET", "/", "").want(t, http.StatusOK, "at this replica only, for custody")
	other.cookies = slices.Clone(d.cookies)
	other.do("GET", "/", "").want(t, http.StatusOK, "This replica does not take your session")
	away = false
	d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped", "at this replica only")
	d.signIn(consoletest.ViewerToken)
	if r := d.do("GET", "/", ""); strings.Contains(r.says, "at this replica only") {
		t.Error("still of one replica")
	}
	away = true // it is known by now
	other.cookies = slices.Clone(d.cookies)
	d.do("GET", "/", "").want(t, http.StatusOK, "Nothing is stopped")
}

// Over TLS the cookie goes back over TLS only, to this host only.
func TestSessionOverTLS(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	r := httptest.NewRequest("POST", "https://10.0.0.5:8789/sign-in", strings.NewReader("token="+consoletest.ViewerToken))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	d.console.ServeHTTP(w, r)
	cookies := w.Result().Cookies()
	if len(cookies) != 1 || !cookies[0].Secure || !strings.HasPrefix(cookies[0].Name, "__Host-") {
		t.Fatalf("cookies %v", cookies)
	}
	r = httptest.NewRequest("GET", "https://10.0.0.5:8789/", nil)
	r.TLS = &tls.ConnectionState{}
	r.AddCookie(cookies[0])
	w = httptest.NewRecorder()
	d.console.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), "Nothing is stopped") {
		t.Error("not signed in")
	}
}

// A token is taken from the header too; those that are refused are limited by address.
func TestBearer(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	r := d.look()
	r.want(t, http.StatusOK, "Nothing is stopped", "Signed in as night-desk (viewer). This page")
	if len(d.cookies) != 0 || strings.Contains(r.says, "Sign out") {
		t.Error("there is a session")
	}
	bad := []string{"Authorization", "Bearer nonsense"}
	r = d.do("GET", "/", "", bad...)
	r.want(t, http.StatusUnauthorized, "This token is not accepted")
	if r.header.Get("WWW-Authenticate") != `Bearer realm="admin"` {
		t.Error("no challenge")
	}
	for range maxFailures - 1 {
		d.do("GET", "/", "", bad...).want(t, http.StatusUnauthorized)
	}
	for _, r := range []reply{d.do("GET", "/", "", bad...), d.signIn("nonsense")} {
		r.want(t, http.StatusTooManyRequests, "Too many tokens from your address were refused, as is this one. Wait 2 s")
		if r.header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
		}
	}
	d.look().want(t, http.StatusOK) // others who share the address are not locked out
	d.signIn(consoletest.ViewerToken).want(t, http.StatusSeeOther)
	d.cookies = nil
	d.now = d.now.Add(failureEvery)
	d.look().want(t, http.StatusOK, "Nothing is stopped")
	d.look().want(t, http.StatusOK) // who is right is not charged
	d.signIn("nonsense").want(t, http.StatusUnauthorized)
	d.signIn("nonsense").want(t, http.StatusTooManyRequests)
}

// Forms that are not the page's do nothing.
func TestForms(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	good := url.Values{"token": {consoletest.ViewerToken}, "username": {"operator"}}.Encode()
	for name, c := range map[string]struct {
		body   string
		header []string
		status int
		says   string
	}{
		"good":             {good, nil, http.StatusSeeOther, ""},
		"by the browser":   {good, []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://10.0.0.5:8789"}, http.StatusSeeOther, ""},
		"old browser":      {good, []string{"Origin", "http://10.0.0.5:8789"}, http.StatusSeeOther, ""},
		"elsewhere":        {good, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden, "another website"},
		"another port":     {good, []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden, "another website"},
		"elsewhere, old":   {good, []string{"Origin", "http://10.0.0.5:9999"}, http.StatusForbidden, "another website"},
		"a sandbox":        {good, []string{"Origin", "null"}, http.StatusForbidden, "another website"},
		"JSON":             {`{"token":"x"}`, []string{"Content-Type", "application/json"}, http.StatusBadRequest, "application/x-www-form-urlencoded"},
		"empty":            {"token=", nil, http.StatusBadRequest, "token is required"},
		"twice":            {good + "&token=x", nil, http.StatusBadRequest, "once"},
		"something else":   {good + "&redirect=//evil", nil, http.StatusBadRequest, "token, once"},
		"not a form":       {"%zz", nil, http.StatusBadRequest, "not encoded"},
		"too large":        {"token=" + strings.Repeat("x", maxForm), nil, http.StatusBadRequest, "too large"},
		"wrong":            {"token=x", nil, http.StatusUnauthorized, "not accepted"},
		"the scheme in it": {"token=Bearer+" + consoletest.ViewerToken, nil, http.StatusUnauthorized, "not accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			d.cookies = nil
			d.do("POST", "/sign-in", c.body, c.header...).want(t, c.status, c.says)
			if signedIn := len(d.cookies) > 0; signedIn != (c.status == http.StatusSeeOther) {
				t.Errorf("signed in: %t", signedIn)
			}
		})
	}
	for _, path := range []string{"/sign-in", "/sign-out"} {
		if r := d.do("GET", path, ""); r.status != http.StatusSeeOther || r.header.Get("Location") != "/" {
			t.Errorf("GET %s: %d", path, r.status)
		}
	}
	d.do("POST", "/sign-out", "", "Sec-Fetch-Site", "cross-site").want(t, http.StatusForbidden)
	for path, ours := range map[string]bool{"/": true, "/sign-in": true, "/sign-out": true, "/v1/fleet": false, "/pact.signer.v1.AdminService/Kill": false, "": false} {
		if Serves(path) != ours {
			t.Errorf("%q is ours: %t", path, !ours)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("without Admin")
	}
}

// The end of the audit log is found from its head, and without one from where it was.
func TestAuditTail(t *testing.T) {
	s := consoletest.Calm(testTime)
	d := newDesk(t, s, sharedSecret)
	d.look().want(t, http.StatusOK, "found again")
	for i := range 500 { // appended since the head was told
		s.Audit = append(s.Audit, &signerv1.AuditEntry{Seq: uint64(31 + i), Actor: "x", Action: "late", Time: timestamppb.New(testTime)})
	}
	r := d.look()
	if n := strings.Count(r.says, "late"); n != auditShown || !strings.Contains(r.says, "530") {
		t.Errorf("%d late entries: %s", n, r.says)
	}
	s.State = &signerv1.StoreState{Condition: "unknown", Problem: "custody is away"} // nobody tells the head
	d.look().want(t, http.StatusOK, "530")
	fresh := newDesk(t, s, sharedSecret)
	fresh.look().want(t, http.StatusOK, "It is not known where the log ends: custody is away.")
}

// Every picture's labels stand apart, in order and inside, whatever the times are.
func TestTimelineIsLegible(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := consoletest.Calm(testTime)
		s.Keys = nil
		at := func(name string) time.Time {
			spread := rapid.SampledFrom([]int{10, 1000, 100_000, 10_000_000}).Draw(rt, name+" spread")
			return testTime.Add(time.Duration(rapid.IntRange(-spread, spread).Draw(rt, name)) * time.Second)
		}
		for range rapid.IntRange(1, 9).Draw(rt, "keys") {
			times := []time.Time{at("publish"), at("sign"), at("retire"), at("remove")}
			slices.SortFunc(times, time.Time.Compare)
			if n := rapid.IntRange(1, 4).Draw(rt, "planned"); n < 4 {
				clear(times[n:])
			}
			k := s.AddKey(consoletest.Issuer, rapid.StringMatching(`[A-Za-z0-9_-]{43}`).Draw(rt, "kid"), "signing", times[0], times[1], times[2], times[3])
			if rapid.IntRange(0, 3).Draw(rt, "revoked") == 0 {
				k.RevokedAt = timestamppb.New(at("revoke"))
			}
		}
		line := newTimeline(s.Keys, testTime)
		for _, p := range []*picture{line.wide("a", "t", "d"), line.narrow("b", "t", "d")} {
			labels := map[string][]shape{}
			for _, x := range p.Shapes {
				switch {
				case x.X < -0.1 || x.Y < -0.1 || x.Kind == "rect" && (x.X+x.X2 > p.Width+0.1 || x.Y+x.Y2 > p.Height+0.1 || x.X2 <= 0 || x.Y2 <= 0):
					rt.Fatalf("%s: %+v sticks out of %gx%g", p.Class, x, p.Width, p.Height)
				case x.Kind == "text" && x.Class == "time":
					labels[p.Class] = append(labels[p.Class], x)
				}
			}
			for i, x := range labels[p.Class] {
				if i == 0 {
					continue
				}
				before := labels[p.Class][i-1]
				if apart := (x.X - before.X) + (x.Y - before.Y); apart < 40 || p.Class == "wide-picture" && apart < 80 {
					rt.Fatalf("%s: labels %q and %q are %g apart", p.Class, before.Text, x.Text, apart)
				}
			}
			if len(labels[p.Class]) > eventsBefore+eventsAfter {
				rt.Fatalf("%d labels", len(labels[p.Class]))
			}
		}
	})
}

// The picture has each key's phases where they belong, on both sides of now.
func TestTimelineTells(t *testing.T) {
	for name, c := range map[string]struct {
		fleet *consoletest.Service
		want  []string // each lane's bars, by where they are from now
	}{
		"calm":      {consoletest.Calm(testTime), []string{"published before, signs across"}},
		"published": {consoletest.Published(testTime, 27*time.Minute), []string{"published before, signs across, retiring after", "published across, signs after"}},
		"retiring":  {consoletest.Retiring(testTime, 18*time.Minute), []string{"published before, signs before, retiring across", "published before, signs across"}},
		"waiting":   {consoletest.Emergency(testTime), []string{"published before, signs before, cross before", "published across"}},
		"revoked":   {consoletest.Revoked(testTime), []string{"published before, signs before, cross before", "published before, signs across"}},
	} {
		line := newTimeline(c.fleet.Keys, testTime)
		for _, p := range []*picture{line.wide("a", "t", "d"), line.narrow("b", "t", "d")} {
			down := p.Class == "narrow-picture" // time runs down, lanes stand side by side
			var now float64
			for _, x := range p.Shapes {
				if x.Class == "now" {
					now = x.X
					if down {
						now = x.Y
					}
				}
			}
			lanes, crossed := make([][]string, len(c.want)), false
			for _, x := range p.Shapes {
				from, to, across := x.X, x.X+x.X2, x.Y
				width := (p.Height - 90) / float64(len(c.want))
				if down {
					from, to, across = x.Y, x.Y+x.Y2, x.X-78
					width = (p.Width - 78) / float64(len(c.want))
				} else {
					across -= 44
				}
				what, isBar := strings.CutPrefix(x.Class, "bar ")
				if x.Class == "cross" {
					if crossed {
						continue // its other stroke
					}
					what, crossed, to = "cross", true, max(x.X, x.X2)
					if down {
						to = max(x.Y, x.Y2)
					}
				} else if !isBar {
					continue
				}
				where := "across"
				if to <= now {
					where = "before"
				} else if from >= now {
					where = "after"
				}
				i := min(len(lanes)-1, int(across/width))
				lanes[i] = append(lanes[i], what+" "+where)
			}
			for i, want := range c.want {
				if got := strings.Join(lanes[i], ", "); got != want {
					t.Errorf("%s, %s: lane %d is %q, want %q", name, p.Class, i, got, want)
				}
			}
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 1500 * time.Millisecond: "2 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min", 119 * time.Minute: "119 min", 2 * time.Hour: "2 h",
		3*time.Hour + 20*time.Minute: "3 h 20 min", 50 * time.Hour: "2 days 2 h", 48 * time.Hour: "2 days", 30 * 24 * time.Hour: "30 days", -5 * time.Second: "-5 s",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1_234_567: "1,234,567"} {
		if got := number(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for n, want := range map[uint64]string{9999: "9,999", 10_000: "10k", 12_345_678: "12M"} {
		if got := short(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	if got := stamp(testTime.AddDate(-1, 0, 0), testTime); got != "30 Nov 2025 03:12:40 UTC" {
		t.Error(got)
	}
	if got := list([]string{"a", "b", "c"}); got != "a, b and c" {
		t.Error(got)
	}
	if got := sentence("the store is away..."); got != "The store is away." || sentence("") != "" {
		t.Error(got)
	}
}

// FuzzCookie holds that a session has one cookie, and nothing else is read as one.
func FuzzCookie(f *testing.F) {
	f.Add("bmlnaHQ.1800000000.ABC." + base64.RawURLEncoding.EncodeToString(make([]byte, 32)))
	f.Add("a.b.c.d")
	f.Add("...")
	f.Add("bmlnaHQ.-1.ABC.AAAA")
	f.Fuzz(func(t *testing.T, value string) {
		s, mac, ok := parseCookie(value)
		if !ok {
			return
		}
		if got := s.payload() + "." + base64.RawURLEncoding.EncodeToString(mac); got != value {
			t.Fatalf("%q is %q again", value, got)
		}
		if len(mac) != 32 || s.token == "" || s.id == "" {
			t.Fatalf("%q: %+v", value, s)
		}
	})
}

// FuzzForm holds that a form gives the token that is in it, or an error.
func FuzzForm(f *testing.F) {
	f.Add("token=x&username=operator")
	f.Add("token=%20x%0a")
	f.Add("token=x&token=y")
	f.Add("%zz")
	f.Fuzz(func(t *testing.T, body string) {
		token, err := parseForm(body)
		if (err == nil) != (token != "") {
			t.Fatalf("%q: %q, %v", body, token, err)
		}
		if err != nil {
			return
		}
		form, err := url.ParseQuery(body)
		if err != nil || len(form["token"]) != 1 || strings.TrimSpace(form["token"][0]) != token {
			t.Fatalf("%q: %q", body, token)
		}
	})
}
