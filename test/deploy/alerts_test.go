package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/test/servers"
)

const (
	alertsFile    = chart + "/files/alerts.yaml"
	dashboardFile = chart + "/files/dashboard.json"
	runbooks      = "../../docs/runbooks"
	runbooksURL   = "https://github.com/pactsigner/pactsigner/blob/main/docs/runbooks"
)

// alertRule is a rule of alertsFile.
type alertRule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func readAlerts(t *testing.T) []alertRule {
	t.Helper()
	data, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var all []alertRule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("only %d rules were found", len(all))
	}
	return all
}

// promtool runs it, and returns what it said and whether it was content.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := servers.Find("promtool")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	return string(out), err
}

// Prometheus takes the rules, and they fire and keep silent as alerts_test.yaml says.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	if out, err := promtool(t, "check", "rules", "--lint=all", "--lint-fatal", alertsFile); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
	if out, err := promtool(t, "test", "rules", chart+"/files/alerts_test.yaml"); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// Every alert, in every severity, is made to fire by alerts_test.yaml.
func TestAlertsAreTried(t *testing.T) {
	tests, err := os.ReadFile(chart + "/files/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range readAlerts(t) {
		if want := fmt.Sprintf(`{labels: 'ALERTS{alertname="%s", alertstate="firing", severity="%s"`, a.Alert, a.Labels["severity"]); !strings.Contains(string(tests), want) {
			t.Errorf("no test expects %s to fire as %s: %s", a.Alert, a.Labels["severity"], want)
		}
	}
}

// Every alert says what a person needs: how bad it is, what it is about, of whom, and
// which runbook to open.
func TestAlertsTellWhatToDo(t *testing.T) {
	words := regexp.MustCompile(`[A-Z][a-z]*`)
	for _, a := range readAlerts(t) {
		name := a.Alert + " " + a.Labels["severity"]
		if !strings.HasPrefix(a.Alert, "PactSigner") {
			t.Errorf("%s: the name does not begin with PactSigner", name)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || len(a.Labels) != 1 {
			t.Errorf("%s: labels %v: want severity alone", name, a.Labels)
		}
		if a.Labels["severity"] == "critical" && a.For == "" && a.Alert != "PactSignerEpochRegression" {
			t.Errorf("%s: wakes somebody at the first sample", name)
		}
		for _, what := range []string{"summary", "description"} {
			if a.Annotations[what] == "" {
				t.Errorf("%s: no %s", name, what)
			}
		}
		if !strings.Contains(a.Annotations["summary"]+a.Annotations["description"], "{{ $labels.") && !strings.Contains(a.Annotations["summary"], "{{ or $labels.") {
			t.Errorf("%s: does not say of which deployment, replica or issuer", name)
		}
		page := strings.ToLower(strings.Join(words.FindAllString(a.Alert, -1), "-")) + ".md"
		if got, want := a.Annotations["runbook_url"], runbooksURL+"/"+page; got != want {
			t.Errorf("%s: runbook_url is %s, want %s", name, got, want)
		}
		if _, err := os.Stat(filepath.Join(runbooks, page)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// metric is what docs/metrics.md, or a running program, says of a metric.
type metric struct {
	kind   string
	labels map[string][]string // and their fixed values; nil: any
}

// documented reads the tables of docs/metrics.md, which a test of the server holds to
// its registry.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(pact_[a-z_]+)` \\| (counter|gauge|histogram) \\| (.*?) \\| ")
	label := regexp.MustCompile("`([a-z_]+)`(?: \\(([^)]*)\\))?")
	quoted := regexp.MustCompile("`([^`]+)`")
	all := map[string]metric{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		labels := map[string][]string{}
		for _, l := range label.FindAllStringSubmatch(m[3], -1) {
			labels[l[1]] = nil
			for _, v := range quoted.FindAllStringSubmatch(l[2], -1) {
				labels[l[1]] = append(labels[l[1]], v[1])
			}
		}
		all[m[1]] = metric{m[2], labels}
	}
	if len(all) < 30 {
		t.Fatalf("docs/metrics.md: only %d metrics were found", len(all))
	}
	return all
}

// used is one use of a metric in an expression.
type used struct {
	metric   string
	matchers map[string]string // label and what it must be, alternatives by |
}

var (
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\b\s*(?:\(([^)]*)\))?`)
	brackets  = regexp.MustCompile(`\[[^\]]*\]`)
	offset    = regexp.MustCompile(`\boffset\s+\S+`)
	selector  = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:\{[^}]*\}|\()?`)
	matcher   = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	operators = []string{"and", "or", "unless", "bool", "inf"}
)

