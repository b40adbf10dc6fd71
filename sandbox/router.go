package sandbox

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// route is what a method on a path means. A route that is authenticated is for
// callers; one that is not is for everybody.
type route struct {
	anonymous func(*Sandbox, http.ResponseWriter, *http.Request, *business)
	caller    func(*Sandbox, http.ResponseWriter, *http.Request, *business, caller)
	// delegated routes are those of brands with delegation only.
	delegated bool
	carriage  carriage
}

// routes are those below /a2a/{brandId}/. A "*" stands for one segment that is
// not empty.
var routes = map[string]map[string]route{
	".well-known/agent-card.json": {http.MethodGet: {anonymous: (*Sandbox).serveCard, carriage: cardCarriage}},

	"message:send":      {http.MethodPost: {caller: (*Sandbox).send, carriage: messageCarriage}},
	"message:stream":    {http.MethodPost: {caller: refuseUnsupported}},
	"extendedAgentCard": {http.MethodGet: {caller: refuseUnsupported}},
	"tasks":             {http.MethodGet: {caller: (*Sandbox).listTasks}},
	"tasks/*":           {http.MethodGet: {caller: unknownTask}},
	"tasks/*:cancel":    {http.MethodPost: {caller: unknownTask}},
	"tasks/*:subscribe": {http.MethodPost: {caller: refuseUnsupported}},
	"tasks/*/pushNotificationConfigs": {
		http.MethodGet:  {caller: refusePush},
		http.MethodPost: {caller: refusePush},
	},
	"tasks/*/pushNotificationConfigs/*": {
		http.MethodGet:    {caller: refusePush},
		http.MethodDelete: {caller: refusePush},
	},

	"oauth/.well-known/oauth-authorization-server": {http.MethodGet: {anonymous: (*Sandbox).serveMetadata, delegated: true, carriage: metadataCarriage}},
	"oauth/jwks.json":            {http.MethodGet: {anonymous: (*Sandbox).serveKeys, delegated: true, carriage: keysCarriage}},
	"oauth/device_authorization": {http.MethodPost: {caller: (*Sandbox).authorizeDevice, delegated: true, carriage: deviceCarriage}},
	"oauth/token":                {http.MethodPost: {caller: (*Sandbox).token, delegated: true, carriage: tokenCarriage}},
	"oauth/consent": {
		http.MethodGet:  {anonymous: (*Sandbox).consentLink, delegated: true, carriage: pageCarriage},
		http.MethodPost: {anonymous: (*Sandbox).consent, delegated: true, carriage: pageCarriage},
	},
	"oauth/connected": {http.MethodGet: {anonymous: (*Sandbox).connected, delegated: true, carriage: pageCarriage}},
}

func refuseUnsupported(s *Sandbox, w http.ResponseWriter, r *http.Request, _ *business, _ caller) {
	if s.faults.hit(r.Context(), "unsupported-501") {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	unsupported("Unsupported operation").write(w)
}

func refusePush(s *Sandbox, w http.ResponseWriter, r *http.Request, _ *business, _ caller) {
	if s.faults.hit(r.Context(), "push-404") {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	errPush.write(w)
}

func unknownTask(s *Sandbox, w http.ResponseWriter, r *http.Request, _ *business, _ caller) {
	segments := segmentsOf(r.URL.EscapedPath())
	id := segments[len(segments)-1]
	if r.Method == http.MethodPost {
		id = strings.TrimSuffix(id, ":cancel")
	}
	if s.faults.hit(r.Context(), "lax-task") {
		writeJSON(w, http.StatusOK, typeA2A, authTask{ID: id, Status: taskStatus{State: "TASK_STATE_COMPLETED"}})
		return
	}
	taskNotFound("Task not found: " + id).write(w)
}

// segmentsOf splits a path at its slashes and decodes each part; a path that does
// not decode to UTF-8 has none.
func segmentsOf(escaped string) []string {
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		plain, err := url.PathUnescape(s)
		if err != nil || !utf8.ValidString(plain) {
			return nil
		}
		segments[i] = plain
	}
	return segments
}

// shape finds the route pattern of the segments below /a2a/{brandId}/.
func shape(segments []string) (map[string]route, bool) {
	for _, s := range segments {
		if s == "" {
			return nil, false
		}
	}
	if len(segments) >= 2 && segments[0] == "tasks" {
		id := "*"
		for _, verb := range []string{":cancel", ":subscribe"} {
			if name, ok := strings.CutSuffix(segments[1], verb); ok && name != "" && len(segments) == 2 {
				id = "*" + verb
			}
		}
		segments = append([]string{"tasks", id}, segments[2:]...)
		if len(segments) == 4 {
			segments[3] = "*"
		}
	}
	for _, s := range segments {
		if strings.Contains(s, "/") { // it came encoded
			return nil, false
		}
	}
	methods, ok := routes[strings.Join(segments, "/")]
	return methods, ok
}

// closeUnread has the connection end with the answer, which net/http would else
// hold back until the rest of the body is there; readBody takes that back once the
// body was read. HTTP/2 needs none of it.
func closeUnread(answer http.Header, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		answer.Set("Connection", "close")
	}
}

