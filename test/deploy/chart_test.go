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
	"time"

	"go.yaml.in/yaml/v3"
)

func TestLint(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			if out, err := helm(t, append([]string{"lint", "--strict", chart, "--kube-version", kubeVersion}, v.args()...)...); err != nil {
				t.Errorf("%v%s", err, out)
			}
		})
	}
}

// A helm that knows no cluster renders the same: nothing depends on what it believes
// of one.
func TestRendersAnywhere(t *testing.T) {
	t.Parallel()
	for _, v := range named {
		want, err := template(t, v.args()...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := helm(t, append([]string{"template", "pact-signer", chart, "--namespace", "pact"}, v.args()...)...)
		if err != nil || got != want {
			t.Errorf("%s: %v\n%s", v.name, err, firstDifference(want, got))
		}
	}
	if out, err := helm(t, "lint", "--strict", chart); err != nil {
		t.Errorf("lint without values: %v%s", err, out)
	}
}

// What the values files render to, for a reader to see what a change does. The
// dashboard and the alerts are files of their own.
func TestGolden(t *testing.T) {
	for _, v := range named {
		out, err := template(t, append(v.args(), "--set", "dashboard.enabled=false", "--set", "prometheusRule.enabled=false")...)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, v.name+".golden.yaml", out)
	}
}

// Kubernetes knows every field, and the operator of Prometheus and the Gateway API do.
func TestValid(t *testing.T) {
	t.Parallel()
	crds := []string{filepath.Join("testdata", "crds"), gatewayCRDs(t)}
	dir := t.TempDir()
	for _, v := range variants {
		out, err := template(t, v.args()...)
		if err != nil {
			t.Fatal(v.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(v.name, " ", "-")+".yaml"), []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(program(t, "kubectl-validate"), dir, "--version", "1.30", "--local-crds", strings.Join(crds, ",")).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if got := strings.Count(string(out), "OK"); got < len(variants) {
		t.Errorf("%d of %d are fine:\n%s", got, len(variants), out)
	}
}

// gatewayCRDs are the definitions that the Gateway API's module brings.
func gatewayCRDs(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api")
	cmd.Dir, cmd.Env = filepath.Join("..", "..", "tools", "crds"), append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	module := strings.TrimSpace(string(out))
	if err != nil || module == "" {
		t.Fatalf("the Gateway API's module is not there, run `go run ./test/servers/get`: %v\n%s", err, out)
	}
	from := filepath.Join(module, "config", "crd", "standard")
	to := t.TempDir()
	for _, kind := range []string{"httproutes", "grpcroutes", "backendtlspolicies"} {
		name := "gateway.networking.k8s.io_" + kind + ".yaml"
		crd, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), crd, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// each runs a test on what every variant renders to.
func each(t *testing.T, test func(t *testing.T, v variant, all objects)) {
	t.Helper()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			all := render(t, v)
			if len(all) == 0 || len(all.pods()) == 0 {
				t.Fatal("nothing was rendered")
			}
			test(t, v, all)
		})
	}
}

