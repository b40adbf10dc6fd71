package deploy

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
)

// configText is the signer.yaml that a rendering has.
func configText(t *testing.T, all objects) string {
	t.Helper()
	for _, o := range all.of("ConfigMap") {
		if text, ok := at(o, "data", "signer.yaml").(string); ok {
			return text
		}
	}
	t.Fatal("there is no signer.yaml")
	return ""
}

func configOf(t *testing.T, all objects) map[string]any {
	t.Helper()
	var c map[string]any
	if err := yaml.Unmarshal([]byte(configText(t, all)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// load reads a rendered signer.yaml as the signer does.
func load(t *testing.T, all objects, flags ...config.Setting) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "signer.yaml")
	if err := os.WriteFile(file, []byte(configText(t, all)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{File: file, Flags: flags})
	if err != nil {
		t.Fatalf("the signer does not take what the chart renders: %v\n%s", err, configText(t, all))
	}
	return c
}

// leaves are the plain values of a document, by their paths with # for numbers.
func leaves(path string, v any) map[string]any {
	found := map[string]any{}
	below := func(name string, v any) {
		for k, v := range leaves(strings.TrimPrefix(path+"."+name, "."), v) {
			found[k] = v
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for k, v := range v {
			below(k, v)
		}
	case []any:
		for _, v := range v {
			below("#", v)
		}
	default:
		found[path] = v
	}
	return found
}

// notInTheChart are the keys that the chart never writes, with the reason.
var notInTheChart = map[string]string{
	"replica":                 "a pod's name is part of the default, which is new after a restart too",
	"custody.dir":             "is in the data folder",
	"store.path":              "is in the data folder",
	"development.timeScale":   "only goes with a public listener on loopback",
	"development.clockOffset": "only goes with a public listener on loopback",
}

// Every key of the configuration is written by the chart, or is left out for a
// reason; and the signer takes everything that is rendered.
func TestConfigurationIsWhole(t *testing.T) {
	keys := config.Keys()
	written := map[string]bool{}
	for _, v := range append(variants, production.with("all", "config.trustedProxies[0]=10.0.0.0/8")) {
		all := render(t, v)
		load(t, all)
		for key := range leaves("", configOf(t, all)) {
			written[strings.TrimSuffix(key, ".#")] = true
		}
	}
	for key := range keys {
		key = strings.TrimSuffix(key, ".#")
		if why, left := notInTheChart[key]; left == written[key] {
			t.Errorf("%s: written is %v, and left out is %v (%s): give it a value in values.yaml and write it in _config.tpl, or say why not", key, written[key], left, why)
		}
	}
}

// line is a line of values, with a space between all of them.
func line(values ...any) string { return strings.TrimSpace(fmt.Sprintln(values...)) }

// What is set arrives, in numbers too.
func TestConfigurationArrives(t *testing.T) {
	c := load(t, render(t, several))
	if got := line(len(c.Issuers), c.Issuers[1].URL, c.Issuers[1].SignerURLs, c.Issuers[1].Algorithm, c.Issuers[1].TokenTTL, c.Issuers[1].MaxDevices, c.Issuers[1].Limits.Caller,
		c.Issuers[1].Rotation.Lead, c.Issuers[1].Enrolment); got != "2 https://agents.example.net [https://sign.agents.example.net] RS256 1m0s 1000000 {0.5 30} 25h0m0s closed" {
		t.Errorf("issuers: %s", got)
	}
	if got := line(c.Store.Redis.Mode, c.Store.Redis.Acks, c.Store.Redis.TLS, c.Custody.Vault.Auth, c.Custody.Vault.CAFile); got !=
		"cluster 1 {true /run/secrets/pact-signer/redis/ca.crt /run/secrets/pact-signer/redis/tls.crt /run/secrets/pact-signer/redis/tls.key } "+
			"{approle   /run/secrets/pact-signer/vault/role-id /run/secrets/pact-signer/vault/secret-id  /var/run/secrets/kubernetes.io/serviceaccount/token} /run/secrets/pact-signer/vault/ca.crt" {
		t.Errorf("backends: %s", got)
	}
	c = load(t, render(t, bare.with("", "config.issuers[0].rotation.period=0", "config.issuers[0].limits.enroll.rate=0", "config.issuers[0].maxDevices=0")))
	if got := line(c.Issuers[0].Rotation.Period, c.Issuers[0].Limits.Enroll.Rate); got != "0s 0" {
		t.Errorf("zeros: %s", got)
	}
	// Defaults are the signer's own.
	want, got := config.Default(), load(t, render(t, bare))
	if got.Custody.Vault.Transit != want.Custody.Vault.Transit || got.Custody.Vault.KV != want.Custody.Vault.KV || got.Custody.Vault.Prefix != want.Custody.Vault.Prefix ||
		got.Store.Redis.Prefix != want.Store.Redis.Prefix || got.DrainTimeout != want.DrainTimeout || got.Log.Level != want.Log.Level {
		t.Errorf("defaults differ: %+v", got)
	}
	traced := load(t, render(t, bare.with("", "config.tracing.endpoint=otel:4317")))
	if traced.Tracing != func() config.Tracing { w := want.Tracing; w.Endpoint = "otel:4317"; return w }() {
		t.Errorf("defaults of tracing: %+v", traced.Tracing)
	}
}

// Each file that signer.yaml names is mounted.
func TestFilesAreMounted(t *testing.T) {
	each(t, func(t *testing.T, v variant, all objects) {
		for _, p := range all.pods() {
			component := p.labels["app.kubernetes.io/component"]
			if component != "signer" && component != "init" {
				continue
			}
			there := map[string]bool{}
			for _, v := range list(p.spec, "volumes") {
				for _, source := range list(v, "projected", "sources") {
					for _, kind := range []string{"secret", "configMap"} {
						for _, item := range list(source, kind, "items") {
							there["/run/secrets/pact-signer/"+at(item, "path").(string)] = true
						}
					}
					if path := at(source, "serviceAccountToken", "path"); path != nil {
						there["/run/secrets/pact-signer/"+path.(string)] = true
					}
				}
			}
			for key, file := range leaves("", configOf(t, all)) {
				if strings.HasSuffix(key, "File") {
					if !there[file.(string)] {
						t.Errorf("%s: %s names %s, which is not mounted", p.of.kindName(), key, file)
					}
					delete(there, file.(string))
				}
			}
			if len(there) > 0 {
				t.Errorf("%s: mounted for nothing: %v", p.of.kindName(), there)
			}
		}
	})
}

// startTrial runs the trial's own configuration, on free ports and in a folder in
// place of the volume's.
func startTrial(t *testing.T, all objects) (info server.Info, data string) {
	t.Helper()
	data = t.TempDir()
	c := load(t, all,
		config.Setting{Path: "data", Value: filepath.Join(data, "pact-signer")},
		config.Setting{Path: "listeners.public.address", Value: "127.0.0.1:0"}, config.Setting{Path: "listeners.grpc.address", Value: "127.0.0.1:0"},
		config.Setting{Path: "listeners.admin.address", Value: "127.0.0.1:0"}, config.Setting{Path: "listeners.ops.address", Value: "127.0.0.1:0"})
	s, err := server.New(c, server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Shutdown(context.Background()) })
	<-s.Ready()
	return s.Info(), data
}

// Probes find what they ask for.
func TestProbesFindWhatTheyAskFor(t *testing.T) {
	all := render(t, trial)
	info, _ := startTrial(t, all)
	container := list(all.get("StatefulSet", "pact-signer"), "spec", "template", "spec", "containers")[0]
	paths := []string{"/metrics"}
	for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
		if at(container, probe, "httpGet", "port") != "ops" {
			t.Errorf("%s does not ask ops", probe)
		}
		paths = append(paths, at(container, probe, "httpGet", "path").(string))
	}
	for _, path := range paths {
		answer, err := http.Get(info.Ops + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
}

// What NOTES.txt says of the trial works: pactctl in the pod needs no more than the
// pod's variables, and the pod of `helm test` enrols, signs and verifies.
func TestTrialSigns(t *testing.T) {
	t.Parallel()
	p := build(t)
	all := render(t, trial)
	info, data := startTrial(t, all)
	here := strings.NewReplacer("http://127.0.0.1:8789", info.Admin, "/data/", data+"/", "/tmp/probe", filepath.Join(data, "probe"),
		"http://pact-signer:8787", info.Public, "http://pact-signer-replicas:8787", info.Public)
	run := func(of any, args ...string) (string, error) {
		t.Helper()
		for i, arg := range args {
			args[i] = here.Replace(arg)
		}
		cmd := p.command("pactctl", args...)
		for _, e := range list(of, "env") {
			cmd.Env = append(cmd.Env, here.Replace(fmt.Sprint(at(e, "name"), "=", at(e, "value"))))
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	signer := list(all.get("StatefulSet", "pact-signer"), "spec", "template", "spec", "containers")[0]
	tester := list(all.get("Pod", "pact-signer-test"), "spec", "containers")[0]
	var args []string
	for _, arg := range list(tester, "args") {
		args = append(args, arg.(string))
	}
	if out, err := run(tester, slices.Clone(args)...); err == nil {
		t.Errorf("passes without the probe's audiences:\n%s", out)
	}
	if out, err := run(signer, "probe", "setup", "--issuer", "http://localhost:8787"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run(tester, args...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// notes renders NOTES.txt, which `helm template` leaves out.
func notes(t *testing.T, v variant) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pact-signer")
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "templates", "NOTES.txt"), filepath.Join(dir, "notes.txt")); err != nil {
		t.Fatal(err)
	}
	const shown = "notes: |\n  {{- tpl (.Files.Get \"notes.txt\") . | nindent 2 }}\n"
	if err := os.WriteFile(filepath.Join(dir, "templates", "shown.yaml"), []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"template", "pact-signer", dir, "--namespace", "pact", "--kube-version", kubeVersion, "--show-only", "templates/shown.yaml"}
	for _, arg := range v.args() {
		args = append(args, strings.Replace(arg, chart, dir, 1))
	}
	out, err := helm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := parse(t, out)[0]["notes"].(string)
	return text
}

// What to do next is three commands, on what is there.
func TestNotes(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	command := regexp.MustCompile(`(?m)^  (kubectl|helm|pactctl) .*$`)
	for _, v := range append(named, bare) {
		text := notes(t, v)
		fmt.Fprintf(&said, "== %s\n%s\n", v.name, text)
		if got := len(command.FindAllString(text, -1)); got != 3 {
			t.Errorf("%s: %d commands:\n%s", v.name, got, text)
		}
		all := render(t, v)
		for _, m := range regexp.MustCompile(`(statefulset|deployment|service)/([a-z-]+)`).FindAllStringSubmatch(text, -1) {
			kind := map[string]string{"statefulset": "StatefulSet", "deployment": "Deployment", "service": "Service"}[m[1]]
			if all.get(kind, m[2]) == nil {
				t.Errorf("%s: %s is not there", v.name, m[0])
			}
		}
	}
	golden(t, "notes.golden.txt", said.String())
}
