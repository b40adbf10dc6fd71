package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// metrics is one server's own registry. Labels hold fixed words and configured
// issuers, never a caller, a jti or an audience.
type metrics struct {
	registry *prometheus.Registry
	catalog  []described
	activity *activity
	tracing  *tracing // nil: off

	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	keySets   map[int]prometheus.Counter // by status; 0: another
	issued    *prometheus.CounterVec
	limits    map[signer.LimitKind]prometheus.Counter
	replays   prometheus.Counter
	admin     *prometheus.CounterVec
	store     *prometheus.HistogramVec
	signature prometheus.Observer
	vault     *prometheus.HistogramVec
	batch     prometheus.Observer
	barriers  map[bool]prometheus.Observer // by whether every replica reported
	regressed prometheus.Counter
	spans     map[bool]prometheus.Counter // by whether they were sent

	gauges gauges
}

// described is a metric as docs/metrics.md has it.
type described struct {
	group, name, kind, help string
	labels                  []label
}

// label is a label and the values that it may have; without any, those that are told in
// words.
type label struct {
	name   string
	values []string
	told   string
}

// of is a label with fixed values.
func of(name string, values ...string) label { return label{name: name, values: values} }

// opts are the names and help of a metric, and enter it in the catalog.
func (m *metrics) opts(group, name, kind, help string, labels []label) (prometheus.Opts, []string) {
	m.catalog = append(m.catalog, described{group, "pact_signer_" + name, kind, help, labels})
	names := make([]string, len(labels))
	for i, l := range labels {
		names[i] = l.name
	}
	return prometheus.Opts{Namespace: "pact_signer", Name: name, Help: help}, names
}

func (m *metrics) counter(group, name, help string, labels ...label) *prometheus.CounterVec {
	o, names := m.opts(group, name, "counter", help, labels)
	v := prometheus.NewCounterVec(prometheus.CounterOpts(o), names)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) gauge(group, name, help string, labels ...label) *prometheus.GaugeVec {
	o, names := m.opts(group, name, "gauge", help, labels)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts(o), names)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) histogram(group, name, help string, buckets []float64, labels ...label) *prometheus.HistogramVec {
	o, names := m.opts(group, name, "histogram", help, labels)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: o.Namespace, Name: o.Name, Help: o.Help, Buckets: buckets}, names)
	m.registry.MustRegister(v)
	return v
}

// read describes a gauge that is read from the running parts when it is scraped.
func (m *metrics) read(group, name, help string, labels ...label) *prometheus.Desc {
	o, names := m.opts(group, name, "gauge", help, labels)
	return prometheus.NewDesc(o.Namespace+"_"+o.Name, o.Help, names, nil)
}

// The buckets: of a request, of one call to Vault or the store, and of a barrier.
var (
	requestBuckets = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10}
	callBuckets    = []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2}
	barrierBuckets = []float64{.05, .1, .25, .5, 1, 2, 3, 3.5, 5, 10, 30}
	batchBuckets   = []float64{1, 2, 4, 8, 16, 32, 64}
)

// The groups of docs/metrics.md.
const (
	groupRequests = "Requests"
	groupSwitch   = "Kill switch"
	groupKeys     = "Keys"
	groupCustody  = "Custody"
	groupStore    = "Store"
	groupReplica  = "Replica"
)

// Labels that several metrics have.
var (
	issuerLabel = label{name: "issuer", told: "URL of each issuer"}
	faceLabel   = of("face", "rest", "grpc")
	methodLabel = of("method", methodSign, methodStatus, methodEnroll, methodJWKS, methodDiscovery, methodOther)
)

