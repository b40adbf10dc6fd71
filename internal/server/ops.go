package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
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
		writeJSON(w, answer)
	})
	return mux
}

// writeJSON writes a body. A client that has left is not our error.
func writeJSON(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

// readiness is the body of /readyz.
type readiness struct {
	Ready bool `json:"ready"`
	// Reasons say what is missing.
	Reasons []string `json:"reasons,omitempty"`
}

// explain puts what to do to an error that says that the store is not the one that
// custody knows.
func (s *Server) explain(err error) error {
	var other *otherConfigError
	if errors.As(err, &other) {
		return other
	}
	var explained *conditionError
	if s.state.shared == nil || errors.As(err, &explained) {
		return err
	}
	if d, known := s.keeper.current(); known {
		if c := storeCondition(d, err); c != nil {
			return c
		}
	}
	return err
}

// mayServe is unready as an error.
func (s *Server) mayServe() error {
	if why := s.unready(); len(why) > 0 {
		return errors.New(strings.Join(why, "; "))
	}
	return nil
}

// unready tells why this replica should get no traffic; nothing if it should.
func (s *Server) unready() []string {
	var why []string
	for _, m := range s.missing() {
		why = append(why, m.why)
	}
	return why
}

// missing is a part that keeps a replica from being ready, by its name in metrics,
// and why.
type missing struct{ part, why string }

// The parts.
const (
	partStopping = "stopping"
	partSwitch   = "switch"
	partCustody  = "custody"
	partRecord   = "deployment_record"
	partSubject  = "subject_key"
	partSettings = "store_settings"
	partKeys     = "keys"
)

var unreadyParts = []string{partStopping, partSwitch, partCustody, partRecord, partSubject, partSettings, partKeys}

// missing tells all that is.
func (s *Server) missing() []missing {
	var all []missing
	select {
	case <-s.draining:
		all = append(all, missing{partStopping, "stopping"})
	default:
	}
	if err := s.guard.Ready(); err != nil {
		all = append(all, missing{partSwitch, "kill switch: " + strings.TrimPrefix(s.explain(err).Error(), "killswitch: ")})
	}
	if err := s.custodyDown(); err != nil {
		all = append(all, missing{partCustody, err.Error()})
	}
	if err := s.keeper.usable(); err != nil {
		all = append(all, missing{partRecord, "custody: " + err.Error()})
	}
	if err := s.subject.usable(); err != nil {
		all = append(all, missing{partSubject, "subject key: " + err.Error()})
	}
	if err := s.settings.wrong(); err != nil {
		all = append(all, missing{partSettings, "store: " + err.Error()})
	}
	for _, is := range s.issuers {
		if err := is.keys.Ready(); err != nil {
			all = append(all, missing{partKeys, "keys of " + is.url + ": " + err.Error()})
		}
	}
	return all
}
