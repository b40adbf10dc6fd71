{{/* What is wrong with the values taken together, each with the key and the fix. What one value alone can tell is in values.schema.json.
     TestTheSignerWouldRefuse holds what is the signer's own rule to the signer. */}}
{{- define "pact-signer.checks" -}}
{{- $v := .Values -}}
{{- $c := $v.config -}}
{{- $s := $v.secrets -}}
{{- $single := include "pact-signer.single" . -}}
{{- $p := list -}}

{{- if not (or $c.issuers $c.custody.vault.addresses $c.store.redis.addresses) -}}
{{- fail "no values: start from one of the chart's files, -f values-trial.yaml to try it, or a copy of values-production.yaml or values-several-issuers.yaml for a fleet on Vault and Redis" -}}
{{- end -}}

{{- if not (regexMatch "^[a-z]" (include "pact-signer.fullname" .)) -}}
{{- $p = append $p (printf "fullnameOverride: is needed with a release named %s: names of Services begin with a letter" .Release.Name) -}}
{{- end -}}
{{- if not $c.issuers -}}
{{- $p = append $p "config.issuers: name at least one: - url: https://pa.example.com" -}}
{{- end -}}
{{- $hosts := dict -}}
{{- range $i, $issuer := $c.issuers -}}
{{- if not $issuer.url -}}
{{- $p = append $p (printf "config.issuers.%d.url: is needed: the origin that stands in the tokens, such as https://pa.example.com" $i) -}}
{{- end -}}
{{- range $key, $url := merge (dict "url" $issuer.url) (include "pact-signer.signerUrls" $issuer | fromYaml) -}}
{{- if and $url (not (regexMatch "^(https://[a-z0-9.-]+(:[0-9]+)?|http://(localhost|127\\.0\\.0\\.1|\\[::1\\]|[a-z0-9.-]+\\.localhost)(:[0-9]+)?)$" $url)) -}}
{{- $p = append $p (printf "config.issuers.%d.%s: %s is not an origin such as https://pa.example.com: https (http on loopback only), lower case, neither path nor slash at the end" $i $key $url) -}}
{{- end -}}
{{- $host := regexReplaceAll "^https?://" (toString $url) "" -}}
{{- if and $url (ne (get $hosts $host | default (toString $i)) (toString $i)) -}}
{{- $p = append $p (printf "config.issuers.%d.%s: shares the host %s with config.issuers.%s: each host belongs to one issuer" $i $key $host (get $hosts $host)) -}}
{{- end -}}
{{- $_ := set $hosts $host (toString $i) -}}
{{- end -}}
{{- $ttl := include "pact-signer.seconds" ($issuer.tokenTTL | default "120s") | float64 -}}
{{- if or (lt $ttl 60.0) (gt $ttl 300.0) -}}
{{- $p = append $p (printf "config.issuers.%d.tokenTTL: use 60s to 300s" $i) -}}
{{- end -}}
{{- $r := $issuer.rotation | default dict -}}
{{- $skew := include "pact-signer.seconds" ($r.skew | default "5s") | float64 -}}
{{- $lead := include "pact-signer.seconds" ($r.lead | default "1h") | float64 -}}
{{- $overlap := include "pact-signer.seconds" ($r.overlap | default "1h") | float64 -}}
{{- if gt $skew 20.0 -}}
{{- $p = append $p (printf "config.issuers.%d.rotation.skew: use 0s to 20s" $i) -}}
{{- else -}}
{{- if lt $lead (addf 390 $skew) -}}
{{- $p = append $p (printf "config.issuers.%d.rotation.lead: use at least %vs" $i (addf 390 $skew)) -}}
{{- end -}}
{{- if lt $overlap (addf 95 $ttl $skew $skew) -}}
{{- $p = append $p (printf "config.issuers.%d.rotation.overlap: use at least %vs" $i (addf 95 $ttl $skew $skew)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (default "" $issuer.enrolment) "open") (not $c.insecure.openEnrolment) -}}
{{- $p = append $p (printf "config.issuers.%d.enrolment: open lets anybody in who reaches the Service: use token, or set config.insecure.openEnrolment" $i) -}}
{{- end -}}
{{- end -}}