func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.requests = m.counter(groupRequests, "requests_total",
		"Requests of the public and gRPC listeners that were answered. `unavailable` is a 503: custody, the store or the permit is missing; "+
			"`cancelled`: the caller left within half a second, before it had its answer.",
		faceLabel, methodLabel,
		of("result", "ok", "invalid_request", "unauthorized", "disabled", "not_found", "audience_not_registered", "rate_limited", "unavailable", "cancelled", "other"))
	for _, face := range []string{"rest", "grpc"} { // a rate needs a first value
		for _, result := range []string{"ok", "invalid_request", "unauthorized", "disabled", "audience_not_registered", "rate_limited", "unavailable", "cancelled", "other"} {
			m.requests.WithLabelValues(face, methodSign, result)
		}
	}
	m.seconds = m.histogram(groupRequests, "request_duration_seconds",
		"Time from when a request was read to the end of its response.", requestBuckets, faceLabel, methodLabel)
	m.inFlight = m.gauge(groupRequests, "sign_in_flight", "Sign requests that are being answered.").WithLabelValues()
	m.issued = m.counter(groupRequests, "tokens_issued_total",
		"Tokens that were given out.", issuerLabel, of("caller", string(signer.DeviceCaller), string(signer.CredentialCaller)))
	keySets := m.counter(groupRequests, "jwks_responses_total",
		"Answers to requests for a key set. `304`: the caller's copy is right; `404`: no issuer has that host.",
		of("status", "200", "304", "404", "503", "other"))
	m.keySets = map[int]prometheus.Counter{0: keySets.WithLabelValues("other")}
	for _, code := range []int{http.StatusOK, http.StatusNotModified, http.StatusNotFound, http.StatusServiceUnavailable} {
		m.keySets[code] = keySets.WithLabelValues(strconv.Itoa(code))
	}
	limits := m.counter(groupRequests, "limits_hit_total",
		"Requests that a limit refused: a caller's rate, enrolments of an address, failed proofs of an address, an issuer's devices, or a "+
			"full queue at custody or the store.",
		of("limit", "caller", "enroll", "failed_proof", "devices", "queue"))
	m.limits = make(map[signer.LimitKind]prometheus.Counter)
	for _, limit := range []signer.LimitKind{signer.LimitCaller, signer.LimitEnroll, signer.LimitFailedProof, signer.LimitDevices, limitQueue} {
		m.limits[limit] = limits.WithLabelValues(string(limit))
	}
	m.replays = m.counter(groupRequests, "replays_refused_total",
		"Proofs that were refused because their jti was used before.").WithLabelValues()
	m.admin = m.counter(groupRequests, "admin_requests_total",
		"Calls of the admin listener, gRPC and REST. `refused`: not allowed, wrong, or not possible now; `failed`: custody or the store "+
			"did not do it. `other`: refused before a method was known, as without a token.",
		label{name: "method", values: []string{methodOther}, told: "methods of AdminService"}, of("result", "ok", "refused", "failed"))

	barriers := m.histogram(groupSwitch, "barrier_duration_seconds",
		"How long a kill or resume took to be effective on every replica, where somebody waited for that (`pactctl kill` does). `confirmed`: all "+
			"replicas reported it; `bound`: one stayed silent, and no permit from before can be valid any more.",
		barrierBuckets, of("outcome", "confirmed", "bound"))
	m.barriers = map[bool]prometheus.Observer{true: barriers.WithLabelValues("confirmed"), false: barriers.WithLabelValues("bound")}
	m.regressed = m.counter(groupSwitch, "epoch_regressions_total",
		"How often this replica found that the store lacks switch state which it or custody knows: it came back from an older copy, or empty, or lost writes. "+
			"Nothing is signed on it before that is merged back.").WithLabelValues()

	m.vault = m.histogram(groupCustody, "custody_request_duration_seconds",
		"Requests to a server of Vault; one of `sign` is for a batch of signatures. `refused`: another 4xx; `unavailable`: 429 or 5xx; "+
			"`unreachable`: no answer; `cancelled`: the caller left. None with local custody.", callBuckets,
		of("operation", "sign", "hmac", "encrypt", "decrypt", "key", "document", "login", "renew", "lookup", "other"),
		of("result", "ok", "not_found", "refused", "sealed", "unavailable", "unreachable", "cancelled"))
	m.batch = m.histogram(groupCustody, "custody_batch_size",
		"How many signatures one request to Vault asked for.", batchBuckets).WithLabelValues()
	m.signature = m.histogram(groupCustody, "custody_sign_duration_seconds",
		"How long a token waited for its signature, its turn in the queue included, whatever the custody.", callBuckets).WithLabelValues()

	m.store = m.histogram(groupStore, "store_request_duration_seconds",
		"Calls of the store, waiting for their turn included; each sign and status is one of `authorize`. `refused`: the store's answer "+
			"was no, such as to an unknown caller or for a limit; `cancelled`: the caller left.", callBuckets,
		of("operation", storeAuthorize, storeDevice, storeEnroll, storeBeat, storeSwitch, storeSchedule, storeAudiences, storeAudit, storeRecords,
			storeActivity, storePing),
		of("result", "ok", "refused", "unavailable", "cancelled"))

	m.gauge(groupReplica, "build_info", "Always 1.", label{name: "version", told: "the binary's"}).WithLabelValues(version).Set(1)
	spans := m.counter(groupReplica, "trace_spans_total",
		"Spans that were sent to the collector of tracing.endpoint, and those that it did not take.", of("result", "sent", "failed"))
	m.spans = map[bool]prometheus.Counter{true: spans.WithLabelValues("sent"), false: spans.WithLabelValues("failed")}
	m.gauges = newGauges(m)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// serve makes the counters of issuers: a rate needs a first value.
