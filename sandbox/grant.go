package sandbox

import (
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

// authorize enters a request and gives it a user code. Consent that the same
// party was given behind the link of a step-up, for all of these scopes and not
// collected yet, answers it at once.
func (s *store) authorize(a authorization, now time.Time) authorization {
	s.mu.Lock()
	defer s.mu.Unlock()
	for code, old := range s.authorizations {
		// Kept a while, so that a late poll hears that it is late.
		if now.Sub(old.expires) > s.params.DeviceCodeTTL {
			delete(s.authorizations, code)
			delete(s.devices, old.device)
		}
	}
	a.expires, a.interval = now.Add(s.params.DeviceCodeTTL), s.params.DeviceInterval
	for a.userCode == "" || s.authorizations[a.userCode] != nil {
		a.userCode = newUserCode()
	}
	if a.device != "" {
		for _, given := range s.authorizations {
			if given.device == "" && given.party == a.party && given.state == authApproved &&
				now.Before(given.expires) && containsAll(given.granted, a.scopes) {
				given.state = authUsed
				a.state, a.user, a.granted = authApproved, given.user, a.scopes
				break
			}
		}
		s.devices[a.device] = &a
	}
	s.authorizations[a.userCode] = &a
	return a
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
func (s *store) undecided(brand, userCode string, now time.Time) (authorization, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.authorizations[userCode]
	if !ok || a.party.brand != brand || a.state != authPending || !now.Before(a.expires) {
		return authorization{}, false
	}
	return *a, true
}

// decide records the user's decision: what they granted, nothing for no. It is
// false if the request no longer waits for one.
func (s *store) decide(brand, userCode, user string, granted []string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.authorizations[userCode]
	if !ok || a.party.brand != brand || a.state != authPending || !now.Before(a.expires) {
		return false
	}
	a.user, a.granted, a.state = user, granted, authApproved
	if len(granted) == 0 {
		a.state = authDenied
	}
	return true
}

// grant is what a user allowed a party.
type grant struct {
	id      string
	party   party
	user    string
	scopes  []string
	expires time.Time
	revoked bool
}

// refresh is a refresh token: it works once.
type refresh struct {
	grant string
	spent bool
}

// collect is a poll with a device code. When the user has said yes it makes the
// grant, with the first refresh token.
func (s *store) collect(device string, p party, grantID, refreshHash string, now time.Time) (grant, *oauthError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.devices[device]
	switch {
	case !ok || a.party != p:
		return grant{}, oauthFail("invalid_grant", "Unknown device_code")
	case a.state == authUsed:
		return grant{}, oauthFail("invalid_grant", "device_code was used")
	case a.state == authDenied:
		return grant{}, oauthFail("access_denied", "The user said no")
	case !now.Before(a.expires):
		return grant{}, oauthFail("expired_token", "device_code has expired")
	case a.state == authPending:
		early := !a.anyPace && !a.polled.IsZero() && now.Sub(a.polled) < a.interval
		a.polled = now
		if early {
			a.interval += s.params.SlowDown
			return grant{}, oauthFail("slow_down", "Poll less often")
		}
		return grant{}, oauthFail("authorization_pending", "Waiting for the user")
	}
	a.state = authUsed
	for id, g := range s.grants {
		if !now.Before(g.expires) {
			delete(s.grants, id)
		}
	}
	for hash, r := range s.refreshes {
		if s.grants[r.grant] == nil {
			delete(s.refreshes, hash)
		}
	}
	g := &grant{id: grantID, party: p, user: a.user, scopes: a.granted, expires: now.Add(s.params.GrantTTL)}
	s.grants[g.id] = g
	s.refreshes[refreshHash] = &refresh{grant: g.id}
	return *g, nil
}

// rotate spends a refresh token and puts the next one in its place. A spent one
// means that somebody else has a copy: the grant is revoked. wanted may ask for
// less than the grant holds, not for more. Without next the token stays good.
func (s *store) rotate(hash string, p party, next string, wanted []string, now time.Time) (grant, *oauthError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unknown := oauthFail("invalid_grant", "Unknown or expired refresh_token")
	r, ok := s.refreshes[hash]
	if !ok {
		return grant{}, unknown
	}
	g := s.grants[r.grant]
	if g == nil || g.party != p || g.revoked || !now.Before(g.expires) {
		return grant{}, unknown
	}
	if r.spent {
		g.revoked = true
		return grant{}, unknown
	}
	if !containsAll(g.scopes, wanted) {
		return grant{}, oauthFail("invalid_scope", "The grant does not hold that scope")
	}
	if next != "" {
		r.spent = true
		s.refreshes[next] = &refresh{grant: g.id}
	}
	return *g, nil
}

// grant returns a grant that holds.
func (s *store) grant(id string, now time.Time) (grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.grants[id]
	if !ok || g.revoked || !now.Before(g.expires) {
		return grant{}, false
	}
	return *g, true
}

// regrant sets what a grant gives: a switch may add to what the user was asked.
func (s *store) regrant(id string, scopes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.grants[id]; g != nil {
		g.scopes = scopes
	}
}
