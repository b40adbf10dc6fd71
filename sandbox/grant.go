package sandbox

import (
	"context"
	"slices"
	"time"
)

type authState int

const (
	authPending authState = iota
	authApproved
	authDenied
	authUsed
)

// authorization is a request for a user's consent, from the device endpoint or
// behind the link of a step-up (device is then empty).
type authorization struct {
	device   string // hash of the device code
	userCode string
	party    party
	scopes   []string
	expires  time.Time
	interval time.Duration
	polled   time.Time
	anyPace  bool // no poll is too early

	state   authState
	user    string   // who decided
	granted []string // what they allowed
}

const selectAuthorization = `SELECT coalesce(device, ''), user_code, brand, issuer, subject, scopes, expires, interval, polled, any_pace, state, user, granted
	FROM authorizations WHERE `

func scanAuthorization(scan func(...any) error) (a authorization, err error) {
	var expires, polled instant
	err = scan(&a.device, &a.userCode, &a.party.brand, &a.party.issuer, &a.party.subject, (*list)(&a.scopes),
		&expires, &a.interval, &polled, &a.anyPace, &a.state, &a.user, (*list)(&a.granted))
	a.expires, a.polled = expires.Time, polled.Time
	return a, err
}

// authorization finds one; where is a condition on its table.
func (t *tx) authorization(where string, args ...any) (a authorization, found bool, err error) {
	err = t.each(selectAuthorization+where+" LIMIT 1", args, func(scan func(...any) error) (err error) {
		found = true
		a, err = scanAuthorization(scan)
		return err
	})
	return a, found, err
}

// Bounds of the requests for consent. Beyond maxPending of a party's that wait for the
// user, and beyond maxAuthorizations of an issuer's, one of theirs is forgotten, beyond
// allAuthorizations one of the issuer's that has the most: the oldest link of a step-up
// that waits, or else the oldest request that waits.
const (
	maxPending        = 100
	maxAuthorizations = 2500
	allAuthorizations = 10000
)

