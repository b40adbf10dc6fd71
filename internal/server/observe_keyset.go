package server

import (
	"bytes"
	"context"
	"net/http"
	"net/url"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/rotation"
)

// keySetRight looks at the key set that this replica serves, as a caller gets it, and
// tells whether it holds the keys that the schedule says, and the one that signs. It is
// not served if the answer is no 200.
func (s *Server) keySetRight(ctx context.Context, is issuer) (right, served bool) {
	u, err := url.Parse(is.url)
	if err != nil { // it was resolved
		return false, true
	}
	before := s.keySetNow(is)
	answer := &page{header: make(http.Header)}
	s.service.Handler().ServeHTTP(answer, (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: jwks.WellKnownPath}, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header), Body: http.NoBody,
	}).WithContext(ctx))
	if answer.code != http.StatusOK {
		return false, false
	}
	set, err := jwks.Parse(answer.body.Bytes())
	if err != nil {
		return false, true
	}
	return before.allows(set) || s.keySetNow(is).allows(set), true // a key may have come or gone meanwhile
}

// wanted is what a key set must be at one moment.
type wanted struct {
	schedule  rotation.Schedule
	published []rotation.Key
	signing   string // kid
	fresh     bool   // and so it signs
}

func (s *Server) keySetNow(is issuer) wanted {
	w := wanted{schedule: is.keys.Schedule()}
	w.published = w.schedule.Published(s.now())
	if k, err := is.keys.Signing(); err == nil {
		w.signing, w.fresh = k.KID, true
	}
	return w
}

// allows tells whether a set is the one. Past the staleness bound keys may stay in it
// that would leave by the clock.
func (w wanted) allows(set jwks.Set) bool {
	served := make(map[string]jwks.Key)
	for _, k := range set.Keys {
		known, scheduled := w.schedule.Key(k.ID)
		if kid, err := jwks.Thumbprint(k.Public); err != nil || kid != k.ID || !scheduled || !known.RevokedAt.IsZero() {
			return false
		}
		served[k.ID] = k
	}
	for _, k := range w.published {
		if served[k.KID].Algorithm != k.Algorithm {
			return false
		}
	}
	if !w.fresh {
		return len(served) > 0
	}
	_, has := served[w.signing]
	return has && len(served) == len(w.published)
}

// page is an answer in memory.
type page struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (p *page) Header() http.Header { return p.header }

func (p *page) WriteHeader(code int) {
	if p.code == 0 {
		p.code = code
	}
}

func (p *page) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}