{{- $ports := dict -}}
{{- range $face, $listener := $v.listeners -}}
{{- $port := $listener.port | int | toString -}}
{{- with get $ports $port -}}
{{- $p = append $p (printf "listeners.%s.port: %s is the port of listeners.%s too" $face $port .) -}}
{{- end -}}
{{- $_ := set $ports $port $face -}}
{{- end -}}
{{- $drain := include "pact-signer.seconds" $c.drainTimeout | float64 -}}
{{- if or (lt $drain 1.0) (gt $drain 300.0) -}}
{{- $p = append $p "config.drainTimeout: use 1s to 5m" -}}
{{- end -}}
{{- range $name, $labels := dict "commonLabels" $v.commonLabels "podLabels" $v.podLabels "serviceMonitor.labels" $v.serviceMonitor.labels "prometheusRule.labels" $v.prometheusRule.labels "dashboard.labels" $v.dashboard.labels -}}
{{- range $label, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/chart|pact-signer/face)$" $label -}}
{{- $p = append $p (printf "%s: %s is the chart's own: remove it" $name $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $single (gt (int $v.replicaCount) 1) -}}
{{- $p = append $p "replicaCount: config.store.kind bolt is for one replica: say 1, or use config.store.kind redis" -}}
{{- end -}}
{{- if and $single $v.autoscaling.enabled -}}
{{- $p = append $p "autoscaling.enabled: config.store.kind bolt is for one replica: leave it off" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- $p = append $p "autoscaling.maxReplicas: is less than autoscaling.minReplicas" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (eq (int $v.autoscaling.targetCPUUtilizationPercentage) 0) (not $v.autoscaling.signLatency.enabled) -}}
{{- $p = append $p "autoscaling: nothing is left to scale by: set targetCPUUtilizationPercentage or signLatency.enabled" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.targetCPUUtilizationPercentage) 0) (not (dig "requests" "cpu" "" $v.resources)) -}}
{{- $p = append $p "resources.requests.cpu: is needed to scale by CPU: autoscaling.targetCPUUtilizationPercentage is a part of it" -}}
{{- end -}}

{{- if and (eq $c.custody.kind "local") (eq $c.store.kind "redis") -}}
{{- $p = append $p "config.custody.kind: local with config.store.kind redis: replicas do not share a volume of keys: say vault, or config.store.kind bolt for one replica" -}}
{{- end -}}
{{- if eq $c.custody.kind "vault" -}}
{{- if not $c.custody.vault.addresses -}}
{{- $p = append $p "config.custody.vault.addresses: name Vault's URL, for example https://vault.example.com:8200" -}}
{{- end -}}
{{- range $i, $address := $c.custody.vault.addresses -}}
{{- if and (hasPrefix "http://" $address) (not $c.insecure.vault) -}}
{{- $p = append $p (printf "config.custody.vault.addresses.%d: needs https, or config.insecure.vault if something in between encrypts" $i) -}}
{{- end -}}
{{- end -}}
{{- $method := $c.custody.vault.auth.method -}}
{{- if and (eq $method "kubernetes") (not $c.custody.vault.auth.role) -}}
{{- $p = append $p "config.custody.vault.auth.role: is needed with method kubernetes: the role that the service account is bound to" -}}
{{- end -}}
{{- if and (eq $method "approle") (not $s.vault.approle.secretName) -}}
{{- $p = append $p "secrets.vault.approle.secretName: is needed with config.custody.vault.auth.method approle: the Secret with role id and secret id" -}}
{{- end -}}
{{- if and (eq $method "token") (not $s.vault.token.secretName) -}}
{{- $p = append $p "secrets.vault.token.secretName: is needed with config.custody.vault.auth.method token: the Secret with the token" -}}
{{- end -}}
{{- if $s.custodyPassphrase.secretName -}}
{{- $p = append $p "secrets.custodyPassphrase.secretName: is for config.custody.kind local: remove it" -}}
{{- end -}}
{{- else if $c.custody.vault.addresses -}}
{{- $p = append $p "config.custody.kind: say vault, or remove config.custody.vault.addresses, which local does not use" -}}
{{- end -}}