func (m *metrics) serve(issuers []string) {
	for _, url := range issuers {
		for _, caller := range []signer.CallerKind{signer.DeviceCaller, signer.CredentialCaller} {
			m.issued.WithLabelValues(url, string(caller))
		}
	}
}

// limitQueue is the limit of those who wait for custody or the store.
const limitQueue signer.LimitKind = "queue"

// request counts a request of the contract's faces.
func (m *metrics) request(face, method, result string, took time.Duration) {
	m.requests.WithLabelValues(face, method, result).Inc()
	m.seconds.WithLabelValues(face, method).Observe(took.Seconds())
	m.activity.count(method, result)
}

// keySet counts an answer to a request for a key set.
func (m *metrics) keySet(code int) {
	if c, ok := m.keySets[code]; ok {
		c.Inc()
	} else {
		m.keySets[0].Inc()
	}
}

// adminCall counts a call of the admin listener.
func (m *metrics) adminCall(method string, err error) {
	result := "failed"
	switch status.Code(err) {
	case codes.OK:
		result = "ok"
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.ResourceExhausted, codes.Canceled:
		result = "refused"
	}
	if method == "" {
		method = methodOther
	}
	m.admin.WithLabelValues(method, result).Inc()
}

// barrier records how long a change of the switch took to be effective.
func (m *metrics) barrier(took time.Duration, reported bool) {
	m.barriers[reported].Observe(took.Seconds())
}

// handler serves the registry.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// gauges are what is read from the running parts when it is scraped.
type gauges struct {
	ready, unready, certificate, offset                          *prometheus.Desc
	permit, epoch, entries, lacking                              *prometheus.Desc
	revision, published, transition, due, nextPublished          *prometheus.Desc
	postponed, failing, confirmed, staleness, consistent         *prometheus.Desc
	custodyUp, custodySealed, custodyQueued, tokenExpiry, behind *prometheus.Desc
	tokenLease, storeUp, enrolmentClosed                         *prometheus.Desc
}

