package agent

import (
	"time"

	"github.com/pactsigner/pactsigner/jwks"
)

// Params holds every duration of the rules, named once. Counts and lengths,
// which no scale changes, are the constants below.
type Params struct {
	// The signer (SG-7, SG-10).
	TokenReuse   time.Duration // a cached PA-JWT is used if fetched less than this ago
	TokenReserve time.Duration // and if more than this of its life remains
	StatusTTL    time.Duration // a signer status is used this long

	// Discovery (DI-3).
	CardTTL, CardTTLMin, CardTTLMax time.Duration

	// Key sets of businesses (MD-7).
	KeysTTL     time.Duration
	KeysRefetch time.Duration // for an unknown kid, at most this often

	// Consent (DA-3..DA-6).
	ConsentMax     time.Duration // a sign-in waits at most this long
	PollMin        time.Duration // floor of the polling interval
	PollDefault    time.Duration // interval if the server gives none
	PollMax        time.Duration // ceiling of the interval that our own back-off reaches
	PollSlowDown   time.Duration // added by slow_down
	PollRetryAfter time.Duration // wait after a 429 without Retry-After
	PollLease      time.Duration // one runtime polls a code; renewed meanwhile
	CheckLate      time.Duration // what a code brought in time is checked until this long after its deadline

	// Grants (GR-2, GR-5).
	GrantLife    time.Duration
	RefreshAt    time.Duration // refresh with this or less of the token's life left
	RefreshLease time.Duration // one runtime refreshes a grant; longer than all the requests of one may take, and renewed
	RefreshCheck time.Duration // how often the others look whether it has

	// Turns (CV-2, CV-9, CV-10).
	TurnLease    time.Duration
	NoReplyWaits []time.Duration
	RateWait     time.Duration // wait after a 429 without Retry-After
	RateWaitMax  time.Duration // cap of a Retry-After that a send obeys (TR-7)

	// SettleAfter is how long after it was sent the owner may settle an operation that
	// the business did not answer about when it was asked (CV-4, EV-7).
	SettleAfter time.Duration

	// ApprovalLife is how long an approval waits for the owner's word, and then as long
	// to be sent, where nothing holds it.
	ApprovalLife time.Duration
}

// Defaults returns the numbers of the rules.
func Defaults() Params {
	return Params{
		TokenReuse:   240 * time.Second,
		TokenReserve: 45 * time.Second,
		StatusTTL:    60 * time.Second,

		CardTTL:    5 * time.Minute,
		CardTTLMin: time.Minute,
		CardTTLMax: 60 * time.Minute,

		KeysTTL:     jwks.DefaultCacheTTL,
		KeysRefetch: jwks.DefaultRefetchEvery,

		ConsentMax:     30 * time.Minute,
		PollMin:        2 * time.Second,
		PollDefault:    5 * time.Second,
		PollMax:        60 * time.Second,
		PollSlowDown:   5 * time.Second,
		PollRetryAfter: 10 * time.Second,
		PollLease:      45 * time.Second,
		CheckLate:      5 * time.Minute,

		GrantLife:    30 * 24 * time.Hour,
		RefreshAt:    60 * time.Second,
		RefreshLease: 2 * time.Minute,
		RefreshCheck: 250 * time.Millisecond,

		TurnLease:    3 * time.Minute,
		NoReplyWaits: []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second},
		RateWait:     5 * time.Second,
		RateWaitMax:  MaxRetryAfter,

		SettleAfter: 24 * time.Hour,

		ApprovalLife: time.Hour,
	}
}

// Scaled returns p with every duration divided by n, for demonstrations and
// tests; n below 2 changes nothing.
func (p Params) Scaled(n int) Params {
	if n < 2 {
		return p
	}
	for _, d := range []*time.Duration{
		&p.TokenReuse, &p.TokenReserve, &p.StatusTTL, &p.CardTTL, &p.CardTTLMin, &p.CardTTLMax, &p.KeysTTL, &p.KeysRefetch,
		&p.ConsentMax, &p.PollMin, &p.PollDefault, &p.PollMax, &p.PollSlowDown, &p.PollRetryAfter, &p.PollLease, &p.CheckLate,
		&p.GrantLife, &p.RefreshAt, &p.RefreshLease, &p.RefreshCheck, &p.TurnLease, &p.RateWait, &p.RateWaitMax, &p.SettleAfter,
		&p.ApprovalLife,
	} {
		*d /= time.Duration(n)
	}
	waits := make([]time.Duration, len(p.NoReplyWaits))
	for i, d := range p.NoReplyWaits {
		waits[i] = d / time.Duration(n)
	}
	p.NoReplyWaits = waits
	return p
}

// farthestLease is later than any lease ends that is taken now: what ends later is
// of a clock that was wrong. A clock that is set back a little makes none so.
func (p Params) farthestLease() time.Duration {
	return 2 * max(p.TurnLease, p.RefreshLease, p.PollLease+p.RateWaitMax)
}

// What is counted or measured in characters.
const (
	maxProviders     = 100   // PR-2
	maxAudience      = 512   // PR-2
	maxLabel         = 120   // PR-2
	maxURLInput      = 2048  // DI-1
	maxMessage       = 4000  // AD-1
	maxRequired      = 20    // AD-4
	maxScopeID       = 200   // CP-3
	maxPurpose       = 500   // DA-3
	maxOAuthCode     = 64    // RD-4
	maxSignInText    = 2048  // DA-15: each of a sign-in's codes and links
	maxPollFailures  = 5     // DA-6
	maxReply         = 20000 // CV-8
	maxIntroductions = 3     // CV-6
	maxRateRetries   = 3     // CV-10
	maxStepUps       = 2     // CV-13
	maxReceipts      = 2000  // EV-9
	maxPending       = 20    // approvals of tasks that wait for the owner's word, and as many of others
	maxSignIns       = 20    // sign-ins of tasks that wait
	maxApprovals     = 2000  // that are kept
	maxFound         = 200   // businesses that others than the owner discovered and nobody uses
	maxCredential    = 4096  // SG-3
	minCredential    = 16    // SG-3
	maxSubject       = 256   // SG-6
	maxActionTool    = 120   // EV-9
	maxArgsHash      = 200   // EV-9
	maxEntries       = 1000  // of an array in a reply or receipt; more make it malformed
	maxCardEntries   = 2000  // of an array or list in a card; more make it invalid_card
)
