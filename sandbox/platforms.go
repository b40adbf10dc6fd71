package sandbox

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/hashicorp/golang-lru/v2"

	"github.com/pactsigner/pactsigner/jwks"
)

// platform is an issuer that registered itself.
type platform struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Issuer  string `json:"issuer"`
	JWKSURI string `json:"jwksUri"`
	Enabled bool   `json:"enabled"`
}

const platformsPath = "/api/platforms"

var platformName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,62}$`)

// registration is the body of POST /api/platforms. Another member is refused.
type registration struct {
	Name    string `json:"name"`
	JWKSURI string `json:"jwksUri"`
}

func parseRegistration(body []byte) (registration, string) {
	var reg registration
	if err := json.Unmarshal(body, &reg, json.RejectUnknownMembers(true)); err != nil {
		return reg, "The body must be a JSON object with the members name and jwksUri, and no other"
	}
	if !platformName.MatchString(reg.Name) {
		return reg, "name must match " + platformName.String()
	}
	u, err := url.Parse(reg.JWKSURI)
	if origin := originOf(reg.JWKSURI); err != nil || origin == "" || u.Scheme != "https" && !loopbackHost(u.Hostname()) {
		return reg, "jwksUri must be an absolute https URL (http on loopback) without user-info and fragment"
	}
	if u.RawQuery != "" || u.ForceQuery {
		return reg, "jwksUri must not have a query"
	}
	return reg, ""
}

// register enters an issuer. The JWT proves it: it is by the issuer about
// itself, for this URL, and signed with a key of the JWKS that the body names,
// which must be on the issuer's origin.
func (s *Sandbox) register(w http.ResponseWriter, r *http.Request) {
	refuse := func(err error) {
		s.log.Info("registration refused", "reason", err)
		w.Header().Set("WWW-Authenticate", `Bearer realm="platforms"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
	bad := func(status int, code, about string) {
		writeJSON(w, status, "application/json", oauthError{Code: code, Description: about})
	}
	compact, _, err := bearer(r.Header, "Authorization")
	if err != nil {
		refuse(err)
		return
	}
	// RS256 issuers cannot register this way.
	token, claims, err := s.identities.read(r.Context(), compact, s.publicURL+platformsPath, jose.ES256)
	if err != nil {
		refuse(err)
		return
	}
	if claims.Subject != claims.Issuer {
		refuse(errSubjectNotIssuer)
		return
	}
	if err := s.identities.issuers.mayRegister(claims.Issuer); err != nil {
		refuse(err)
		return
	}
	if mediaType(r.Header.Get("Content-Type")) != "application/json" {
		bad(http.StatusBadRequest, "invalid_request", "Content-Type must be application/json")
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		bad(http.StatusBadRequest, "invalid_request", "The body is too large or was cut off")
		return
	}
	reg, problem := parseRegistration(body)
	if problem == "" && originOf(reg.JWKSURI) != claims.Issuer {
		problem = "jwksUri must be on the issuer's origin"
	}
	if problem != "" {
		bad(http.StatusBadRequest, "invalid_request", problem)
		return
	}
	now := s.now()
	if wait := s.registrations.admit(peerKey(r.RemoteAddr), reg.JWKSURI, now); wait > 0 {
		tooMany(w, wait)
		return
	}
	if err := s.registrations.remembered(reg.JWKSURI, now); err != nil {
		refuse(err)
		return
	}
	err = s.identities.verify(r.Context(), token, reg.JWKSURI)
	if errors.Is(err, errBusy) {
		s.log.Info("registration put off", "reason", err)
		w.Header().Set("Retry-After", retryAfter(fetchTimeout)) // by then those under way have ended
		bad(http.StatusServiceUnavailable, "temporarily_unavailable", "Too many key sets are being read: try again later")
		return
	}
	if errors.Is(err, jwks.ErrUnavailable) {
		s.registrations.remember(reg.JWKSURI, now, err)
	}
	if err != nil {
		refuse(err)
		return
	}
	listed := s.identities.issuers.listedKeys(claims.Issuer)
	if listed != "" && listed != reg.JWKSURI {
		bad(http.StatusConflict, "conflict", "The issuer's keys are known to be elsewhere")
		return
	}
	p, outcome, err := s.store.register(r.Context(), platform{
		ID: "plt_" + strings.ToLower(newULID(s.now())), Name: reg.Name,
		Issuer: claims.Issuer, JWKSURI: reg.JWKSURI, Enabled: true,
	})
	if err != nil {
		s.failOAuth(w, err)
		return
	}
	status := http.StatusOK
	switch outcome {
	case platformConflict:
		bad(http.StatusConflict, "conflict", "The issuer or the name is registered otherwise")
		return
	case platformFull:
		bad(http.StatusServiceUnavailable, "unavailable", "No more platforms can register")
		return
	case platformCreated:
		if listed == "" { // else it is known already, and alike
			status = http.StatusCreated
		}
	}
	writeJSON(w, status, "application/json", struct {
		Platform platform `json:"platform"`
	}{p})
}

// registrations bounds what the sandbox reads for registrations. The JWT proves
// nothing before the key set that its body names was read, so anybody can have any
// path of any origin asked for.
type registrations struct {
	peers, origins *limiter
	retry          time.Duration
	failed         *lru.Cache[string, failedFetch] // by origin
}

func newRegistrations(p Params) *registrations {
	failed, _ := lru.New[string, failedFetch](failedSets) // fails only for a size under one
	return &registrations{newLimiter(p.RegisterLimit), newLimiter(p.RegisterLimit), p.KeySetRetry, failed}
}

// stray tells whether a key set is elsewhere than at an issuer's well-known place. That
// one is asked for rarely anyhow, and must not be out of its issuer's reach because
// others name paths beside it.
func stray(jwksURI string) bool { return jwksURI != originOf(jwksURI)+jwks.WellKnownPath }

// admit uses up one registration of the peer, and one of the origin. If either has
// none left it uses up neither, and says how long to wait.
func (g *registrations) admit(peer, jwksURI string, now time.Time) time.Duration {
	calls := []call{{g.peers, peer}}
	if stray(jwksURI) {
		calls = append(calls, call{g.origins, originOf(jwksURI)})
	}
	wait, _ := takeAll(now, calls...)
	return wait
}

// remembered says why a key set of the origin could not be had a moment ago.
func (g *registrations) remembered(jwksURI string, now time.Time) error {
	last, ok := g.failed.Get(originOf(jwksURI))
	if since := now.Sub(last.at); ok && stray(jwksURI) && since >= 0 && since < g.retry {
		return fmt.Errorf("sandbox: %v ago at the same origin: %w", since.Round(time.Millisecond), last.err)
	}
	return nil
}

func (g *registrations) remember(jwksURI string, now time.Time, err error) {
	if stray(jwksURI) {
		g.failed.Add(originOf(jwksURI), failedFetch{now, err})
	}
}