func newGauges(m *metrics) gauges {
	return gauges{
		permit: m.read(groupSwitch, "permit_remaining_seconds",
			"How long this replica may still sign without asking the store again; 0 if it may not."),
		epoch: m.read(groupSwitch, "switch_epoch",
			"The newest kill switch epoch that this replica knows, from the store or custody. It does not fall while the replica runs."),
		lacking: m.read(groupSwitch, "store_went_back",
			"1 while this replica signs nothing since the store was found to lack switch state which it or custody knows, else 0."),
		entries: m.read(groupSwitch, "switch_entries",
			"Kill switch entries in force that this replica knows, from the store or custody. A store that lost some takes none away.",
			of("scope", "all", "issuer", "audience", "subject", "device", "credential")),

		revision:  m.read(groupKeys, "schedule_revision", "The revision of the key schedule that this replica serves.", issuerLabel),
		published: m.read(groupKeys, "published_keys", "How many keys are in the key set.", issuerLabel),
		transition: m.read(groupKeys, "key_transition_timestamp_seconds",
			"`current`: when the key that signs began to. `next`: when the next one will; absent if that is not planned.",
			issuerLabel, of("key", "current", "next")),
		due: m.read(groupKeys, "rotation_due_timestamp_seconds",
			"When another key must sign by the configured period. Absent if the period is 0.", issuerLabel),
		nextPublished: m.read(groupKeys, "rotation_next_published_timestamp_seconds",
			"When the key that signs next joined the key set. Absent while none is planned.", issuerLabel),
		postponed: m.read(groupKeys, "rotation_postponed",
			"1 while the key that signs next waits for longer than its lead, because a replica does not serve it yet, else 0.", issuerLabel),
		failing: m.read(groupKeys, "rotation_failing",
			"1 if what was due in the key schedule could not be done the last time, else 0. It is tried again; the log says why.", issuerLabel),
		confirmed: m.read(groupKeys, "document_confirmed_timestamp_seconds",
			"When the store last confirmed that this replica's key schedule is the newest. Absent before it first did.", issuerLabel),
		staleness: m.read(groupKeys, "document_staleness_bound_seconds",
			"How long after that this replica signs on, and is ready.", issuerLabel),
		consistent: m.read(groupKeys, "jwks_consistent",
			"1 if the key set that this replica serves, byte for byte, holds the keys that the schedule says, and the one that it signs "+
				"with, else 0. Absent while it serves none.", issuerLabel),

		custodyUp:     m.read(groupCustody, "custody_up", "1 if custody answers, else 0."),
		custodySealed: m.read(groupCustody, "custody_sealed", "1 if Vault's last answer was that it is sealed, else 0. Absent with local custody."),
		custodyQueued: m.read(groupCustody, "custody_queued", "Signatures that wait for their turn at Vault. Absent with local custody."),
		tokenExpiry: m.read(groupCustody, "custody_token_expiry_timestamp_seconds",
			"When the login to Vault ends unless it is renewed. Absent with local custody, before a login, and for a token without an end."),
		tokenLease: m.read(groupCustody, "custody_token_lease_seconds",
			"How long the login to Vault is good for from its start, or from when it is renewed. Absent as the former."),
		behind: m.read(groupCustody, "audit_head_behind",
			"1 while custody may lack the head of the audit log after the newest act, else 0: a loss of the store now could hide that act. "+
				"Absent with local custody and an embedded store."),

		storeUp: m.read(groupStore, "store_up", "1 if the store answers, else 0."),
		enrolmentClosed: m.read(groupStore, "enrolment_closed",
			"1 while every issuer's enrolment is closed because the store was lost or went back, else 0."),

		ready: m.read(groupReplica, "ready", "1 if this replica is ready, else 0."),
		unready: m.read(groupReplica, "unready", "1 for each part that keeps this replica from being ready, else 0.",
			of("part", unreadyParts...)),
		offset: m.read(groupReplica, "clock_offset_seconds", "How far this replica's clock is ahead of the store's, as far as that is certain; negative: behind."),
		certificate: m.read(groupReplica, "listener_certificate_expiry_timestamp_seconds",
			"When the certificate that a listener with TLS serves ends.", of("face", "public", "grpc", "admin", "ops")),
	}
}

func (g gauges) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		g.ready, g.unready, g.certificate, g.offset, g.permit, g.epoch, g.lacking, g.entries, g.revision, g.published, g.transition, g.due,
		g.nextPublished, g.postponed, g.failing, g.confirmed, g.staleness, g.consistent, g.custodyUp, g.custodySealed, g.custodyQueued,
		g.tokenExpiry, g.tokenLease, g.behind, g.storeUp, g.enrolmentClosed,
	}
}