// uses finds the metrics in an expression, and the labels that it groups and joins by.
func uses(expr string) (metrics []used, labels []string) {
	expr = offset.ReplaceAllString(brackets.ReplaceAllString(expr, ""), "")
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, s := range selector.FindAllString(grouping.ReplaceAllString(expr, " "), -1) {
		name, braces, _ := strings.Cut(s, "{")
		name = strings.TrimSpace(name)
		if strings.HasSuffix(name, "(") || slices.Contains(operators, name) {
			continue
		}
		u := used{metric: name, matchers: map[string]string{}}
		for _, m := range matcher.FindAllStringSubmatch(braces, -1) {
			u.matchers[m[1]] = m[3]
		}
		metrics = append(metrics, u)
	}
	return metrics, labels
}

// target are the labels that Prometheus gives each series of a scraped replica.
var target = []string{"namespace", "job", "instance", "pod"}

// checkExpression says what an expression asks for that there is not.
func checkExpression(known map[string]metric, expr string) (wrong []string) {
	found, groups := uses(expr)
	may := slices.Clone(target)
	for _, u := range found {
		name, labels := u.metric, slices.Clone(target)
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base, ok := strings.CutSuffix(name, suffix)
			if m, there := known[base]; ok && there && (m.kind == "histogram" || m.kind == "summary" && suffix != "_bucket") {
				name = base
				if suffix == "_bucket" {
					labels = append(labels, "le")
				}
			}
		}
		m, ok := known[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("there is no metric %s", u.metric))
			continue
		case name == u.metric && m.kind == "histogram":
			wrong = append(wrong, fmt.Sprintf("%s is a histogram: say _bucket, _sum or _count", u.metric))
		}
		labels = append(labels, slices.Collect(maps.Keys(m.labels))...)
		may = append(may, labels...)
		for label, want := range u.matchers {
			if !slices.Contains(labels, label) {
				wrong = append(wrong, fmt.Sprintf("%s has no label %s", u.metric, label))
			}
			for value := range strings.SplitSeq(want, "|") {
				if fixed := m.labels[label]; fixed != nil && !strings.HasPrefix(value, "$") && !slices.Contains(fixed, value) {
					wrong = append(wrong, fmt.Sprintf("%s: %s is never %q, only %s", u.metric, label, value, strings.Join(fixed, ", ")))
				}
			}
		}
	}
	for _, g := range groups {
		if !slices.Contains(may, g) {
			wrong = append(wrong, fmt.Sprintf("grouped by %s, which none of its metrics has", g))
		}
	}
	if len(found) == 0 {
		wrong = append(wrong, "no metric")
	}
	return wrong
}

// Every metric that an alert or the dashboard asks for exists, with these labels and
// values: the signer's by their page, all others by what a signer and a probe serve.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	known, served := documented(t), served(t)
	checkProbeMetrics(t, known, served)
	for name, m := range served {
		if _, ok := known[name]; !ok && !strings.HasPrefix(name, "pact_") {
			known[name] = m
		}
	}
	known["up"] = metric{kind: "gauge"}
	known["ALERTS"] = metric{"gauge", map[string][]string{"alertname": nil, "alertstate": {"firing", "pending"}, "severity": nil, "issuer": nil}}

	for _, a := range readAlerts(t) {
		for _, w := range checkExpression(known, a.Expr) {
			t.Errorf("%s: %s", a.Alert, w)
		}
	}
	for title, expressions := range readDashboard(t).expressions() {
		for _, e := range expressions {
			for _, w := range checkExpression(known, e) {
				t.Errorf("dashboard: %s: %s", title, w)
			}
		}
	}
	// Every metric of the signer can be seen somewhere.
	shown := strings.Builder{}
	for _, expressions := range readDashboard(t).expressions() {
		shown.WriteString(strings.Join(expressions, " "))
	}
	for name := range known {
		if strings.HasPrefix(name, "pact_signer_") && !strings.Contains(shown.String(), name) {
			t.Errorf("dashboard: no panel shows %s", name)
		}
	}
}

