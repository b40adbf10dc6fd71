package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/probe"
)

// What the page says of a probe's metrics is what a probe serves, both ways.
func checkProbeMetrics(t *testing.T, documented, served map[string]metric) {
	t.Helper()
	for name := range maps.Keys(documented) {
		if _, ok := served[name]; !ok && strings.HasPrefix(name, "pact_probe_") {
			t.Errorf("docs/metrics.md: no probe serves %s", name)
		}
	}
	for name, have := range served {
		if !strings.HasPrefix(name, "pact_probe_") {
			continue
		}
		told, ok := documented[name]
		labels, served := slices.Sorted(maps.Keys(told.labels)), slices.Sorted(maps.Keys(have.labels))
		if !ok || told.kind != have.kind || !slices.Equal(labels, served) {
			t.Errorf("docs/metrics.md: %s is a %s by %v, but served is a %s by %v", name, told.kind, labels, have.kind, served)
		}
	}
}

// The runbook explains each check of a probe, and no other.
func TestRunbookHasTheChecks(t *testing.T) {
	_, table, _ := strings.Cut(pages(t)["pact-signer-probe-failing.md"], "| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for row := range strings.Lines(table) {
		for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			named = append(named, m[1])
		}
	}
	checks := probe.Checks()
	slices.Sort(named)
	slices.Sort(checks)
	if !slices.Equal(named, checks) {
		t.Errorf("the runbook explains %v\na probe makes       %v", named, checks)
	}
}

// The page names each check of a probe, and no other.
func TestMetricsPageHasTheChecks(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "## Metrics of a probe")
	_, text, _ = strings.Cut(text, "checks are ")
	text, _, _ = strings.Cut(text, ".")
	var named []string
	for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(text, -1) {
		named = append(named, m[1])
	}
	if !slices.Equal(named, probe.Checks()) {
		t.Errorf("docs/metrics.md names %v\na probe makes    %v", named, probe.Checks())
	}
}

// unitsOf are the units in which a panel may show a query.
func unitsOf(expr string) []string {
	metrics, _ := uses(expr)
	name, last := metrics[0].metric, metrics[len(metrics)-1].metric
	switch {
	case strings.HasSuffix(expr, "* 1000"):
		return []string{"dateTimeAsIso", "dateTimeFromNow"}
	case strings.Contains(expr, ") / ") && (name == last || strings.HasSuffix(name, "_seconds") && strings.HasSuffix(last, "_seconds")):
		return []string{"percentunit"}
	case strings.Contains(expr, ") / "), strings.HasSuffix(name, "_seconds_total"): // of other counters; seconds per second
		return []string{"short"}
	case strings.HasSuffix(name, "_seconds"), strings.HasSuffix(name, "_seconds_bucket"):
		return []string{"s"}
	case strings.HasSuffix(name, "_bytes"):
		return []string{"bytes"}
	case strings.Contains(expr, "rate("):
		return []string{"reqps", "cps"}
	}
	return []string{"short", ""}
}

// Each panel shows its numbers in the unit that they have.
func TestDashboardUnits(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title       string
			Targets     []struct{ Expr string }
			FieldConfig struct {
				Defaults  struct{ Unit string }
				Overrides []struct {
					Properties []struct {
						ID    string
						Value any
					}
				}
			}
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		var units []string // of columns that have their own
		for _, o := range p.FieldConfig.Overrides {
			for _, x := range o.Properties {
				if x.ID == "unit" {
					units = append(units, fmt.Sprint(x.Value))
				}
			}
		}
		for _, q := range p.Targets {
			may := unitsOf(q.Expr)
			if slices.Contains(may, p.FieldConfig.Defaults.Unit) {
				continue
			}
			if i := slices.IndexFunc(units, func(u string) bool { return slices.Contains(may, u) }); i >= 0 {
				units = slices.Delete(units, i, i+1)
				continue
			}
			t.Errorf("%s shows %s as %q, want %q", p.Title, q.Expr, p.FieldConfig.Defaults.Unit, may)
		}
		if len(units) > 0 {
			t.Errorf("%s: nothing is in %v", p.Title, units)
		}
	}
}

// A signer that speaks TLS to Prometheus is asked so, under a name of the Service and
// by the authority that its certificate comes with; one that does not is asked plainly.
func TestScrapedAsServed(t *testing.T) {
	each(t, func(t *testing.T, _ variant, all objects) {
		for _, m := range all.of("ServiceMonitor") {
			tls := at(m, "metadata", "labels", "app.kubernetes.io/component") == "signer" && at(configOf(t, all), "listeners", "ops", "certFile") != nil
			for _, e := range list(m, "spec", "endpoints") {
				if (at(e, "scheme") == "https") != tls || (at(e, "tlsConfig") != nil) != tls {
					t.Errorf("%s: scheme %v, tlsConfig %v, and TLS is %t", m.kindName(), at(e, "scheme"), at(e, "tlsConfig"), tls)
				}
				if !tls {
					continue
				}
				server, _ := at(e, "tlsConfig", "serverName").(string)
				service, _, _ := strings.Cut(server, ".")
				if s := all.get("Service", service); s == nil || !selects(at(m, "spec", "selector"), at(s, "metadata", "labels").(map[string]any)) {
					t.Errorf("%s asks for a certificate of %q", m.kindName(), server)
				}
			}
		}
	})
	if fmt.Sprint(at(render(t, production.with("ops TLS", "listeners.ops.tls.secretName=ops-tls")).of("ServiceMonitor")[0], "spec", "endpoints", 0, "scheme")) != "https" {
		t.Error("with TLS on the ops listener it is asked plainly")
	}
}

// An issuer on loopback is published nowhere.
func TestLoopbackIsNotPublished(t *testing.T) {
	all := render(t, bare.with("beside one on loopback", "ingress.enabled=true", "gateway.enabled=true", "gateway.parentRefs[0].name=public",
		"networkPolicy.ingress.public[0].ipBlock.cidr=10.0.0.0/8", "config.issuers[0].url=http://trial.localhost:8787", "config.issuers[1].url=https://pa.example.com"))
	hosts := map[string]bool{}
	for _, i := range all.of("Ingress") {
		for _, r := range list(i, "spec", "rules") {
			hosts[fmt.Sprint(at(r, "host"))] = true
		}
	}
	for _, r := range all.of("HTTPRoute") {
		for _, h := range list(r, "spec", "hostnames") {
			hosts[fmt.Sprint(h)] = true
		}
	}
	if !maps.Equal(hosts, map[string]bool{"pa.example.com": true}) {
		t.Errorf("published are %v", hosts)
	}
}
