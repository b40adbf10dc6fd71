package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/test/deploy/valueschema"
)

// values.schema.json is what the comments in values.yaml say.
func TestSchemaIsCurrent(t *testing.T) {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := valueschema.Generate(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(chart, "values.schema.json")
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("values.schema.json is not as values.yaml says: run go test ./test/deploy -run Schema -update\n%s", firstDifference(string(want), string(got)))
	}
}

// What is mistyped is refused, and the complaint names it.
func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		set  string
		want []string // in the complaint
	}{
		{"replicas=3", []string{"'replicas' not allowed"}},
		{"image.tga=1", []string{"/image", "'tga' not allowed"}},
		{"replicaCount=three", []string{"/replicaCount", "want integer"}},
		{"replicaCount=-1", []string{"/replicaCount", "minimum"}},
		{"image.pullPolicy=always", []string{"/image/pullPolicy", "IfNotPresent"}},
		{"image.digest=abc", []string{"/image/digest"}},
		{"config.isuers[0].url=https://a.example", []string{"/config", "'isuers' not allowed"}},
		{"config.issuers[0].URL=https://a.example", []string{"/config/issuers/0", "'URL' not allowed"}},
		{"config.issuers[0].url=1", []string{"/config/issuers/0/url", "want string"}},
		{"config.issuers[0].tokenTTL=120", []string{"/config/issuers/0/tokenTTL"}},
		{"config.issuers[0].algorithm=HS256", []string{"/config/issuers/0/algorithm", "ES256"}},
		{"config.issuers[0].enrolment=opne", []string{"/config/issuers/0/enrolment", "closed"}},
		{"config.issuers[0].limits.caller.brust=1", []string{"/config/issuers/0/limits/caller", "'brust' not allowed"}},
		{"config.issuers[0].rotation.lead=1hour", []string{"/config/issuers/0/rotation/lead"}},
		{"config.custody.kind=vualt", []string{"/config/custody/kind", "vault"}},
		{"config.custody.vault.address=https://v", []string{"/config/custody/vault", "'address' not allowed"}},
		{"config.custody.vault.addresses=https://v", []string{"/config/custody/vault/addresses", "want array"}},
		{"config.custody.vault.token=s.abc", []string{"/config/custody/vault", "'token' not allowed"}},
		{"config.custody.vault.wrapped=yes", []string{"/config/custody/vault/wrapped", "want boolean"}},
		{"config.store.redis.password=secret", []string{"/config/store/redis", "'password' not allowed"}},
		{"config.store.redis.addresses[0]=redis", []string{"/config/store/redis/addresses/0"}},
		{"config.store.redis.acks=-1", []string{"/config/store/redis/acks"}},
		{"config.store.redis.acks=11", []string{"/config/store/redis/acks", "maximum"}},
		{"config.store.redis.mode=single", []string{"/config/store/redis/mode", "sentinel"}},
		{"config.admin.tokens[0].token=pact_admin_x", []string{"/config/admin/tokens/0", "'token' not allowed"}},
		{"config.admin.tokens[0].hash=abc", []string{"/config/admin/tokens/0"}},
		{"config.log.level=trace", []string{"/config/log/level", "debug"}},
		{"config.drainTimeout=10", []string{"/config/drainTimeout"}},
		{"config.tracing.sampleRatio=2", []string{"/config/tracing/sampleRatio"}},
		{"config.trustedProxies[0]=10.0.0.1", []string{"/config/trustedProxies/0"}},
		{"config.data=/x", []string{"/config", "'data' not allowed"}},
		{"config.development.timeScale=60", []string{"/config", "'development' not allowed"}},
		{"listeners.admin.tls.secret=x", []string{"/listeners/admin/tls", "'secret' not allowed"}},
		{"listeners.public.port=80", []string{"/listeners/public/port", "minimum"}},
		{"secrets.redis.password.name=x", []string{"/secrets/redis/password", "'name' not allowed"}},
		{"secrets.redis.password=hunter2", []string{"/secrets/redis/password", "want object"}},
		{"serviceAccount.vaultToken.expirationSeconds=60", []string{"/serviceAccount/vaultToken/expirationSeconds", "600"}},
		{"ingress.hosts[0]=a.example", []string{"/ingress", "'hosts' not allowed"}},
		{"ingress.annotations.a=1", []string{"/ingress/annotations/a", "want string"}},
		{"networkPolicy.ingress.public[0].cidr=10.0.0.0/8", []string{"/networkPolicy/ingress/public/0", "'cidr' not allowed"}},
		{"resources.limit.memory=1Gi", []string{"/resources", "'limit' not allowed"}},
		{"podSecurityContext.runAsUser=0", []string{"/podSecurityContext/runAsUser", "minimum"}},
		{"podSecurityContext.runAsNonRoot=false", []string{"/podSecurityContext", "'runAsNonRoot' not allowed"}},
		{"probes.readiness.path=/livez", []string{"/probes/readiness", "'path' not allowed"}},
		{"podDisruptionBudget.maxUnavailable=0", []string{"/podDisruptionBudget/maxUnavailable"}},
		{"prometheusRule.disabled[0]=SignerDown", []string{"/prometheusRule/disabled/0"}},
		{"probe.intervall=1m", []string{"/probe", "'intervall' not allowed"}},
		{"persistence.accessModes[0]=ReadWriteMany", []string{"/persistence/accessModes/0"}},
		{"extraEnv[0].value=x", []string{"/extraEnv/0", "name"}},
		{"fullnameOverride=Bad_Name", []string{"/fullnameOverride"}},
		{"fullnameOverride=1st", []string{"/fullnameOverride"}},
		{"nameOverride=a.b", []string{"/nameOverride"}},
		{"serviceAccount.name=Bad Name", []string{"/serviceAccount/name"}},
	} {
		t.Run(c.set, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, bare.with("", c.set).args()...)
			if err == nil {
				t.Fatal("was taken")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

// What does not fit together is refused, with the key and the fix.
func TestContradictionsAreNamed(t *testing.T) {
	for _, c := range []struct {
		of   variant
		set  []string
		want string
	}{
		{variant{}, nil, "no values: start from one of the chart's files, -f values-trial.yaml"},
		{bare, []string{"config.issuers=null"}, "config.issuers: name at least one"},
		{bare, []string{"config.custody.vault.addresses=null"}, "config.custody.vault.addresses: name Vault's URL"},
		{bare, []string{"config.store.redis.addresses=null"}, "config.store.redis.addresses: name host:port"},
		{bare, []string{"config.admin.tokens=null"}, "config.admin.tokens: name at least one of role admin"},
		{production, []string{"config.issuers[1].enrolment=token"}, "config.issuers.1.url: is needed"},
		{bare, []string{"config.issuers[0].url=https://pa.example.com/"}, "config.issuers.0.url: https://pa.example.com/ is not an origin such as https://pa.example.com: https"},
		{bare, []string{"commonLabels.app\\.kubernetes\\.io/name=x"}, "commonLabels: app.kubernetes.io/name is the chart's own"},
		{bare, []string{"podLabels.app\\.kubernetes\\.io/component=x"}, "podLabels: app.kubernetes.io/component is the chart's own"},
		{bare, []string{"prometheusRule.disabled[0]=PactSignerDow"}, "prometheusRule.disabled: there is no alert PactSignerDow"},
		{bare, []string{"listeners.admin.port=8787"}, "listeners.public.port: 8787 is the port of listeners.admin too"},
		{production, []string{"serviceMonitor.scrapeTimeout=1m"}, "serviceMonitor.scrapeTimeout: is more than serviceMonitor.interval"},
		{production, []string{"probe.issuer=https://other.example.com"}, "probe.issuer: https://other.example.com is none of config.issuers"},
		{bare, []string{"config.issuers[0].enrolment=open"}, "config.issuers.0.enrolment: open"},
		{bare, []string{"config.admin.tokens[0].role=operator"}, "config.admin.tokens: name at least one of role admin"},
		{trial, []string{"replicaCount=3"}, "replicaCount: config.store.kind bolt is for one replica"},
		{trial, []string{"autoscaling.enabled=true"}, "autoscaling.enabled: config.store.kind bolt"},
		{trial, []string{"config.store.kind=redis", "config.store.redis.addresses[0]=r:1"}, "config.custody.kind: local with config.store.kind redis"},
		{trial, []string{"config.store.redis.addresses[0]=r:1"}, "config.store.kind: say redis"},
		{trial, []string{"config.custody.vault.addresses[0]=https://v"}, "config.custody.kind: say vault"},
		{bare, []string{"autoscaling.enabled=true", "autoscaling.maxReplicas=2"}, "autoscaling.maxReplicas"},
		{bare, []string{"autoscaling.enabled=true", "autoscaling.targetCPUUtilizationPercentage=0"}, "nothing is left to scale by"},
		{bare, []string{"autoscaling.enabled=true", "resources.requests.cpu=null"}, "resources.requests.cpu"},
		{bare, []string{"config.custody.vault.addresses[0]=http://v:8200"}, "config.custody.vault.addresses.0: needs https"},
		{bare, []string{"config.custody.vault.auth.role="}, "config.custody.vault.auth.role"},
		{bare, []string{"config.custody.vault.auth.method=approle"}, "secrets.vault.approle.secretName"},
		{bare, []string{"config.custody.vault.auth.method=token"}, "secrets.vault.token.secretName"},
		{bare, []string{"secrets.custodyPassphrase.secretName=x"}, "secrets.custodyPassphrase.secretName: is for config.custody.kind local"},
		{bare, []string{"config.store.redis.addresses[1]=r:2"}, "standalone has one"},
		{bare, []string{"config.store.redis.mode=sentinel", "config.store.redis.acks=1"}, "config.store.redis.masterName"},
		{bare, []string{"config.store.redis.mode=cluster"}, "config.store.redis.acks: 0 is for a Redis without copies"},
		{bare, []string{"config.store.redis.tls.enabled=false"}, "config.store.redis.tls.enabled: is needed"},
		{bare, []string{"config.store.redis.tls.enabled=false", "config.insecure.redis=true", "secrets.redis.ca.secretName=x"}, "config.store.redis.tls.enabled: say true"},
		{bare, []string{"config.store.redis.username=u"}, "secrets.redis.password.secretName"},
		{production, []string{"config.store.redis.sentinelUsername=u"}, "secrets.redis.sentinelPassword.secretName"},
		{bare, []string{"secrets.redis.sentinelPassword.secretName=u"}, "are for mode sentinel"},
		{bare, []string{"secrets.vault.ca.secretName=a", "secrets.vault.ca.configMapName=b"}, "secrets.vault.ca: name secretName or configMapName"},
		{bare, []string{"ingress.enabled=true"}, "networkPolicy.ingress.public: name the pods"},
		{bare, []string{"serviceMonitor.enabled=true"}, "networkPolicy.ingress.metrics: name Prometheus's pods"},
		{trial, []string{"ingress.enabled=true", "networkPolicy.enabled=false"}, "none has an https URL"},
		{bare, []string{"ingress.grpc.enabled=true"}, "ingress.grpc.enabled: needs ingress.enabled"},
		{production, []string{"listeners.grpc.tls.secretName="}, "ingress.grpc.enabled: gRPC listens inside the pod only"},
		{several, []string{"gateway.parentRefs=null"}, "gateway.parentRefs: name the Gateway"},
		{bare, []string{"probe.enabled=true"}, "probe.credential.secretName: is needed"},
		{production, []string{"probe.deviceKey.secretName=x"}, "not both"},
		{bare, []string{"probe.adminToken.secretName=x"}, "probe.adminToken.secretName: admin listens inside the pod only"},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, c.of.with("", c.set...).args()...)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "templates/check/values/") {
				t.Errorf("says %v", err)
			}
		})
	}
}