{{- $r := $c.store.redis -}}
{{- if eq $c.store.kind "redis" -}}
{{- if not $r.addresses -}}
{{- $p = append $p "config.store.redis.addresses: name host:port, for example redis.example.com:6379" -}}
{{- end -}}
{{- range $i, $address := $r.addresses -}}
{{- $port := regexFind "[0-9]+$" $address | int -}}
{{- if or (lt $port 1) (gt $port 65535) -}}
{{- $p = append $p (printf "config.store.redis.addresses.%d: %d is no port" $i $port) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $r.mode "standalone") (gt (len (default list $r.addresses)) 1) -}}
{{- $p = append $p "config.store.redis.addresses: standalone has one: say mode sentinel or cluster, or keep one" -}}
{{- end -}}
{{- if ne (eq $r.mode "sentinel") (ne $r.masterName "") -}}
{{- $p = append $p "config.store.redis.masterName: is needed with mode sentinel, and only there: what the sentinels call the master" -}}
{{- end -}}
{{- if and (ne $r.mode "standalone") (eq (int $r.acks) 0) -}}
{{- $p = append $p (printf "config.store.redis.acks: 0 is for a Redis without copies, and mode %s has some: say how many must have a kill before it counts, a majority of all servers less the master: 1 of one or two copies" $r.mode) -}}
{{- end -}}
{{- if and (not $r.tls.enabled) (not $c.insecure.redis) -}}
{{- $p = append $p "config.store.redis.tls.enabled: is needed, or config.insecure.redis if something in between encrypts" -}}
{{- end -}}
{{- if and (not $r.tls.enabled) (or $s.redis.ca.secretName $s.redis.ca.configMapName $s.redis.certificate.secretName $r.tls.serverName) -}}
{{- $p = append $p "config.store.redis.tls.enabled: say true, or remove secrets.redis.ca, secrets.redis.certificate and config.store.redis.tls.serverName, which are not used without it" -}}
{{- end -}}
{{- if and $r.username (not $s.redis.password.secretName) -}}
{{- $p = append $p "secrets.redis.password.secretName: is needed with config.store.redis.username: the Secret with its password" -}}
{{- end -}}
{{- if and $r.sentinelUsername (not $s.redis.sentinelPassword.secretName) -}}
{{- $p = append $p "secrets.redis.sentinelPassword.secretName: is needed with config.store.redis.sentinelUsername: the Secret with its password" -}}
{{- end -}}
{{- if and (ne $r.mode "sentinel") (or $r.sentinelUsername $s.redis.sentinelPassword.secretName) -}}
{{- $p = append $p "config.store.redis.sentinelUsername: and secrets.redis.sentinelPassword are for mode sentinel: remove them" -}}
{{- end -}}
{{- $administers := false -}}
{{- range $c.admin.tokens -}}{{- if eq .role "admin" -}}{{- $administers = true -}}{{- end -}}{{- end -}}
{{- if not $administers -}}
{{- $p = append $p "config.admin.tokens: name at least one of role admin, as `signer token create --name NAME --role admin` prints it: without one nobody can operate the signer" -}}
{{- end -}}
{{- else if $r.addresses -}}
{{- $p = append $p "config.store.kind: say redis, or remove config.store.redis.addresses, which bolt does not use" -}}
{{- end -}}

{{- range $name, $from := dict "secrets.vault.ca" $s.vault.ca "secrets.redis.ca" $s.redis.ca "secrets.tracing.ca" $s.tracing.ca "probe.ca" $v.probe.ca -}}
{{- if and $from.secretName $from.configMapName -}}
{{- $p = append $p (printf "%s: name secretName or configMapName, not both" $name) -}}
{{- end -}}
{{- end -}}