// Every pod is what the profile restricted of Kubernetes' pod security standards asks
// for, and somewhat more.
func TestRestricted(t *testing.T) {
	each(t, func(t *testing.T, _ variant, all objects) {
		for _, p := range all.pods() {
			name := p.of.kindName()
			want := func(v, want any, path ...any) {
				t.Helper()
				if got := at(v, path...); got != want {
					t.Errorf("%s: %v is %v, want %v", name, path, got, want)
				}
			}
			want(p.spec, true, "securityContext", "runAsNonRoot")
			want(p.spec, "RuntimeDefault", "securityContext", "seccompProfile", "type")
			want(p.spec, "OnRootMismatch", "securityContext", "fsGroupChangePolicy")
			want(p.spec, false, "automountServiceAccountToken")
			want(p.spec, false, "enableServiceLinks")
			for _, key := range []string{"runAsUser", "runAsGroup", "fsGroup"} {
				if id, _ := at(p.spec, "securityContext", key).(int); id < 1 {
					t.Errorf("%s: %s is %v", name, key, id)
				}
			}
			for _, key := range []string{"hostNetwork", "hostPID", "hostIPC", "hostUsers"} {
				want(p.spec, nil, key)
			}
			containers := append(list(p.spec, "containers"), list(p.spec, "initContainers")...)
			for _, c := range containers {
				want(c, false, "securityContext", "allowPrivilegeEscalation")
				want(c, true, "securityContext", "readOnlyRootFilesystem")
				want(c, false, "securityContext", "privileged")
				want(c, nil, "securityContext", "runAsUser")
				if got := fmt.Sprint(list(c, "securityContext", "capabilities", "drop"), at(c, "securityContext", "capabilities", "add")); got != "[ALL] <nil>" {
					t.Errorf("%s: capabilities %s", name, got)
				}
				if at(c, "resources", "requests", "memory") == nil || at(c, "resources", "limits", "memory") == nil || at(c, "resources", "requests", "cpu") == nil {
					t.Errorf("%s: resources %v", name, at(c, "resources"))
				}
				want(c, nil, "lifecycle", "preStop", "exec") // there is no shell
			}
			if len(containers) != 1 {
				t.Errorf("%s has %d containers", name, len(containers))
			}
			for _, v := range list(p.spec, "volumes") {
				kinds := slices.Collect(maps.Keys(v.(map[string]any)))
				for _, kind := range kinds {
					if !slices.Contains([]string{"name", "configMap", "projected", "emptyDir"}, kind) {
						t.Errorf("%s: volume of kind %s", name, kind)
					}
				}
			}
		}
	})
}

// secretWords are in the names of what must not stand in a manifest.
var secretWords = regexp.MustCompile(`(?i)password|passphrase|secret|token|credential|private`)

// No secret stands in a manifest: all are files, from Secrets that exist.
func TestNoSecretInline(t *testing.T) {
	each(t, func(t *testing.T, v variant, all objects) {
		for _, o := range all {
			if o["kind"] == "Secret" {
				t.Errorf("%s is made", o.kindName())
			}
			if o["kind"] == "ConfigMap" {
				text := fmt.Sprint(o["data"])
				if strings.Contains(text, "pact_admin_") || strings.Contains(text, "PRIVATE KEY") {
					t.Errorf("%s holds a secret", o.kindName())
				}
			}
		}
		for _, p := range all.pods() {
			for _, c := range list(p.spec, "containers") {
				for _, e := range list(c, "env") {
					name, value := at(e, "name").(string), fmt.Sprint(at(e, "value"))
					if secretWords.MatchString(name) && !strings.HasPrefix(value, "/") {
						t.Errorf("%s: variable %s holds a value", p.of.kindName(), name)
					}
				}
				for _, a := range list(c, "args") {
					flag, value, _ := strings.Cut(a.(string), "=")
					if secretWords.MatchString(flag) && value != "" && !strings.HasPrefix(value, "/") {
						t.Errorf("%s: argument %s holds a value", p.of.kindName(), flag)
					}
				}
			}
			for _, v := range list(p.spec, "volumes") {
				if sources := list(v, "projected", "sources"); sources != nil && at(v, "projected", "defaultMode") != 0o440 {
					t.Errorf("%s: secrets have mode %v", p.of.kindName(), at(v, "projected", "defaultMode"))
				}
			}
		}
		for key, value := range leaves("", configOf(t, all)) {
			last := key[strings.LastIndex(key, ".")+1:]
			if secretWords.MatchString(last) && last != "tokenTTL" && !strings.HasSuffix(last, "File") {
				t.Errorf("signer.yaml: %s: %v", key, value)
			}
			if strings.HasSuffix(last, "File") && !strings.HasPrefix(fmt.Sprint(value), "/run/secrets/pact-signer/") {
				t.Errorf("signer.yaml: %s: %v", key, value)
			}
		}
	})
}

