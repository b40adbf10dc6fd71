package main

import (
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
		code, out, errs := run(t, nil, append(append([]string{"init"}, args...), more...)...)
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