// What is wrong with an expression is found.
func TestExpressionsAreChecked(t *testing.T) {
	known := map[string]metric{
		"a_total":   {"counter", map[string][]string{"method": {"sign", "status"}, "issuer": nil}},
		"b_seconds": {"histogram", map[string][]string{}},
	}
	for expr, want := range map[string]string{
		`sum by (issuer) (rate(a_total{method="sign", issuer=~"$issuer"}[5m])) > 0.1 and on (job) b_seconds_count offset 5m`: "",
		`histogram_quantile(0.99, sum by (le) (rate(b_seconds_bucket[$__rate_interval])))`:                                   "",
		`a_totals > 0`:                       "there is no metric a_totals",
		`a_total{face="rest"}`:               "a_total has no label face",
		`a_total{method=~"sign|enrol"}`:      `a_total: method is never "enrol", only sign, status`,
		`sum by (face) (a_total)`:            "grouped by face, which none of its metrics has",
		`rate(b_seconds[5m])`:                "b_seconds is a histogram: say _bucket, _sum or _count",
		`a_total_count`:                      "there is no metric a_total_count",
		`sum by (le) (b_seconds_sum)`:        "grouped by le, which none of its metrics has",
		`a_total unless on (pod) z_metric`:   "there is no metric z_metric",
		`max_over_time((max(z_max))[6h:5m])`: "there is no metric z_max",
		`time() > 5`:                         "no metric",
	} {
		if got := strings.Join(checkExpression(known, expr), "; "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// dashboard is a Grafana dashboard, as far as it is looked at here.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Panels        []struct {
		ID                       int
		Type, Title, Description string
		Datasource               struct{ UID string }
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr, RefID string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Annotations struct{ List []struct{ Name, Expr string } }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expressions are those of the panels, by title, of the variables and the annotations.
func (d dashboard) expressions() map[string][]string {
	all := map[string][]string{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all[p.Title] = append(all[p.Title], q.Expr)
		}
	}
	ask := regexp.MustCompile(`^label_values\((.*), [a-z_]+\)$`)
	for _, v := range d.Templating.List {
		if m := ask.FindStringSubmatch(v.Definition); m != nil {
			all["$"+v.Name] = append(all["$"+v.Name], m[1])
		}
	}
	for _, a := range d.Annotations.List {
		if a.Expr != "" {
			all[a.Name] = append(all[a.Name], a.Expr)
		}
	}
	return all
}

// The dashboard is one that Grafana shows: panels of its own types, on a grid without
// gaps or overlaps, every query on the chosen source and in Prometheus' grammar.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.SchemaVersion < 41 || d.UID == "" {
		t.Errorf("schemaVersion %d, uid %q", d.SchemaVersion, d.UID)
	}
	var variables, rows []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "namespace", "job", "issuer"}; !slices.Equal(variables, want) {
		t.Errorf("variables are %v, want %v", variables, want)
	}
	ids, titles := map[int]bool{}, map[string]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			t.Errorf("%s: id %d or title is there twice, or none", p.Title, p.ID)
		}
		ids[p.ID], titles[p.Title] = true, true
		if !slices.Contains([]string{"row", "stat", "timeseries", "state-timeline", "table"}, p.Type) {
			t.Errorf("%s: %s is no panel of Grafana's", p.Title, p.Type)
		}
		g := p.GridPos
		if g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%s: %+v is not on the grid", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s: data source %q, %d queries", p.Title, p.Datasource.UID, len(p.Targets))
		}
	}
	if want := []string{"Overview", "Requests", "Keys and rotation", "Kill switch", "Custody", "Store", "Limits", "Process"}; !slices.Equal(rows, want) {
		t.Errorf("rows are %v, want %v", rows, want)
	}

	rules := map[string]any{}
	var group []map[string]string
	for title, expressions := range d.expressions() {
		for _, e := range expressions {
			one := strings.Contains(e, `namespace=~"$namespace"`) && strings.Contains(e, `job=~"$job"`)
			if !one && !strings.HasPrefix(title, "$") && !strings.Contains(e, "pact_probe_") { // the probe is a job of its own
				t.Errorf("%s: %s mixes deployments", title, e)
			}
			e = strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h").Replace(e)
			group = append(group, map[string]string{"record": fmt.Sprintf("panel:%d", len(group)), "expr": e + " # " + title})
		}
	}
	rules["groups"] = []any{map[string]any{"name": "panels", "rules": group}}
	data, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := promtool(t, "check", "rules", "--lint=none", file); err != nil {
		t.Errorf("queries: %v\n%s", err, out)
	}
}