// serveProvider is the Provider's handler.
func (s *Sandbox) serveProvider(w http.ResponseWriter, r *http.Request) {
	closeUnread(w.Header(), r)
	r, ok := s.withFaults(w, r)
	if !ok {
		return
	}
	path := r.URL.EscapedPath()
	if isOwnerPath(path) && s.ownerSite.listener == nil {
		s.owner.ServeHTTP(w, r)
		return
	}
	switch path {
	case ControlPath:
		if allow(w, r, map[string]route{http.MethodGet: {}, http.MethodPost: {}}) {
			s.control(w, r)
		}
		return
	case platformsPath:
		if allow(w, r, map[string]route{http.MethodPost: {}}) {
			s.register(w, r)
		}
		return
	case loginPath:
		if _, _, ours := s.redirected(r); ours || s.brandURL == s.publicURL { // ours: of the faults
			s.serveBrandSite(w, r)
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	case "/.well-known/agent-card.json":
		if len(s.brands) == 1 && allow(w, r, routes[".well-known/agent-card.json"]) {
			s.carry(w, r, cardCarriage, func(w http.ResponseWriter) { s.serveCard(w, r, s.brands[0]) })
		} else if len(s.brands) != 1 {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	}
	s.serveBrand(w, r)
}

// serveBrand answers below /a2a/{brandId}/. The shape of a route comes first (404,
// 405), then who calls (401), then the brand (404), then what they say.
func (s *Sandbox) serveBrand(w http.ResponseWriter, r *http.Request) {
	segments := segmentsOf(r.URL.EscapedPath()) // "", "a2a", brand id, …
	if len(segments) < 4 || segments[1] != "a2a" || segments[2] == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	methods, known := shape(segments[3:])
	route, takes := methods[methodOf(r, methods)]
	if !takes && s.spoilRouting(w, r, known) {
		return
	}
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if !allow(w, r, methods) {
		return
	}
	b := s.business(segments[2])
	var who caller
	if route.caller != nil {
		var err error
		if who, err = s.authenticate(r, route); errors.Is(err, errStore) {
			s.failA2A(w, err)
			return
		}
		if err != nil {
			s.log.Info("caller refused", "path", r.URL.EscapedPath(), "reason", err)
			if !s.judgeEarly(w, r, route, b) {
				s.unauthorized(r.Context(), w)
			}
			return
		}
		if wait := s.limit(who); wait > 0 {
			tooMany(w, wait)
			return
		}
	}
	if b == nil && s.spoilUnknownBrand(w, r, route) {
		return
	}
	if b == nil || route.delegated && !b.delegated() {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if route.caller != nil && !route.delegated && s.refuseHeaders(w, r) {
		return
	}
	s.carry(w, r, route.carriage, func(w http.ResponseWriter) {
		if route.caller != nil {
			route.caller(s, s.spoilErrors(r.Context(), w), r, b, who)
			return
		}
		route.anonymous(s, w, r, b)
	})
}

// authenticate tells who calls. A fault can let nobody pass.
func (s *Sandbox) authenticate(r *http.Request, route route) (caller, error) {
	ctx, fault := r.Context(), "lax-no-token"
	if route.delegated {
		fault = "lax-oauth-auth"
	}
	if r.Header.Values("Authorization") == nil && s.faults.hit(ctx, fault) {
		return caller{}, nil
	}
	if route.delegated {
		if who, ok, err := s.refreshes(r); err != nil || ok {
			return who, err
		}
	}
	who, err := s.identities.caller(ctx, r.Header, s.audience)
	if err == nil {
		err = s.refuseIdentity(ctx, r.Header)
	}
	return who, err
}

// methodOf is the request's method as the routes know it: HEAD is GET where
// everybody may read.
func methodOf(r *http.Request, methods map[string]route) string {
	if r.Method == http.MethodHead && methods[http.MethodGet].anonymous != nil {
		return http.MethodGet
	}
	return r.Method
}

// allow answers 405 if the path does not take the method.
func allow(w http.ResponseWriter, r *http.Request, methods map[string]route) bool {
	if _, ok := methods[methodOf(r, methods)]; ok {
		return true
	}
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if _, ok := methods[m]; ok {
			w.Header().Add("Allow", m)
		}
	}
	w.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

// serveBrandSite is the handler of the brands' own domain: the well-known card of
// the first brand, and the login of all.
func (s *Sandbox) serveBrandSite(w http.ResponseWriter, r *http.Request) {
	closeUnread(w.Header(), r)
	r, ok := s.withFaults(w, r)
	if !ok {
		return
	}
	get := map[string]route{http.MethodGet: {anonymous: (*Sandbox).serveCard}}
	switch r.URL.EscapedPath() {
	case "/.well-known/agent-card.json":
		if allow(w, r, get) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Location", s.brands[0].cardURL())
			w.WriteHeader(http.StatusFound)
		}
	case loginPath:
		get[http.MethodPost] = route{}
		switch {
		case !allow(w, r, get):
		case r.Method == http.MethodPost:
			s.carry(w, r, pageCarriage, func(w http.ResponseWriter) { s.login(w, r) })
		default:
			s.carry(w, r, pageCarriage, func(w http.ResponseWriter) { s.loginPage(w, r) })
		}
	default:
		if _, _, ours := s.redirected(r); ours { // a client followed a redirect of the faults
			s.serveProvider(w, r)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *Sandbox) serveCard(w http.ResponseWriter, r *http.Request, b *business) {
	body, maxAge, err := s.cardOf(r.Context(), b)
	if err != nil {
		s.log.Error("no card", "brand", b.ID, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Cache-Control", cacheControl(maxAge))
	writeBody(w, http.StatusOK, typeA2A, body)
}

func (s *Sandbox) serveMetadata(w http.ResponseWriter, r *http.Request, b *business) {
	if m := s.metadataOf(r.Context(), b); m != nil {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Cache-Control", cacheControl(s.params.MaxAge))
		writeJSON(w, http.StatusOK, typeJSON, m)
		return
	}
	b.metadataHandler.ServeHTTP(w, r)
}

// cacheControl lets everybody keep an answer for so long; negative: not at all.
func cacheControl(maxAge time.Duration) string {
	if maxAge < 0 {
		return "no-store"
	}
	return fmt.Sprintf("public, max-age=%d", seconds(maxAge))
}

func (s *Sandbox) serveKeys(w http.ResponseWriter, r *http.Request, b *business) {
	if s.faults.hit(r.Context(), "jwks-down") {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if ctx := r.Context(); s.faults.on(ctx, "key-") || s.faults.on(ctx, "jwks-") {
		body, err := s.keysOf(ctx, b)
		if err != nil {
			s.log.Error("no keys", "brand", b.ID, "error", err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if body != nil {
			w.Header().Set("Cache-Control", cacheControl(s.params.MaxAge))
			writeBody(w, http.StatusOK, typeJSON, body)
			return
		}
	}
	b.keysHandler.ServeHTTP(w, r)
}
