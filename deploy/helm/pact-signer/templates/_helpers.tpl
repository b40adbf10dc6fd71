{{- define "pact-signer.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/* Release and chart name, once if the one holds the other. Short enough for what is appended to it. */}}
{{- define "pact-signer.fullname" -}}
{{- $name := include "pact-signer.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if gt (len $full) 40 -}}
{{- printf "%s-%s" ($full | trunc 31 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end -}}

{{/* What tells the pods of a component from all others: (dict "root" . "component" "signer"). It never changes: a Deployment's cannot. */}}
{{- define "pact-signer.selector" -}}
app.kubernetes.io/name: {{ include "pact-signer.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of a pod: without versions, which would roll the pods of a chart that only says something else. */}}
{{- define "pact-signer.podLabels" -}}
{{ include "pact-signer.selector" . }}
{{- with merge (deepCopy .root.Values.podLabels) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "pact-signer.labels" -}}
{{ include "pact-signer.selector" . }}
app.kubernetes.io/version: {{ regexReplaceAll "[^A-Za-z0-9]+$" (include "pact-signer.version" .root | trunc 63) "" | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "pact-signer.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "pact-signer.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "pact-signer.version" -}}
{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{- define "pact-signer.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (include "pact-signer.version" .) -}}
{{- end -}}
{{- end -}}

{{/* Not empty where one process has the records, and with custody.kind local the keys, for itself. */}}
{{- define "pact-signer.single" -}}
{{- if eq .Values.config.store.kind "bolt" -}}true{{- end -}}
{{- end -}}

{{/* Not empty if a face is beyond the pod: (dict "root" . "face" "admin"). Admin and gRPC are only with TLS, or if it is asked for. */}}
{{- define "pact-signer.exposed" -}}
{{- $listener := index .root.Values.listeners .face -}}
{{- if or (has .face (list "public" "ops")) $listener.tls.secretName (index .root.Values.config.insecure .face) -}}true{{- end -}}
{{- end -}}

{{/* The probe's pods, permanent and of helm test, as a selector. */}}
{{- define "pact-signer.probers" -}}
matchLabels:
  app.kubernetes.io/name: {{ include "pact-signer.name" . }}
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [probe, test]}
{{- end -}}

{{/* http or https, by what a face speaks. */}}
{{- define "pact-signer.scheme" -}}
{{- $listener := index .root.Values.listeners .face -}}
{{- if $listener.tls.secretName }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* Hosts of the URLs of all issuers, each once and without port, as a YAML list; those on loopback are nobody's. */}}
{{- define "pact-signer.hosts" -}}
{{- $hosts := list -}}
{{- range .Values.config.issuers -}}
{{- range prepend (.signerUrls | default list) .url -}}
{{- $host := regexReplaceAll "^https?://" (toString .) "" | regexFind "^[^:/]+" -}}
{{- if hasPrefix "https://" (toString .) -}}{{- $hosts = append $hosts $host -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $hosts | toYaml -}}
{{- end -}}

{{/* A duration of Go's, in seconds. */}}
{{- define "pact-signer.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-z]+" (toString .) -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (index $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "pact-signer.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.podSecurityContext.runAsUser }}
runAsGroup: {{ int64 .Values.podSecurityContext.runAsGroup }}
fsGroup: {{ int64 .Values.podSecurityContext.fsGroup }}
# Always would give the group rights on the keys at each start, and the signer refuses keys that others may read.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "pact-signer.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
{{- end -}}

{{/* What all pods have in common, but for the containers. */}}
{{- define "pact-signer.podCommon" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "pact-signer.podSecurityContext" . | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An entry of a projected volume: (dict "from" secrets.x "items" (dict key file)). */}}
{{- define "pact-signer.projected" -}}
{{- if .from.secretName }}
- secret:
    name: {{ .from.secretName }}
    items:
      {{- range $key, $path := .items }}
      - key: {{ $key }}
        path: {{ $path }}
      {{- end }}
{{- else if .from.configMapName }}
- configMap:
    name: {{ .from.configMapName }}
    items:
      {{- range $key, $path := .items }}
      - key: {{ $key }}
        path: {{ $path }}
      {{- end }}
{{- end }}
{{- end -}}

{{/* The files of secrets that the configuration names, as sources of one projected volume. It is updated when a Secret is. */}}
{{- define "pact-signer.secretSources" -}}
{{- $s := .Values.secrets -}}
{{- $c := .Values.config -}}
{{- if eq $c.custody.kind "vault" }}
{{- include "pact-signer.projected" (dict "from" $s.vault.ca "items" (dict $s.vault.ca.key "vault/ca.crt")) }}
{{- if eq $c.custody.vault.auth.method "kubernetes" }}
- serviceAccountToken:
    path: vault/token
    audience: {{ .Values.serviceAccount.vaultToken.audience | quote }}
    expirationSeconds: {{ int64 .Values.serviceAccount.vaultToken.expirationSeconds }}
{{- else if eq $c.custody.vault.auth.method "approle" }}
{{- include "pact-signer.projected" (dict "from" $s.vault.approle "items" (dict $s.vault.approle.roleIdKey "vault/role-id" $s.vault.approle.secretIdKey "vault/secret-id")) }}
{{- else }}
{{- include "pact-signer.projected" (dict "from" $s.vault.token "items" (dict $s.vault.token.key "vault/token")) }}
{{- end }}
{{- else }}
{{- include "pact-signer.projected" (dict "from" $s.custodyPassphrase "items" (dict $s.custodyPassphrase.key "custody/passphrase")) }}
{{- end }}
{{- if eq $c.store.kind "redis" }}
{{- include "pact-signer.projected" (dict "from" $s.redis.password "items" (dict $s.redis.password.key "redis/password")) }}
{{- include "pact-signer.projected" (dict "from" $s.redis.sentinelPassword "items" (dict $s.redis.sentinelPassword.key "redis/sentinel-password")) }}
{{- include "pact-signer.projected" (dict "from" $s.redis.ca "items" (dict $s.redis.ca.key "redis/ca.crt")) }}
{{- include "pact-signer.projected" (dict "from" $s.redis.certificate "items" (dict "tls.crt" "redis/tls.crt" "tls.key" "redis/tls.key")) }}
{{- end }}
{{- if $c.tracing.endpoint }}
{{- include "pact-signer.projected" (dict "from" $s.tracing.ca "items" (dict $s.tracing.ca.key "tracing/ca.crt")) }}
{{- include "pact-signer.projected" (dict "from" $s.tracing.headers "items" (dict $s.tracing.headers.key "tracing/headers")) }}
{{- end }}
{{- range $face := list "public" "grpc" "admin" "ops" }}
{{- $tls := (index $.Values.listeners $face).tls }}
{{- include "pact-signer.projected" (dict "from" $tls "items" (dict "tls.crt" (printf "%s/tls.crt" $face) "tls.key" (printf "%s/tls.key" $face))) }}
{{- end }}
{{- end -}}

{{/* Volumes of the signer and of init. */}}
{{- define "pact-signer.volumes" -}}
- name: config
  configMap:
    name: {{ include "pact-signer.fullname" . }}-config
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit | quote }}
{{- with include "pact-signer.secretSources" . | trim }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "pact-signer.volumeMounts" -}}
- name: config
  mountPath: /etc/pact-signer
  readOnly: true
{{- if include "pact-signer.secretSources" . | trim }}
- name: secrets
  mountPath: /run/secrets/pact-signer
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}
