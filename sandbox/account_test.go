package sandbox

import (
	"strings"
	"testing"
)

// A user who is taken out of the configuration can do nothing any more, and neither
// can what they allowed; put in again, it holds as before.
func TestUserTakenOut(t *testing.T) {
	w := newDurable(t, withOwner)
	robin, sam := w.grant(0, scopeUpcoming), w.grant(1, scopeUpcoming)
	waits := w.device(scopeUpcoming) // allowed, and not collected
	if _, err := w.person(0).AllowAll(t.Context(), text(t, waits, "verification_uri_complete")); err != nil {
		t.Fatal(err)
	}
	access := func(of map[string]any) string { return text(t, of, "access_token") }
	refresh := func(of map[string]any) answer {
		return w.oauth("token", "grant_type", grantRefresh, "refresh_token", text(t, of, "refresh_token"))
	}
	owner := func() string {
		o := openOwner(t, w.world)
		return string(o.get("").body)
	}

	w.cfg.Accounts = testAccounts[1:]
	w.restart()
	if a := w.say(LarklineID, "m1", "", "hello", access(robin)); a.status != 401 || !strings.Contains(a.header.Get("WWW-Authenticate"), `error="invalid_token"`) {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.wantOAuthError(refresh(robin), 400, "invalid_grant")
	w.wantOAuthError(w.poll(waits["device_code"]), 400, "invalid_grant")
	w.reply(w.say(LarklineID, "m2", "", "hello", access(sam)))
	if page := owner(); strings.Count(page, testAccounts[0].ID+" (no longer an account)") != 1 || strings.Count(page, "no longer an account") != 1 {
		t.Errorf("the owner's page: %s", page)
	}

	w.cfg.Accounts = testAccounts
	w.restart()
	w.reply(w.say(LarklineID, "m3", "", "hello", access(robin)))
	if a := refresh(robin); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