// What the signer would refuse when it starts the chart refuses when it is rendered,
// and takes what the signer takes: rules of the signer's that the chart repeats are
// the same here and there.
func TestTheSignerWouldRefuse(t *testing.T) {
	all := render(t, bare)
	for _, c := range []struct {
		key  string // of the values; the signer's is without "config."
		good []string
		bad  []string
	}{
		{"config.issuers[0].url", []string{"https://pa.example.com:8443", "http://localhost:1"}, []string{"http://pa.example.com", "https://pa.example.com/", "https://PA.example.com", "pa.example.com"}},
		{"config.issuers[0].signerUrls[0]", []string{"https://s.example.com"}, []string{"https://s.example.com/x"}},
		{"config.issuers[1].url", []string{"https://pb.example.com"}, []string{"https://pa.example.com"}},
		{"config.issuers[0].tokenTTL", []string{"60s", "5m"}, []string{"59s", "5m1s", "1h"}},
		{"config.issuers[0].rotation.lead", []string{"6m35s"}, []string{"6m34s", "1s"}},
		{"config.issuers[0].rotation.overlap", []string{"3m45s"}, []string{"3m44s"}},
		{"config.issuers[0].rotation.skew", []string{"20s"}, []string{"21s"}},
		{"config.drainTimeout", []string{"1s", "5m"}, []string{"0s", "5m1s", "10m"}},
		{"config.tracing.endpoint", []string{"otel:4317", "[::1]:4317"}, []string{"http://otel:4318", "otel", "otel:4317/v1/traces"}},
		{"config.store.redis.addresses[0]", []string{"r:65535", "[::1]:1"}, []string{"r:99999", "r:0"}},
	} {
		for i, value := range append(c.good, c.bad...) {
			good := i < len(c.good)
			t.Run(c.key+" "+value, func(t *testing.T) {
				t.Parallel()
				name := strings.NewReplacer("[", ".", "]", "").Replace(c.key)
				_, err := template(t, bare.with("", c.key+"="+value).args()...)
				if good != (err == nil) || !good && !strings.Contains(err.Error(), name+": ") {
					t.Errorf("the chart says %v", err)
				}
				key := strings.TrimPrefix(name, "config.")
				document := configOf(t, all)
				put(document, strings.Split(key, "."), value)
				file := filepath.Join(t.TempDir(), "signer.yaml")
				written, err := yaml.Marshal(document)
				if err == nil {
					err = os.WriteFile(file, written, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, err := config.Load(config.Source{File: file}); good != (err == nil) || !good && !strings.Contains(err.Error(), key+": ") {
					t.Errorf("the signer says %v", err)
				}
			})
		}
	}
}

// A text that a value takes stays one text, whatever stands in it: it makes nothing
// else of what is rendered.
func TestTextStaysText(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	texts := freeTexts("", schema)
	slices.Sort(texts)
	texts = slices.DeleteFunc(texts, func(key string) bool { // of these the chart knows what they may be
		return slices.Contains([]string{"config.tracing.endpoint", "probe.issuer"}, key)
	})
	if len(texts) < 15 {
		t.Fatalf("only %q take any text", texts)
	}
	shape := func(v variant, text string) (paths []string, all string) {
		for _, key := range texts {
			v = v.with(v.name, key+"="+text)
		}
		rendered := render(t, v)
		for i, o := range rendered {
			delete(at(o, "metadata").(map[string]any), "name") // the Job's has a digest
			found := leaves(fmt.Sprint(o["kind"], i), map[string]any(o))
			if at(o, "data", "signer.yaml") != nil {
				maps.Copy(found, leaves("signer.yaml", configOf(t, objects{o})))
			}
			for path, value := range found {
				paths = append(paths, path)
				all += fmt.Sprintln(path, value)
			}
		}
		slices.Sort(paths)
		return paths, all
	}
	for _, v := range variants {
		if v.name != "everything on" && v.name != trial.name {
			continue
		}
		want, _ := shape(v, "a")
		got, all := shape(v, `a: 'b" # c`)
		if !slices.Equal(got, want) {
			t.Errorf("%s: something else is rendered:\n%s", v.name, firstDifference(strings.Join(want, "\n"), strings.Join(got, "\n")))
		}
		if v.name != trial.name && strings.Count(all, `a: 'b" # c`) < 10 {
			t.Errorf("the texts are not in what is rendered:\n%s", all)
		}
	}
	if _, err := template(t, bare.with("", "config.custody.vault.addresses[0]=https://v:8200\n    insecure: x").args()...); err == nil {
		t.Error("an address of two lines is taken")
	}
}

// freeTexts are the values that take any text.
func freeTexts(path string, schema map[string]any) (keys []string) {
	properties, _ := schema["properties"].(map[string]any)
	for name, of := range properties {
		of := of.(map[string]any)
		key := strings.TrimPrefix(path+"."+name, ".")
		if of["type"] == "string" && of["pattern"] == nil && of["enum"] == nil {
			keys = append(keys, key)
		}
		keys = append(keys, freeTexts(key, of)...)
	}
	return keys
}

// put sets what is at a path of keys, and of numbers in lists, which may grow by one.
func put(in any, path []string, value string) any {
	if len(path) == 0 {
		return value
	}
	if n, err := strconv.Atoi(path[0]); err == nil {
		list, _ := in.([]any)
		if n == len(list) {
			list = append(list, nil)
		}
		list[n] = put(list[n], path[1:], value)
		return list
	}
	keys, _ := in.(map[string]any)
	if keys == nil {
		keys = map[string]any{}
	}
	keys[path[0]] = put(keys[path[0]], path[1:], value)
	return keys
}
