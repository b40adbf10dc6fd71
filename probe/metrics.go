package probe

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the metrics of one probe that goes on for ever. Labels hold the issuer
// and the names of checks, which are fixed.
type Metrics struct {
	registry                *prometheus.Registry
	success, succeeded, dur *prometheus.GaugeVec
	runs                    *prometheus.CounterVec

	patience time.Duration
	beat     atomic.Int64 // when the last round ended, in Unix nanoseconds
}

// NewMetrics makes the metrics of a probe. If no round ends for as long as patience,
// the process counts as not live.
func NewMetrics(issuer string, patience time.Duration) *Metrics {
	labels := prometheus.Labels{"issuer": issuer}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, []string{"check"})
	}
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		patience:  patience,
		success:   gauge("pact_probe_success", "1 if the check passed when it was last made, 0 if it failed; absent if it could not be made."),
		succeeded: gauge("pact_probe_last_success_timestamp_seconds", "When the check passed last, or what it had found still stood."),
		dur:       gauge("pact_probe_duration_seconds", "How long the check took when it was last made."),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pact_probe_runs_total", Help: "Rounds, by whether a check failed.", ConstLabels: labels,
		}, []string{"result"}),
	}
	for _, result := range []Outcome{Passed, Failed} { // both are there from the start
		m.runs.WithLabelValues(string(result))
	}
	m.beat.Store(time.Now().UnixNano())
	m.registry.MustRegister(m.success, m.succeeded, m.dur, m.runs)
	return m
}

// Observe takes a round into account.
func (m *Metrics) Observe(r Report) {
	for _, c := range r.Checks {
		switch c.Outcome {
		case LeftOut:
			m.success.DeleteLabelValues(c.Check)
			m.dur.DeleteLabelValues(c.Check)
			continue
		case Passed:
			m.success.WithLabelValues(c.Check).Set(1)
			at := c.At
			if at.Before(r.At) { // it stands, and is not asked for more often
				at = r.At
			}
			m.succeeded.WithLabelValues(c.Check).Set(float64(at.UnixMilli()) / 1000)
		case Failed:
			m.success.WithLabelValues(c.Check).Set(0)
		}
		m.dur.WithLabelValues(c.Check).Set(c.Took.Seconds())
	}
	result := Passed
	if !r.OK() {
		result = Failed
	}
	m.runs.WithLabelValues(string(result)).Inc()
	m.beat.Store(time.Now().UnixNano())
}

// Handler serves /metrics, and /livez: 200 as long as rounds end, whatever they find.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if since := time.Since(time.Unix(0, m.beat.Load())); since > m.patience {
			http.Error(w, "no round has ended for "+since.Round(time.Second).String(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // the prober has left if this fails
	})
	return mux
}

// Patience is how long a round may take at most, and the wait for the next one.
func (c Config) Patience(interval time.Duration) time.Duration {
	return 2*interval + c.Settle + 20*c.Timeout
}
