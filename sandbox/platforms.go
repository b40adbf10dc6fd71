package sandbox

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
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
	if err := s.identities.verify(r.Context(), token, reg.JWKSURI); err != nil {
		refuse(err)
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
	case platformCreated:
		status = http.StatusCreated
	}
	writeJSON(w, status, "application/json", struct {
		Platform platform `json:"platform"`
	}{p})
}
