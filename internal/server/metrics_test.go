package server

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/test/servers"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/metrics.md")

const (
	metricsPage  = "../../docs/metrics.md"
	metricsBegin = "<!-- metrics: go test ./internal/server -run TestMetricsPage -update -->\n"
	metricsEnd   = "<!-- end of metrics -->\n"
)

// The page's tables are what is registered.
func TestMetricsPage(t *testing.T) {
	content, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(content), metricsBegin)
	told, after, ok2 := strings.Cut(rest, metricsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", metricsPage, metricsBegin, metricsEnd)
	}
	tables := catalogTables(newMetrics("test").catalog)
	for _, example := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(content, -1) {
		file := filepath.Join(t.TempDir(), "signer.yaml")
		if err := os.WriteFile(file, example[1], 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := config.Load(config.Source{File: file}); err != nil || !c.Tracing.Enabled() {
			t.Errorf("%v\n%s", err, example[1])
		}
	}
	if told == tables {
		return
	}
	if !*update {
		t.Fatal("docs/metrics.md is out of date: go test ./internal/server -run TestMetricsPage -update")
	}
	if err := os.WriteFile(metricsPage, []byte(before+metricsBegin+tables+metricsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// catalogTables has a table for each group, with a row for each metric.
func catalogTables(catalog []described) string {
	var b strings.Builder
	group := ""
	for _, d := range slices.SortedStableFunc(slices.Values(catalog), func(a, b described) int { return cmp.Compare(a.group, b.group) }) {
		if d.group != group {
			group = d.group
			fmt.Fprintf(&b, "\n### %s\n\n| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n", group)
		}
		var labels []string
		for _, l := range d.labels {
			var values []string
			for _, v := range l.values {
				values = append(values, "`"+v+"`")
			}
			if l.told != "" {
				values = append(values, l.told)
			}
			labels = append(labels, fmt.Sprintf("`%s` (%s)", l.name, strings.Join(values, ", ")))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.name, d.kind, strings.Join(labels, ", "), d.help)
	}
	return b.String() + "\n"
}

// scraped are the series of a scrape: by name, and then by their labels' values in the
// order of the catalog.
type scraped map[string]map[string]*dto.Metric

// scrape reads /metrics, and demands of each metric of ours that it is in the catalog,
// with these labels and no value that is not told there.
func (s *Server) scrape(t *testing.T) scraped {
	t.Helper()
	code, body := fetch(t, http.DefaultClient, s.Info().Ops+"/metrics")
	if code != 200 {
		t.Fatalf("/metrics: %d %s", code, body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	catalog := make(map[string]described)
	for _, d := range s.metrics.catalog {
		catalog[d.name] = d
	}
	out := make(scraped)
	for name, family := range families {
		if !strings.HasPrefix(name, "pact_") {
			continue
		}
		d, known := catalog[name]
		if kind := strings.ToLower(family.GetType().String()); !known || kind != d.kind || family.GetHelp() != d.help {
			t.Errorf("%s is a %s that the catalog does not have so", name, kind)
			continue
		}
		out[name] = make(map[string]*dto.Metric)
		for _, m := range family.Metric {
			have := make(map[string]string)
			for _, l := range m.Label {
				have[l.GetName()] = l.GetValue()
			}
			var values []string
			for _, l := range d.labels {
				v, there := have[l.name]
				if !there || l.told == "" && !slices.Contains(l.values, v) {
					t.Errorf("%s has %s=%q (%v), want one of %v", name, l.name, v, there, l.values)
				}
				values = append(values, v)
			}
			if len(have) != len(d.labels) {
				t.Errorf("%s has the labels %v", name, slices.Sorted(maps.Keys(have)))
			}
			out[name][strings.Join(values, " ")] = m
		}
	}
	return out
}

// value is that of a counter or gauge, or the count of a histogram; -1 if it is not
// there.
func (s scraped) value(name, labels string) float64 {
	m := s["pact_signer_"+name][labels]
	switch {
	case m == nil:
		return -1
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return float64(m.Histogram.GetSampleCount())
}

// A replica of a fleet tells all that the page lists, and what it tells is so.
func TestMetricsOfAFleet(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	v := servers.StartVault(t, servers.VaultOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	c.Listeners.GRPC.CertFile, c.Listeners.GRPC.KeyFile, _ = certificateFiles(t)
	c.Issuers[0].Limits.Caller = config.Limit{Rate: 0.001, Burst: 3}
	c.Development.TimeScale = 1 // who is held up for a second keeps its permit, and reports a kill within its bound
	admin := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)

	// All is there before anything was asked for, but for what is measured by events.
	first := s.scrape(t)
	events := map[string]bool{ // labelled by what happened, or there only then
		"admin_requests_total": true, "rotation_next_published_timestamp_seconds": true, "custody_token_expiry_timestamp_seconds": true,
		"custody_token_lease_seconds": true,
	}
	for _, d := range s.metrics.catalog {
		name := strings.TrimPrefix(d.name, "pact_signer_")
		if len(first[d.name]) == 0 && !events[name] && !strings.HasPrefix(name, "request_duration") {
			t.Errorf("%s is not there", d.name)
		}
	}
	issuer := fleetIssuer
	for name, want := range map[string]float64{
		"ready": 1, "custody_up": 1, "store_up": 1, "custody_sealed": 0, "custody_queued": 0, "sign_in_flight": 0, "epoch_regressions_total": 0,
		"replays_refused_total": 0, "enrolment_closed": 0, "clock_offset_seconds": 0,
	} {
		if got := first.value(name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]float64{
		"published_keys": 1, "rotation_postponed": 0, "rotation_failing": 0, "jwks_consistent": 1,
		"document_staleness_bound_seconds": 60,
	} {
		if got := first.value(name, issuer); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	now := float64(time.Now().Unix())
	if at := first.value("document_confirmed_timestamp_seconds", issuer); at < now-60 || at > now+1 {
		t.Errorf("the schedule was confirmed at %v, now is %v", at, now)
	}
	current := first.value("key_transition_timestamp_seconds", issuer+" current")
	if due, want := first.value("rotation_due_timestamp_seconds", issuer), current+(720*time.Hour).Seconds(); due < want-1 || due > want+1 {
		t.Errorf("another key is due at %v, want %v", due, want)
	}
	if end := first.value("listener_certificate_expiry_timestamp_seconds", "grpc"); end < now+3000 || end > now+3700 {
		t.Errorf("the certificate ends at %v", end)
	}

	credential := s.letIn(t, admin)
	for range 3 {
		s.signs(t, credential)
	}
	if code, _, _ := s.sign(t, credential); code != 429 {
		t.Fatalf("a fourth token: %d", code)
	}
	for _, match := range []string{"", "*"} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.Info().Public+"/.well-known/jwks.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = strings.TrimPrefix(fleetIssuer, "http://")
		req.Header.Set("If-None-Match", match)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	fetch(t, http.DefaultClient, s.Info().Public+"/.well-known/jwks.json") // under another host
	killed := s.mustOperate(t, admin, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "audience", "value": fleetAudience}, "reason": "test"})
	epoch := killed["entry"].(map[string]any)["epoch"].(string)
	wait, err := http.NewRequestWithContext(t.Context(), "GET", s.Info().Admin+"/v1/kill/"+epoch+":wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	wait.Header.Set("Authorization", "Bearer "+admin)
	resp, err := http.DefaultClient.Do(wait)
	if err != nil {
		t.Fatal(err)
	}
	waited, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(waited), `"effective":true`) {
		t.Fatalf("waited for %s, %v", waited, err)
	}
	s.mustOperate(t, admin, "POST", "/v1/keys:rotate", map[string]any{"reason": "test"})
	s.operate(t, "wrong", "GET", "/v1/fleet", nil)

	wanted := map[[2]string]float64{
		{"requests_total", "rest sign ok"}:                      3,
		{"requests_total", "rest sign rate_limited"}:            1,
		{"requests_total", "grpc sign unavailable"}:             0,
		{"request_duration_seconds", "rest sign"}:               4,
		{"tokens_issued_total", issuer + " credential"}:         3,
		{"tokens_issued_total", issuer + " device"}:             0,
		{"jwks_responses_total", "200"}:                         1,
		{"jwks_responses_total", "304"}:                         1,
		{"jwks_responses_total", "404"}:                         1,
		{"limits_hit_total", "caller"}:                          1,
		{"custody_sign_duration_seconds", ""}:                   3,
		{"custody_batch_size", ""}:                              3,
		{"custody_request_duration_seconds", "sign ok"}:         3,
		{"store_request_duration_seconds", "authorize ok"}:      3,
		{"store_request_duration_seconds", "authorize refused"}: 1,
		{"switch_entries", "audience"}:                          1,
		{"switch_entries", "all"}:                               0,
		{"barrier_duration_seconds", "confirmed"}:               1,
		{"barrier_duration_seconds", "bound"}:                   0,
		{"admin_requests_total", "Kill ok"}:                     1,
		{"admin_requests_total", "other refused"}:               1,
		{"published_keys", issuer}:                              2,
		{"jwks_consistent", issuer}:                             1,
		{"rotation_postponed", issuer}:                          0,
		{"sign_in_flight", ""}:                                  0,
	}
	var then scraped
	eventually(t, func() string { // a caller may have its answer before it is counted
		then = s.scrape(t)
		for of, want := range wanted {
			if got := then.value(of[0], of[1]); got != want {
				return fmt.Sprintf("%s{%s} is %v, want %v", of[0], of[1], got, want)
			}
		}
		return ""
	})
	next, published := then.value("key_transition_timestamp_seconds", issuer+" next"), then.value("rotation_next_published_timestamp_seconds", issuer)
	if published < now-1 || next-published != time.Hour.Seconds() {
		t.Errorf("the next key was published at %v and signs at %v", published, next)
	}
	if got := then.value("switch_epoch", ""); fmt.Sprint(got) != epoch {
		t.Errorf("epoch %v, want %s", got, epoch)
	}

	// The store comes back without the kill.
	redis.Do("DEL", "pact:{g}:kills")
	redis.Do("HSET", "pact:{g}:m", "change", "another")
	eventually(t, func() string {
		now := s.scrape(t)
		if now.value("epoch_regressions_total", "") != 1 || now.value("switch_entries", "audience") != 1 {
			return "the store has lost a kill, and the metrics do not say so"
		}
		return ""
	})

	v.Seal()
	eventually(t, func() string {
		now := s.scrape(t)
		if now.value("custody_sealed", "") != 1 || now.value("custody_up", "") != 0 || now.value("unready", "custody") != 1 || now.value("ready", "") != 0 {
			return "Vault is sealed, and the metrics do not say so"
		}
		return ""
	})
	redis.Stop()
	eventually(t, func() string {
		now := s.scrape(t)
		if now.value("store_up", "") != 0 || now.value("unready", "switch") != 1 || now.value("permit_remaining_seconds", "") != 0 {
			return "Redis is gone, and the metrics do not say so"
		}
		return ""
	})
}