// Services reach pods, at ports that their containers have; probes, monitors, routes
// and the rest name what is there.
func TestReferences(t *testing.T) {
	each(t, func(t *testing.T, v variant, all objects) {
		for _, s := range all.of("Service") {
			var hit []pod
			for _, p := range all.pods() {
				if selects(map[string]any{"matchLabels": at(s, "spec", "selector")}, p.labels) {
					hit = append(hit, p)
				}
			}
			if len(hit) != 1 {
				t.Errorf("%s selects %d kinds of pods", s.kindName(), len(hit))
				continue
			}
			// A kill and the metrics of what is wrong must get through; a caller and the
			// comparison of key sets want replicas that serve.
			face := at(s, "metadata", "labels", "pact-signer/face")
			if unready := at(s, "spec", "publishNotReadyAddresses") == true; unready != (face == "admin" || face == "ops") {
				t.Errorf("%s: leads to replicas that are not ready: %v", s.kindName(), unready)
			}
			for _, port := range list(s, "spec", "ports") {
				if number := hit[0].ports()[at(port, "targetPort")]; number == nil || number != at(port, "port") {
					t.Errorf("%s: port %v leads to %v", s.kindName(), at(port, "port"), number)
				}
			}
		}
		for _, p := range all.pods() {
			c := list(p.spec, "containers")[0]
			for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
				if port := at(c, probe, "httpGet", "port"); port != nil && p.ports()[port] == nil {
					t.Errorf("%s: %s asks port %v", p.of.kindName(), probe, port)
				}
			}
			mounted, volumes := map[any]bool{}, map[any]bool{}
			for _, v := range list(p.spec, "volumes") {
				volumes[at(v, "name")] = true
			}
			for _, v := range list(p.of, "spec", "volumeClaimTemplates") {
				volumes[at(v, "metadata", "name")] = true
			}
			for _, m := range list(c, "volumeMounts") {
				mounted[at(m, "name")] = true
			}
			if !maps.Equal(mounted, volumes) {
				t.Errorf("%s: mounts %v, volumes %v", p.of.kindName(), mounted, volumes)
			}
			if selector := at(p.of, "spec", "selector"); selector != nil && !selects(selector, p.labels) {
				t.Errorf("%s does not select its pods", p.of.kindName())
			}
			if name := at(p.spec, "serviceAccountName"); name != nil && name != "default" && all.get("ServiceAccount", name.(string)) == nil {
				t.Errorf("%s: service account %v is not there", p.of.kindName(), name)
			}
			for _, v := range list(p.spec, "volumes") {
				if name := at(v, "configMap", "name"); name != nil && all.get("ConfigMap", name.(string)) == nil {
					t.Errorf("%s: ConfigMap %v is not there", p.of.kindName(), name)
				}
			}
		}
		backend := func(of object, name, port any) {
			s := all.get("Service", name.(string))
			if s == nil || !slices.ContainsFunc(list(s, "spec", "ports"), func(p any) bool { return at(p, "name") == port || at(p, "port") == port }) {
				t.Errorf("%s leads to %v:%v, which is not there", of.kindName(), name, port)
			}
		}
		for _, o := range all {
			switch o["kind"] {
			case "Ingress":
				for _, r := range list(o, "spec", "rules") {
					for _, p := range list(r, "http", "paths") {
						backend(o, at(p, "backend", "service", "name"), at(p, "backend", "service", "port", "name"))
					}
				}
			case "HTTPRoute", "GRPCRoute":
				for _, r := range list(o, "spec", "rules") {
					for _, b := range list(r, "backendRefs") {
						backend(o, at(b, "name"), at(b, "port"))
					}
				}
			case "BackendTLSPolicy":
				for _, r := range list(o, "spec", "targetRefs") {
					if all.get("Service", at(r, "name").(string)) == nil {
						t.Errorf("%s is for %v, which is not there", o.kindName(), at(r, "name"))
					}
				}
			case "HorizontalPodAutoscaler":
				d := all.get("Deployment", at(o, "spec", "scaleTargetRef", "name").(string))
				if d == nil || at(d, "spec", "replicas") != nil {
					t.Errorf("%s scales %v", o.kindName(), at(o, "spec", "scaleTargetRef"))
				}
			case "ServiceMonitor":
				found := 0
				for _, s := range all.of("Service") {
					labels, _ := at(s, "metadata", "labels").(map[string]any)
					if selects(at(o, "spec", "selector"), labels) {
						found++
						for _, e := range list(o, "spec", "endpoints") {
							backend(o, at(s, "metadata", "name"), at(e, "port"))
						}
					}
				}
				if found != 1 {
					t.Errorf("%s scrapes %d Services", o.kindName(), found)
				}
			case "PodDisruptionBudget":
				if !slices.ContainsFunc(all.pods(), func(p pod) bool { return selects(at(o, "spec", "selector"), p.labels) }) {
					t.Errorf("%s is for no pods", o.kindName())
				}
			}
		}
	})
}

