package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/test/servers"
)

// A store that replicas share is made by init, and serve goes on from there.
func TestInitWithRedis(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	data := t.TempDir()
	args := []string{
		"--data", data, "--set", "store.kind=redis", "--set", "store.redis.addresses=" + redis.Addr(),
		"--set", "issuers.0.url=http://issuer.localhost", "--set", "issuers.0.enrolment=open",
	}
	must := func(want string, more ...string) {
		t.Helper()
		var (
			code      int
			out, errs string
		)
		eventually(t, "init comes to an end", func() bool {
			code, out, errs = run(t, nil, append(append([]string{"init"}, args...), more...)...)
			return code != exitFailure || !strings.Contains(errs, "run `signer init` again")
		})
		if code != exitOK || !regexp.MustCompile(want).MatchString(out) {
			t.Fatalf("init %v: %d %s %s, want %s", more, code, out, errs, want)
		}
	}
	must(`(?s)Store: +[A-Z2-7]{26}\nAdmin token: +pact_admin_[A-Z2-7]{52} \(new, shown this once\)\n$`, "--show-admin-token")
	must(`Admin token: +kept; init --new-admin-token makes another`, "--show-admin-token")
	must(`Admin token: +`+regexp.QuoteMeta(filepath.Join(data, "admin-token"))+` \(new\)`, "--new-admin-token")
	if code, _, errs := run(t, nil, append([]string{"init", "--accept-lost-store"}, args...)...); code != exitFailure || !strings.Contains(errs, "pactctl state accept-loss") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := run(t, nil, "init", "--data", t.TempDir(), "--show-admin-token"); code != exitFailure || !strings.Contains(errs, "admin-token and nowhere else") {
		t.Errorf("embedded: %d %s", code, errs)
	}
	p := start(t, args...)
	o, d := p.operator(), newDevice(t)
	o.setAudience()
	c := client{t: t, base: "http://issuer.localhost", at: p.info.Public}
	subject := c.enroll(d)
	token := c.sign(d, audience)
	p.stop()
	p = start(t, args...)
	c.at = p.info.Public
	verify(t, c.keySet(), token)

	// A loss is accepted while it runs, and closes enrolment until that is opened.
	redis.Wipe()
	o = p.operator()
	eventually(t, "it knows that the store is lost", func() bool {
		code, body := get(t, p.info.Ops+"/readyz")
		return code == 503 && strings.Contains(string(body), "pactctl state accept-loss")
	})
	o.must("POST", "/v1/state:accept-loss", map[string]any{"store": text(t, o.must("GET", "/v1/state", nil), "store"), "reason": "wiped"})
	eventually(t, "it is ready", func() bool { code, _ := get(t, p.info.Ops+"/readyz"); return code == 200 })
	c.must(401, "/pact/enroll", "", c.enrolment(d))
	o.must("POST", "/v1/state:open-enrolment", map[string]any{})
	if again := c.enroll(d); again != subject {
		t.Errorf("subject %s, was %s", again, subject)
	}
	p.stop()
}

// Something that runs init by itself makes no token, and adds no issuer that is mistyped.
func TestInitByItself(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	data := t.TempDir()
	initialise := func(more ...string) (int, string) {
		t.Helper()
		code, out, errs := run(t, nil, append([]string{
			"init", "--data", data, "--set", "store.kind=redis", "--set", "store.redis.addresses=" + redis.Addr(), "--no-admin-token", "--keep-issuers",
		}, more...)...)
		return code, out + errs
	}
	issuer := []string{"--set", "issuers.0.url=http://issuer.localhost"}
	for _, role := range []string{"", "operator"} {
		args := issuer
		if role != "" {
			args = append(args, "--set", "admin.tokens.0.name=oncall", "--set", "admin.tokens.0.role="+role, "--set", "admin.tokens.0.hash=sha256:"+strings.Repeat("0", 64))
		}
		if code, said := initialise(args...); code != exitFailure || !strings.Contains(said, "admin.tokens") {
			t.Errorf("nobody may administer (%q): %d %s", role, code, said)
		}
	}
	admin := []string{"--set", "admin.tokens.0.name=oncall", "--set", "admin.tokens.0.role=admin", "--set", "admin.tokens.0.hash=sha256:" + strings.Repeat("0", 64)}
	for range 2 {
		if code, said := initialise(append(issuer, admin...)...); code != exitOK || !strings.Contains(said, "none; admin.tokens says who operates") {
			t.Fatalf("%d %s", code, said)
		}
	}
	if _, err := os.Stat(filepath.Join(data, "admin-token")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a token was written: %v", err)
	}
	mistyped := append([]string{"--set", "issuers.0.url=http://isuer.localhost"}, admin...)
	if code, said := initialise(mistyped...); code != exitFailure || !strings.Contains(said, "no issuer http://isuer.localhost") {
		t.Errorf("a mistyped issuer: %d %s", code, said)
	}
	if code, said := initialise(append(mistyped, "--keep-issuers=false")...); code != exitOK || !strings.Contains(said, "new issuer now: http://isuer.localhost") {
		t.Errorf("a new issuer: %d %s", code, said)
	}
	for _, flag := range []string{"--no-admin-token", "--keep-issuers"} {
		if code, _, errs := run(t, nil, "init", "--data", t.TempDir(), flag); code != exitFailure || !strings.Contains(errs, flag) {
			t.Errorf("embedded, %s: %d %s", flag, code, errs)
		}
	}
}