// collector reads the gauges.
type collector struct{ s *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.s.metrics.gauges.all() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	g := c.s.metrics.gauges
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.replica(g, gauge)
	c.parts(g, gauge)
	for _, is := range c.s.issuers {
		c.keys(is, g, gauge)
	}
}

// replica reads what is of this process and the switch.
func (c collector) replica(g gauges, gauge func(*prometheus.Desc, float64, ...string)) {
	missing := make(map[string]bool)
	for _, r := range c.s.missing() {
		missing[r.part] = true
	}
	gauge(g.ready, one(len(missing) == 0))
	for _, part := range unreadyParts {
		gauge(g.unready, one(missing[part]), part)
	}
	for _, f := range []*face{c.s.public, c.s.grpc, c.s.admin, c.s.ops} {
		if f.certificate != nil {
			gauge(g.certificate, unix(f.certificate.end()), f.name)
		}
	}
	permit := c.s.guard.Permit()
	remaining := 0.0
	if permit.Valid {
		remaining = max(0, (c.s.switchParams.Permit - permit.Age).Seconds())
	}
	gauge(g.permit, remaining)
	gauge(g.epoch, float64(permit.Epoch))
	gauge(g.lacking, one(permit.Lacking))
	gauge(g.offset, permit.Offset.Seconds())
	live := c.s.guard.Live()
	for _, kind := range []killswitch.Kind{killswitch.All, killswitch.Issuer, killswitch.Audience, killswitch.Subject, killswitch.Device, killswitch.Credential} {
		gauge(g.entries, float64(live[kind]), string(kind))
	}
}

// parts reads custody and the store.
func (c collector) parts(g gauges, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(g.custodyUp, one(c.s.custodyHealth.down() == nil))
	if c.s.watched() {
		gauge(g.behind, one(c.s.heads.behind.Load()))
	}
	if v, ok := c.s.state.keyring.(*vault.Keyring); ok {
		gauge(g.custodySealed, one(v.Sealed()))
		gauge(g.custodyQueued, float64(v.Queued()))
		if at := v.TokenExpires(); !at.IsZero() {
			gauge(g.tokenExpiry, unix(at))
			gauge(g.tokenLease, v.TokenLease().Seconds())
		}
	}
	gauge(g.storeUp, one(c.s.storeHealth.down() == nil))
	gauge(g.enrolmentClosed, one(c.s.keeper.enrolmentClosed()))
}

// keys reads an issuer's key schedule.
func (c collector) keys(is issuer, g gauges, gauge func(*prometheus.Desc, float64, ...string)) {
	now, schedule := c.s.now(), is.keys.Schedule()
	gauge(g.revision, float64(is.keys.Revision()), is.url)
	gauge(g.published, float64(len(schedule.Published(now))), is.url)
	if current, ok := schedule.Signing(now); ok {
		gauge(g.transition, unix(current.SignAt), is.url, "current")
		if next, planned := schedule.RetireAt(current.KID); planned {
			gauge(g.transition, unix(next), is.url, "next")
		}
	}
	if at, ok := schedule.DueAt(is.params, now); ok {
		gauge(g.due, unix(at), is.url)
	}
	if next, ok := schedule.Next(now); ok {
		gauge(g.nextPublished, unix(next.PublishedAt()), is.url)
	}
	gauge(g.postponed, one(schedule.Postponed(is.params, now)), is.url)
	gauge(g.failing, one(is.keys.Failing()), is.url)
	if at, ok := is.keys.Confirmed(); ok {
		gauge(g.confirmed, unix(at), is.url)
	}
	gauge(g.staleness, is.params.Staleness.Seconds(), is.url)
	if right, served := c.s.keySetRight(context.Background(), is); served {
		gauge(g.consistent, one(right), is.url)
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// unix is a time as Prometheus counts it.
func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