// Only the contract is published: not health, not operators, not metrics.
func TestPublished(t *testing.T) {
	wanted := []string{"/.well-known/jwks.json", "/.well-known/openid-configuration", "/pact", "/pact.signer.v1.SignerService"}
	all := render(t, production)
	var paths []string
	for _, i := range all.of("Ingress") {
		for _, r := range list(i, "spec", "rules") {
			if host := at(r, "host"); host != "pa.example.com" && host != "signer.example.com" {
				t.Errorf("host %v", host)
			}
			for _, p := range list(r, "http", "paths") {
				paths = append(paths, at(p, "path").(string))
			}
		}
	}
	slices.Sort(paths)
	if got := slices.Compact(paths); !slices.Equal(got, wanted) {
		t.Errorf("published: %v", got)
	}
	for _, route := range render(t, several).of("HTTPRoute") {
		if hosts := fmt.Sprint(list(route, "spec", "hostnames")); hosts != "[pa.example.com agents.example.net sign.agents.example.net]" {
			t.Errorf("hostnames %v", hosts)
		}
		for _, m := range list(route, "spec", "rules", 0, "matches") {
			if path := at(m, "path", "value"); !slices.Contains(wanted, path.(string)) {
				t.Errorf("published: %v", path)
			}
		}
	}
}

// An upgrade in the middle of a rotation leaves nobody without keys: as many replicas
// as before are ready at any time, ready means that they serve the newest schedule,
// and one that stops finishes what is in flight.
func TestUpgradeKeepsARotation(t *testing.T) {
	each(t, func(t *testing.T, v variant, all objects) {
		for _, s := range all.of("StatefulSet") {
			if at(s, "spec", "replicas") != 1 || at(s, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted") != "Retain" {
				t.Errorf("%s: %v", s.kindName(), s["spec"])
			}
		}
		for _, p := range all.pods() {
			if p.labels["app.kubernetes.io/component"] != "signer" {
				continue
			}
			c := list(p.spec, "containers")[0]
			if at(c, "readinessProbe", "httpGet", "path") != "/readyz" || at(c, "livenessProbe", "httpGet", "path") != "/livez" {
				t.Errorf("probes: %v", c)
			}
			stop, _ := at(c, "lifecycle", "preStop", "sleep", "seconds").(int)
			drain, err := time.ParseDuration(at(configOf(t, all), "drainTimeout").(string))
			if grace := at(p.spec, "terminationGracePeriodSeconds").(int); err != nil || time.Duration(grace-stop)*time.Second < drain+2*time.Second {
				t.Errorf("%d s of grace for %d s of sleep and %v of drain", grace, stop, drain)
			}
			if p.of["kind"] != "Deployment" {
				continue
			}
			if got := fmt.Sprint(at(p.of, "spec", "strategy")); got != "map[rollingUpdate:map[maxSurge:1 maxUnavailable:0] type:RollingUpdate]" {
				t.Errorf("strategy %s", got)
			}
			if at(p.of, "spec", "minReadySeconds").(int) < 5 {
				t.Error("the next replica is replaced before a failure of the new one shows")
			}
			if len(list(p.spec, "topologySpreadConstraints")) != 2 {
				t.Error("replicas are not spread")
			}
			if b := all.of("PodDisruptionBudget"); v.name != "everything off" && (len(b) != 1 || at(b[0], "spec", "maxUnavailable") != 1) {
				t.Errorf("budget: %v", b)
			}
		}
	})
	if len(render(t, trial).of("PodDisruptionBudget")) != 0 {
		t.Error("the only replica keeps a node from being drained")
	}
}

