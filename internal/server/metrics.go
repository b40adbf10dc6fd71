package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics is one server's own registry. Labels hold faces, methods, results and
// configured issuers, never a caller, a jti or an audience.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pact_signer_requests_total",
			Help: "Requests of the public and gRPC faces, by face, method and result.",
		}, []string{"face", "method", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pact_signer_request_seconds",
			Help:    "Time from the first byte of a request's body to the end of its response.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"face", "method"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "pact_signer_build_info",
		Help:        "Always 1; the version is its label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.seconds, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) request(face, method, result string, took time.Duration) {
	m.requests.WithLabelValues(face, method, result).Inc()
	m.seconds.WithLabelValues(face, method).Observe(took.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// The gauges that are read from the running parts when they are scraped.
var (
	readyDesc = prometheus.NewDesc("pact_signer_ready",
		"1 if this replica is ready, else 0.", nil, nil)
	permitDesc = prometheus.NewDesc("pact_signer_permit_remaining_seconds",
		"How long this replica may still sign without asking the store again; 0 if it may not.", nil, nil)
	epochDesc = prometheus.NewDesc("pact_signer_switch_epoch",
		"The kill switch epoch that this replica enforces.", nil, nil)
	offsetDesc = prometheus.NewDesc("pact_signer_clock_offset_seconds",
		"The store's clock less this replica's, as far as it is certain.", nil, nil)
	revisionDesc = prometheus.NewDesc("pact_signer_schedule_revision",
		"The revision of the key schedule that this replica serves.", []string{"issuer"}, nil)
	publishedDesc = prometheus.NewDesc("pact_signer_published_keys",
		"How many keys are in the key set.", []string{"issuer"}, nil)
	transitionDesc = prometheus.NewDesc("pact_signer_key_transition_timestamp_seconds",
		"When the current key began to sign (current), and when the next one will, if planned (next).",
		[]string{"issuer", "key"}, nil)
	custodyUpDesc = prometheus.NewDesc("pact_signer_custody_up",
		"1 if custody answers, else 0.", nil, nil)
	tokenExpiryDesc = prometheus.NewDesc("pact_signer_custody_token_expiry_timestamp_seconds",
		"When the login to Vault ends unless it is renewed.", nil, nil)
	storeUpDesc = prometheus.NewDesc("pact_signer_store_up",
		"1 if the store answers, else 0.", nil, nil)
)

// collector reads the gauges.
type collector struct{ s *Server }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{readyDesc, permitDesc, epochDesc, offsetDesc, revisionDesc, publishedDesc, transitionDesc,
		custodyUpDesc, tokenExpiryDesc, storeUpDesc} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(readyDesc, one(len(c.s.unready()) == 0))
	gauge(custodyUpDesc, one(c.s.custodyHealth.down() == nil))
	gauge(storeUpDesc, one(c.s.storeHealth.down() == nil))
	if at, ok := c.s.tokenExpiry(); ok {
		gauge(tokenExpiryDesc, float64(at.Unix()))
	}
	permit := c.s.guard.Permit()
	remaining := 0.0
	if permit.Valid {
		remaining = max(0, (c.s.switchParams.Permit - permit.Age).Seconds())
	}
	gauge(permitDesc, remaining)
	gauge(epochDesc, float64(permit.Epoch))
	gauge(offsetDesc, permit.Offset.Seconds())
	now := c.s.now()
	for _, is := range c.s.issuers {
		schedule := is.keys.Schedule()
		gauge(revisionDesc, float64(is.keys.Revision()), is.url)
		gauge(publishedDesc, float64(len(schedule.Published(now))), is.url)
		if current, ok := schedule.Signing(now); ok {
			gauge(transitionDesc, float64(current.SignAt.Unix()), is.url, "current")
			if next, planned := schedule.RetireAt(current.KID); planned {
				gauge(transitionDesc, float64(next.Unix()), is.url, "next")
			}
		}
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
