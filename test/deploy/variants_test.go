package deploy

import "path/filepath"

// variant is one way to install the chart.
type variant struct {
	name  string
	files []string // of the chart
	set   []string // for --set
}

func (v variant) args() []string {
	var args []string
	for _, f := range v.files {
		args = append(args, "--values", filepath.Join(chart, f))
	}
	for _, s := range v.set {
		args = append(args, "--set", s)
	}
	return args
}

// with is the variant with more set.
func (v variant) with(name string, set ...string) variant {
	return variant{name, v.files, append(append([]string{}, v.set...), set...)}
}

// The three values files, and what they do not show.
var (
	trial      = variant{name: "trial", files: []string{"values-trial.yaml"}}
	production = variant{name: "production", files: []string{"values-production.yaml"}}
	several    = variant{name: "several-issuers", files: []string{"values-several-issuers.yaml"}}

	// bare is the least that a fleet needs.
	bare = variant{name: "bare", set: []string{
		"config.issuers[0].url=https://pa.example.com",
		"config.custody.vault.addresses[0]=https://vault.example.com:8200",
		"config.store.redis.addresses[0]=redis.example.com:6379",
		"config.admin.tokens[0].name=a", "config.admin.tokens[0].role=admin", "config.admin.tokens[0].hash=sha256:" + zeros,
	}}

	named    = []variant{trial, production, several}
	variants = append([]variant{
		bare,
		production.with("everything off",
			"init.enabled=false", "networkPolicy.enabled=false", "podDisruptionBudget.enabled=false", "ingress.enabled=false", "ingress.grpc.enabled=false",
			"autoscaling.enabled=false", "probe.enabled=false", "test.enabled=false", "serviceMonitor.enabled=false", "serviceAccount.create=false",
			"preStopSeconds=0", "secrets.redis.password.secretName=null", "config.store.redis.username=null"),
		production.with("everything on",
			"image.digest=sha256:"+zeros, "imagePullSecrets[0].name=pull", "nameOverride=signer", "fullnameOverride=my-signer",
			"config.tracing.endpoint=otel.observability:4317", "config.tracing.trustParent=true", "secrets.tracing.ca.secretName=otel-ca", "secrets.tracing.headers.secretName=otel",
			"listeners.public.tls.secretName=public-tls", "listeners.ops.tls.secretName=ops-tls", "gateway.enabled=true", "gateway.parentRefs[0].name=public",
			"gateway.backendTLS.caConfigMapName=ca", "ingress.tls.perHost=true", "autoscaling.signLatency.enabled=true",
			"probe.adminToken.secretName=viewer", "probe.ca.secretName=null", "probe.ca.configMapName=ca", "test.enrollmentToken.secretName=enrol", "init.addIssuers=true",
			"networkPolicy.ingress.admin[0].ipBlock.cidr=10.1.0.0/16", "prometheusRule.disabled[0]=PactSignerKillSwitchOn", "prometheusRule.alertLabels.team=identity",
			"prometheusRule.runbookUrl=https://wiki.example.com/runbooks", "priorityClassName=high", "nodeSelector.disk=ssd", "tolerations[0].key=dedicated", "tolerations[0].operator=Exists",
			"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null", "podAnnotations.a=b", "podLabels.team=identity", "commonLabels.cost=1a",
			"extraEnv[0].name=PACT_SIGNER_LOG_LEVEL", "extraEnv[0].value=debug", "extraVolumes[0].name=x", "extraVolumes[0].emptyDir.medium=Memory",
			"extraVolumeMounts[0].name=x", "extraVolumeMounts[0].mountPath=/x", "config.drainTimeout=1m30s", "serviceAccount.annotations.a=b", "service.public.type=LoadBalancer",
			"config.store.redis.sentinelUsername=s", "secrets.redis.sentinelPassword.secretName=sentinel", "secrets.redis.certificate.secretName=redis-tls",
			"config.store.redis.tls.serverName=redis", "config.custody.vault.namespace=team", "config.custody.vault.auth.mount=k8s", "config.custody.vault.wrapped=true", "config.issuers[0].rotation.skew=10s"),
		production.with("token and device",
			"config.custody.vault.auth.method=token", "secrets.vault.token.secretName=vault", "probe.credential.secretName=null", "probe.deviceKey.secretName=device"),
		bare.with("behind a mesh",
			"config.insecure.admin=true", "config.insecure.grpc=true", "config.insecure.vault=true", "config.insecure.redis=true", "config.store.redis.tls.enabled=false",
			"config.custody.vault.addresses[0]=http://vault:8200", "probe.adminToken.secretName=viewer", "gateway.enabled=true", "gateway.parentRefs[0].name=public", "networkPolicy.ingress.public[0].ipBlock.cidr=10.0.0.0/8"),
		trial.with("trial with passphrase", "secrets.custodyPassphrase.secretName=passphrase", "persistence.storageClassName=fast", "config.log.level=debug"),
		trial.with("bolt on Vault", "config.custody.kind=vault", "config.custody.vault.addresses[0]=https://vault:8200"),
	}, named...)
)

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
