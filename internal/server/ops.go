package server

import (
	"encoding/json"
	"net/http"
)

// opsHandler serves metrics and health.
func (s *Server) opsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.handler())
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n")) // a client that has left is not our error
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer := readiness{Reasons: s.unready()}
		answer.Ready = len(answer.Reasons) == 0
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !answer.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(answer) // as above
	})
	return mux
}

// readiness is the body of /readyz.
type readiness struct {
	Ready bool `json:"ready"`
	// Reasons say what is missing.
	Reasons []string `json:"reasons,omitempty"`
}

// unready tells why this replica should get no traffic; nothing if it should.
func (s *Server) unready() []string {
	var why []string
	select {
	case <-s.draining:
		why = append(why, "stopping")
	default:
	}
	if err := s.guard.Ready(); err != nil {
		why = append(why, "kill switch: "+err.Error())
	}
	for _, is := range s.issuers {
		if err := is.keys.Ready(); err != nil {
			why = append(why, "keys of "+is.url+": "+err.Error())
		}
	}
	return why
}