// A change of the configuration rolls the replicas, and runs init again; nothing else
// that is not the pods' does.
func TestConfigurationRolls(t *testing.T) {
	sum := func(v variant) (checksum, job any, pods string) {
		all := render(t, v)
		d := all.get("Deployment", "pact-signer")
		return at(d, "spec", "template", "metadata", "annotations", "checksum/config"), at(all.of("Job")[0], "metadata", "name"), fmt.Sprint(at(d, "spec", "template"))
	}
	checksum, job, pods := sum(bare)
	again, sameJob, samePods := sum(bare.with("", "service.public.annotations.a=b", "podDisruptionBudget.maxUnavailable=2", "serviceMonitor.interval=1m"))
	if again != checksum || sameJob != job || samePods != pods {
		t.Error("what is not the pods' rolls them")
	}
	if other, otherJob, _ := sum(bare.with("", "config.log.level=debug")); other == checksum || otherJob == job {
		t.Error("another configuration rolls nothing")
	}
	if _, otherJob, _ := sum(bare.with("", "image.tag=v2")); otherJob == job {
		t.Error("a Job is changed, which Kubernetes refuses")
	}
}

// Whatever a release is called, its Services have names that Kubernetes takes, and two
// releases do not share them.
func TestNames(t *testing.T) {
	t.Parallel()
	long := "pact-signer-production-europe-west-team-alpha-0"
	name := regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	owner := map[any]string{}
	for _, release := range []string{"x.y.z", "pact-signer", long + "1", long + "2"} {
		out, err := helm(t, append([]string{"template", release, chart, "--kube-version", kubeVersion}, production.args()...)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range parse(t, out).of("Service") {
			called := at(s, "metadata", "name").(string)
			if other := owner[called]; other != "" || !name.MatchString(called) {
				t.Errorf("%s of %s (and %s)", s.kindName(), release, other)
			}
			owner[called] = release
		}
	}
	_, err := helm(t, append([]string{"template", "1st", chart}, production.args()...)...)
	if err == nil || !strings.Contains(err.Error(), "fullnameOverride: is needed with a release named 1st") {
		t.Errorf("a release 1st: %v", err)
	}
}

// The chart brings the alerts, with what values change in them, and the dashboard.
func TestAlertsInTheChart(t *testing.T) {
	v := production.with("", "prometheusRule.disabled[0]=PactSignerKillSwitchOn", "prometheusRule.alertLabels.team=identity", "prometheusRule.runbookUrl=https://wiki.example.com/r")
	rules, all := map[string]bool{}, render(t, v)
	for _, g := range list(all.of("PrometheusRule")[0], "spec", "groups") {
		for _, r := range list(g, "rules") {
			if name, ok := at(r, "alert").(string); ok {
				rules[name] = true
				if url := at(r, "annotations", "runbook_url").(string); !strings.HasPrefix(url, "https://wiki.example.com/r/") {
					t.Errorf("%s: %s", name, url)
				}
				if at(r, "labels", "team") != "identity" || at(r, "labels", "severity") == nil {
					t.Errorf("%s: %v", name, at(r, "labels"))
				}
			}
		}
	}
	if len(rules) < 10 || rules["PactSignerKillSwitchOn"] || !rules["PactSignerDown"] {
		t.Errorf("alerts: %v", rules)
	}
	var dashboard map[string]any
	text, _ := at(all.get("ConfigMap", "pact-signer-dashboard"), "data", "pact-signer.json").(string)
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Errorf("dashboard: %v", err)
	}
}

// The chart's README names values and files that exist.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	content, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err == nil {
		err = yaml.Unmarshal(content, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, m := range regexp.MustCompile("`([a-z][A-Za-z]*(?:\\.[A-Za-z]+)*)(?:: \\w+)?`").FindAllStringSubmatch(string(text), -1) {
		path := strings.Split(m[1], ".")
		if _, ours := values[path[0]]; !ours {
			continue
		}
		named++
		var v any = values
		for _, key := range path {
			in, _ := v.(map[string]any)
			below, there := in[key]
			if !there {
				t.Errorf("%s is no value", m[1])
				break
			}
			v = below
		}
	}
	if named < 10 {
		t.Errorf("only %d values were found", named)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(filepath.Join(chart, m[1])); err != nil {
			t.Error(err)
		}
	}
	for _, v := range valuesFiles(t) {
		if !strings.Contains(string(text), v) {
			t.Errorf("%s is not told of", v)
		}
	}
}

// valuesFiles are the values files that the chart brings.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "values*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	return files
}