{{- with $c.tracing.endpoint -}}
{{- if not (regexMatch "^([A-Za-z0-9._-]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}(/[^/ @?#][^ @?#]*)?$" .) -}}
{{- $p = append $p "config.tracing.endpoint: write host:port without a scheme, for example otel-collector.observability:4317" -}}
{{- else if and (contains "/" .) (eq $c.tracing.protocol "grpc") -}}
{{- $p = append $p "config.tracing.endpoint: grpc has no path: write host:port, or say protocol http" -}}
{{- end -}}
{{- end -}}

{{- $published := or $v.ingress.enabled $v.gateway.enabled -}}
{{- if and $published $v.networkPolicy.enabled (not $v.networkPolicy.ingress.public) -}}
{{- $p = append $p "networkPolicy.ingress.public: name the pods of the ingress controller or the gateway, for example - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}: nothing else gets in" -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.ingress.metrics) -}}
{{- $p = append $p "networkPolicy.ingress.metrics: name Prometheus's pods, for example - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}: nothing else gets in" -}}
{{- end -}}
{{- if and $published (not (include "pact-signer.hosts" . | fromYamlArray)) -}}
{{- $p = append $p "config.issuers: none has an https URL, so there is no host for ingress or gateway" -}}
{{- end -}}
{{- if and $v.ingress.grpc.enabled (not $v.ingress.enabled) -}}
{{- $p = append $p "ingress.grpc.enabled: needs ingress.enabled" -}}
{{- end -}}
{{- if and $v.ingress.grpc.enabled (not (include "pact-signer.exposed" (dict "root" . "face" "grpc"))) -}}
{{- $p = append $p "ingress.grpc.enabled: gRPC listens inside the pod only: set listeners.grpc.tls.secretName, or config.insecure.grpc if something in between encrypts" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
{{- $p = append $p "gateway.parentRefs: name the Gateway: - name: public, with its namespace" -}}
{{- end -}}

{{- $alerts := .Files.Get "files/alerts.yaml" -}}
{{- range $v.prometheusRule.disabled -}}
{{- if not (contains (printf "alert: %s\n" .) $alerts) -}}
{{- $p = append $p (printf "prometheusRule.disabled: there is no alert %s" .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (gt (include "pact-signer.seconds" $v.serviceMonitor.scrapeTimeout | float64) (include "pact-signer.seconds" $v.serviceMonitor.interval | float64)) -}}
{{- $p = append $p "serviceMonitor.scrapeTimeout: is more than serviceMonitor.interval" -}}
{{- end -}}

{{- if and $v.probe.issuer $c.issuers -}}
{{- $ours := list -}}
{{- range $c.issuers -}}{{- $ours = append $ours .url -}}{{- end -}}
{{- if not (has $v.probe.issuer $ours) -}}
{{- $p = append $p (printf "probe.issuer: %s is none of config.issuers" $v.probe.issuer) -}}
{{- end -}}
{{- end -}}
{{- if $v.probe.enabled -}}
{{- if not (or $v.probe.credential.secretName $v.probe.deviceKey.secretName) -}}
{{- $p = append $p "probe.credential.secretName: is needed with probe.enabled, or probe.deviceKey.secretName: what the prober signs with" -}}
{{- end -}}
{{- end -}}
{{- if and $v.probe.credential.secretName $v.probe.deviceKey.secretName -}}
{{- $p = append $p "probe.credential.secretName: or probe.deviceKey.secretName, not both" -}}
{{- end -}}
{{- if and $v.probe.adminToken.secretName (not (include "pact-signer.exposed" (dict "root" . "face" "admin"))) -}}
{{- $p = append $p "probe.adminToken.secretName: admin listens inside the pod only: set listeners.admin.tls.secretName, or remove this" -}}
{{- end -}}

{{- if $p -}}
{{- fail (printf "the values do not fit together:\n  %s" (join "\n  " $p)) -}}
{{- end -}}
{{- end -}}

{{/* An issuer's signer URLs, by what they are called in a complaint. */}}
{{- define "pact-signer.signerUrls" -}}
{{- range $j, $url := .signerUrls }}
signerUrls.{{ $j }}: {{ $url | quote }}
{{- end }}
{{- end -}}