// authorize enters a request and gives it a user code. Consent that the same
// party was given behind the link of a step-up, for all of these scopes and not
// collected yet, answers it at once.
func (s *store) authorize(ctx context.Context, a authorization, now time.Time) (authorization, error) {
	a.expires, a.interval = now.Add(s.params.DeviceCodeTTL), s.params.DeviceInterval
	err := s.update(ctx, func(t *tx) error {
		// Kept a while, so that a late poll hears that it is late.
		if _, err := t.exec("DELETE FROM authorizations WHERE expires < ?", instant{now.Add(-s.params.DeviceCodeTTL)}); err != nil {
			return err
		}
		if err := t.makeRoomToAsk(a.party); err != nil {
			return err
		}
		for taken := true; taken; {
			a.userCode = newUserCode()
			var err error
			if _, taken, err = t.authorization("user_code = ?", a.userCode); err != nil {
				return err
			}
		}
		var device any
		if a.device != "" {
			device = a.device
			if err := t.collectLink(&a, now); err != nil {
				return err
			}
		}
		_, err := t.exec(`INSERT INTO authorizations (brand, issuer, subject, device, user_code, scopes, expires, interval, polled, any_pace, state, user, granted)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			a.party.columns(device, a.userCode, list(a.scopes), instant{a.expires}, a.interval, instant{a.polled}, a.anyPace,
				a.state, a.user, list(a.granted))...)
		return err
	})
	return a, err
}

// makeRoomToAsk forgets a request if there are too many for one more of a party's.
func (t *tx) makeRoomToAsk(p party) error {
	const oldest = " ORDER BY state <> 0, device IS NOT NULL, rowid LIMIT 1)" // 0 is authPending
	var pending int
	if _, err := t.get("SELECT count(*) FROM authorizations WHERE brand = ? AND issuer = ? AND subject = ? AND state = ?",
		p.columns(authPending), &pending); err != nil {
		return err
	}
	if pending >= maxPending {
		_, err := t.exec("DELETE FROM authorizations WHERE rowid = (SELECT rowid FROM authorizations WHERE brand = ? AND issuer = ? AND subject = ?"+oldest, p.columns()...)
		return err
	}
	from, err := t.crowded("authorizations", p.issuer, maxAuthorizations, allAuthorizations)
	if err != nil || from == "" {
		return err
	}
	_, err = t.exec("DELETE FROM authorizations WHERE rowid = (SELECT rowid FROM authorizations WHERE issuer = ?"+oldest, from)
	return err
}

// collectLink answers a request with consent given behind the link of a step-up.
func (t *tx) collectLink(a *authorization, now time.Time) error {
	var link string
	err := t.each(selectAuthorization+"brand = ? AND issuer = ? AND subject = ? AND device IS NULL AND state = ? AND expires > ? ORDER BY rowid",
		a.party.columns(authApproved, instant{now}), func(scan func(...any) error) error {
			given, err := scanAuthorization(scan)
			if err == nil && link == "" && containsAll(given.granted, a.scopes) {
				link = given.userCode
				a.state, a.user, a.granted = authApproved, given.user, a.scopes
			}
			return err
		})
	if err != nil || link == "" {
		return err
	}
	_, err = t.exec("UPDATE authorizations SET state = ? WHERE user_code = ?", authUsed, link)
	return err
}

func containsAll(set, subset []string) bool {
	for _, s := range subset {
		if !slices.Contains(set, s) {
			return false
		}
	}
	return true
}

// undecided returns the request that a user code stands for while it waits for
// the user.
func (s *store) undecided(ctx context.Context, brand, userCode string, now time.Time) (a authorization, waits bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		a, waits, err = t.undecided(brand, userCode, now)
		return err
	})
	return a, waits, err
}

func (t *tx) undecided(brand, userCode string, now time.Time) (authorization, bool, error) {
	return t.authorization("user_code = ? AND brand = ? AND state = ? AND expires > ?", userCode, brand, authPending, instant{now})
}

// approved tells whether the user has approved the request of a user code, and no poll
// has collected that yet. A device's request may be so from the start: by consent behind
// the link of a step-up.
func (s *store) approved(ctx context.Context, brand, userCode, user string, now time.Time) (approved bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		_, approved, err = t.authorization("user_code = ? AND brand = ? AND user = ? AND state = ? AND expires > ?",
			userCode, brand, user, authApproved, instant{now})
		return err
	})
	return approved, err
}

// decide records the user's decision: what they granted, nothing for no. It is
// false if the request no longer waits for one.
func (s *store) decide(ctx context.Context, brand, userCode, user string, granted []string, now time.Time) (waited bool, err error) {
	err = s.update(ctx, func(t *tx) error {
		if _, waited, err = t.undecided(brand, userCode, now); err != nil || !waited {
			return err
		}
		state := authApproved
		if len(granted) == 0 {
			state = authDenied
		}
		_, err = t.exec("UPDATE authorizations SET state = ?, user = ?, granted = ? WHERE user_code = ?", state, user, list(granted), userCode)
		return err
	})
	return waited && err == nil, err
}

// reopen takes a decision back that no poll has collected.
func (s *store) reopen(ctx context.Context, userCode string) error {
	return s.update(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE authorizations SET state = ? WHERE user_code = ? AND state <> ?", authPending, userCode, authUsed)
		return err
	})
}

// grant is what a user allowed a party.
type grant struct {
	id string
	party
	user          string
	scopes        []string
	made, expires time.Time
	revoked       time.Time // zero: it was not
	lastUsed      time.Time // by a turn or a refresh; zero: never
}

// holds tells whether the grant gives anything.
func (g *grant) holds(now time.Time) bool { return g.revoked.IsZero() && now.Before(g.expires) }

const selectGrant = "SELECT id, brand, issuer, subject, user, scopes, made, expires, revoked, used FROM grants "

func scanGrant(scan func(...any) error) (g grant, err error) {
	var made, expires, revoked, used instant
	err = scan(&g.id, &g.brand, &g.issuer, &g.subject, &g.user, (*list)(&g.scopes), &made, &expires, &revoked, &used)
	g.made, g.expires, g.revoked, g.lastUsed = made.Time, expires.Time, revoked.Time, used.Time
	return g, err
}

func (t *tx) grant(id string) (g grant, found bool, err error) {
	err = t.each(selectGrant+"WHERE id = ?", []any{id}, func(scan func(...any) error) (err error) {
		found = true
		g, err = scanGrant(scan)
		return err
	})
	return g, found, err
}

// collect is a poll with a device code. When the user has said yes it makes the
// grant, with the first refresh token. Refusals are oauthErrors.
func (s *store) collect(ctx context.Context, device string, p party, grantID, refreshHash string, now time.Time) (g grant, err error) {
	err = s.update(ctx, func(t *tx) error {
		a, ok, err := t.authorization("device = ?", device)
		if p.nobody() {
			p = a.party
		}
		switch {
		case err != nil:
			return err
		case !ok && t.lax(ctx, "unknown-pending"):
			return oauthFail("authorization_pending", "Waiting for the user")
		case !ok || a.party != p && !t.lax(ctx, "lax-code"):
			return oauthFail("invalid_grant", "Unknown device_code")
		case a.state == authUsed && !t.lax(ctx, "code-reuse"):
			return oauthFail("invalid_grant", "device_code was used")
		case a.state == authDenied && !t.lax(ctx, "denied-pending"):
			return oauthFail("access_denied", "The user said no")
		case !now.Before(a.expires) && !t.lax(ctx, "code-immortal"):
			return oauthFail("expired_token", "device_code has expired")
		case a.state == authPending || a.state == authDenied:
			return t.poll(a, now)
		case !t.user(a.user):
			return oauthFail("invalid_grant", "The user has no account any more")
		}
		if _, err := t.exec("UPDATE authorizations SET state = ? WHERE device = ?", authUsed, device); err != nil {
			return err
		}
		// Refresh tokens and receipts go with their grant.
		if _, err := t.exec("DELETE FROM grants WHERE expires <= ?", instant{now}); err != nil {
			return err
		}
		g = grant{id: grantID, party: p, user: a.user, scopes: a.granted, made: now, expires: now.Add(s.params.GrantTTL)}
		if _, err := t.exec("INSERT INTO grants (brand, issuer, subject, id, user, scopes, made, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			p.columns(g.id, g.user, list(g.scopes), instant{g.made}, instant{g.expires})...); err != nil {
			return err
		}
		return t.addRefresh(refreshHash, g.id)
	})
	return g, err
}

// poll refuses one that comes before the user decided.
func (t *tx) poll(a authorization, now time.Time) error {
	refusal := oauthFail("authorization_pending", "Waiting for the user")
	if !a.anyPace && !a.polled.IsZero() && now.Sub(a.polled) < a.interval {
		a.interval += t.params.SlowDown
		refusal = oauthFail("slow_down", "Poll less often")
	}
	if _, err := t.exec("UPDATE authorizations SET polled = ?, interval = ? WHERE device = ?", instant{now}, a.interval, a.device); err != nil {
		return err
	}
	return refusal
}

func (t *tx) addRefresh(hash, grantID string) error {
	_, err := t.exec("INSERT INTO refreshes (hash, grant_id) VALUES (?, ?)", hash, grantID)
	return err
}

// rotate spends a refresh token and puts the next one in its place. A spent one
// means that somebody else has a copy: the grant is revoked. wanted may ask for
// less than the grant holds, not for more. Without next the token stays good.
func (s *store) rotate(ctx context.Context, hash string, p party, next string, wanted []string, now time.Time) (g grant, err error) {
	err = s.update(ctx, func(t *tx) error {
		unknown := oauthFail("invalid_grant", "Unknown or expired refresh_token")
		var grantID string
		var spent bool
		found, err := t.get("SELECT grant_id, spent FROM refreshes WHERE hash = ?", []any{hash}, &grantID, &spent)
		if err == nil && !found && t.lax(ctx, "lax-refresh") {
			found, err = t.get("SELECT id FROM grants WHERE brand = ? AND issuer = ? AND subject = ? ORDER BY rowid DESC LIMIT 1", p.columns(), &grantID)
		}
		if err == nil && found {
			g, found, err = t.grant(grantID)
		}
		switch {
		case err != nil:
			return err
		case !found || !g.holds(now) || !t.user(g.user):
			return unknown
		case g.party != p && !p.nobody() && !t.lax(ctx, "lax-refresh-party"):
			if t.lax(ctx, "refresh-burn") {
				if _, err := t.exec("DELETE FROM refreshes WHERE hash = ?", hash); err != nil {
					return err
				}
			}
			return unknown
		case spent && !t.lax(ctx, "refresh-reuse"):
			if err := t.revoke(g.id, now); err != nil {
				return err
			}
			return unknown
		case !containsAll(g.scopes, wanted):
			return oauthFail("invalid_scope", "The grant does not hold that scope")
		}
		if _, err := t.exec("UPDATE grants SET used = ? WHERE id = ?", instant{now}, g.id); err != nil || next == "" {
			return err
		}
		if _, err := t.exec("UPDATE refreshes SET spent = TRUE WHERE hash = ?", hash); err != nil {
			return err
		}
		return t.addRefresh(next, g.id)
	})
	return g, err
}

func (t *tx) revoke(id string, now time.Time) error {
	_, err := t.exec("UPDATE grants SET revoked = ? WHERE id = ?", instant{now}, id)
	return err
}

// grant returns a grant that holds.
func (s *store) grant(ctx context.Context, id string, now time.Time) (g grant, ok bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		g, ok, err = t.grant(id)
		return err
	})
	return g, ok && g.holds(now) && s.user(g.user), err
}

// regrant sets what a grant gives: a fault may add to what the user was asked.
func (s *store) regrant(ctx context.Context, id string, scopes []string) error {
	return s.update(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE grants SET scopes = ? WHERE id = ?", list(scopes), id)
		return err
	})
}

// grantList are the grants that have not expired, the newest first; those that were
// revoked are among them.
func (s *store) grantList(ctx context.Context, now time.Time) (grants []grant, err error) {
	err = s.view(ctx, func(t *tx) error {
		return t.each(selectGrant+"WHERE expires > ? ORDER BY made DESC, rowid DESC", []any{instant{now}}, func(scan func(...any) error) error {
			g, err := scanGrant(scan)
			grants = append(grants, g)
			return err
		})
	})
	return grants, err
}

// revoke ends a grant, its delegation tokens and its refresh tokens, at once. It is
// false if there is none that holds.
func (s *store) revoke(ctx context.Context, id string, now time.Time) (held bool, err error) {
	err = s.update(ctx, func(t *tx) error {
		g, found, err := t.grant(id)
		if held = found && g.holds(now); err != nil || !held {
			return err
		}
		return t.revoke(id, now)
	})
	return held && err == nil, err
}
