package probe_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/probe"
)

// scrape reads metrics as Prometheus does: name, then check or result, to value.
func scrape(t *testing.T, h http.Handler) map[string]map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]float64{}
	for name, f := range families {
		all[name] = map[string]float64{}
		for _, m := range f.Metric {
			key := ""
			for _, l := range m.Label {
				switch l.GetName() {
				case "check", "result":
					key = l.GetValue()
				case "issuer":
					if l.GetValue() != "https://pa.example.com" {
						t.Errorf("%s: issuer %s", name, l.GetValue())
					}
				default:
					t.Errorf("%s has the label %s", name, l.GetName())
				}
			}
			all[name][key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	m := probe.NewMetrics("https://pa.example.com", time.Hour)
	at := time.Unix(1_800_000_000, 0)
	m.Observe(probe.Report{At: at, Checks: []probe.Result{
		{Check: probe.CheckSign, Outcome: probe.Passed, At: at, Took: 250 * time.Millisecond},
		{Check: probe.CheckVerify, Outcome: probe.Passed, At: at},
		{Check: probe.CheckKilled, Outcome: probe.Passed, At: at},
	}})
	m.Observe(probe.Report{At: at.Add(time.Minute), Checks: []probe.Result{
		{Check: probe.CheckSign, Outcome: probe.Failed, At: at.Add(time.Minute), Took: time.Second},
		{Check: probe.CheckVerify, Outcome: probe.LeftOut, At: at.Add(time.Minute)},
		{Check: probe.CheckKilled, Outcome: probe.Passed, At: at}, // stands
	}})
	got := scrape(t, m.Handler())
	for name, want := range map[string]map[string]float64{
		"pact_probe_success":                        {"sign": 0, "killed_audience": 1},
		"pact_probe_duration_seconds":               {"sign": 1, "killed_audience": 0},
		"pact_probe_last_success_timestamp_seconds": {"sign": 1_800_000_000, "verify": 1_800_000_000, "killed_audience": 1_800_000_060},
		"pact_probe_runs_total":                     {"passed": 1, "failed": 1},
	} {
		if len(got[name]) != len(want) {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
		for check, v := range want {
			if g, ok := got[name][check]; !ok || g != v {
				t.Errorf("%s{%s}: %v", name, check, g)
			}
		}
	}
	if len(got) != 4 {
		t.Errorf("%d metrics", len(got))
	}
}

// docs/metrics.md has exactly these metrics, with their kinds and labels, and names the
// checks.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Metrics of a probe\n")
	section, _, _ = strings.Cut(section, "\n## ")
	m := probe.NewMetrics("https://pa.example.com", time.Hour)
	m.Observe(probe.Report{Checks: []probe.Result{{Check: probe.CheckSign, Outcome: probe.Passed}}})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]string{} // kind and labels
	for name, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		served[name] = fmt.Sprint(strings.ToLower(f.GetType().String()), labels)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| (.*?)(?: \\(.*?\\))? \\| ").FindAllStringSubmatch(section, -1) {
		labels := strings.Split(strings.ReplaceAll(row[3], "`", ""), ", ")
		slices.Sort(labels)
		documented[row[1]] = fmt.Sprint(row[2], labels)
	}
	if !maps.Equal(documented, served) {
		t.Errorf("documented: %v\nserved: %v", documented, served)
	}
	_, list, _ := strings.Cut(section, "checks are ")
	list, _, _ = strings.Cut(list, ".\n")
	var checks []string
	for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(list, -1) {
		checks = append(checks, name[1])
	}
	if !slices.Equal(checks, probe.Checks()) {
		t.Errorf("documented: %q", checks)
	}
}

// The process is live as long as rounds end.
func TestLivez(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := probe.NewMetrics("https://pa.example.com", time.Minute)
		live := func() int {
			w := httptest.NewRecorder()
			m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
			return w.Code
		}
		if code := live(); code != 200 {
			t.Errorf("at first %d", code)
		}
		time.Sleep(61 * time.Second)
		if code := live(); code != 503 {
			t.Errorf("without a round %d", code)
		}
		m.Observe(probe.Report{})
		if code := live(); code != 200 {
			t.Errorf("after a round %d", code)
		}
	})
}

// Rounds come at the interval, a tenth more or less, whether the signer answers or not.
func TestLoop(t *testing.T) {
	w := newWorld(t)
	var rounds atomic.Int32
	c := w.config()
	c.ConnectTo = w.proxy(t, func(out http.ResponseWriter, x *exchange) bool {
		if rounds.Load() > 0 { // rounds do not overlap
			panic(http.ErrAbortHandler)
		}
		return false
	})
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ok []bool
	p.Loop(ctx, time.Millisecond, func(r probe.Report) {
		ok = append(ok, r.OK())
		if rounds.Add(1) == 3 {
			cancel()
		}
	})
	if len(ok) != 3 || !ok[0] || ok[1] || ok[2] {
		t.Errorf("rounds: %v", ok)
	}
}

// Rounds leave no connection and nothing that runs.
func TestNothingStays(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.Replicas, c.GRPC = []string{w.public()}, w.server.Info().GRPC
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for range 5 {
		wants(t, p.Round(t.Context()))
	}
	// The signer's own, which it ends when it likes.
	signers := []goleak.Option{
		before, goleak.IgnoreAnyFunction("net/http.(*conn).serve"), goleak.IgnoreAnyFunction("google.golang.org/grpc/internal/transport.NewServerTransport"),
		goleak.IgnoreAnyFunction("google.golang.org/grpc.(*Server).handleRawConn.func1"),
	}
	err = goleak.Find(signers...)
	for until := time.Now().Add(time.Minute); err != nil && time.Now().Before(until); { // it waits, but not for long
		err = goleak.Find(signers...)
	}
	if err != nil {
		t.Error(err)
	}
}

// The wait between rounds, on a clock that jumps: from nine to eleven tenths, and of a
// minute if they fail.
func TestJitter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, err := probe.New(probe.Config{Issuer: "http://127.0.0.1:1", Credential: probe.NewCredential("x"), ConnectTo: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var at []time.Time
		p.Loop(ctx, time.Hour, func(probe.Report) {
			if at = append(at, time.Now()); len(at) == 20 {
				cancel()
			}
		})
		different := map[time.Duration]bool{}
		for i := range at[1:] {
			d := at[i+1].Sub(at[i])
			different[d] = true
			if d < 54*time.Second || d > 66*time.Second {
				t.Errorf("%v from round to round", d)
			}
		}
		if len(different) < 5 {
			t.Errorf("rounds keep step: %v", different)
		}
	})
}
