{{/* signer.yaml. Every key of internal/config stands here, in values.yaml or in neither for a reason that test/deploy names. */}}
{{- define "pact-signer.config" -}}
{{- $c := .Values.config -}}
{{- $s := .Values.secrets -}}
{{- $run := "/run/secrets/pact-signer" -}}
data: /data/pact-signer
listeners:
  {{- range $face := list "public" "grpc" "admin" "ops" }}
  {{- $listener := index $.Values.listeners $face }}
  {{- $host := ternary "" "127.0.0.1" (not (not (include "pact-signer.exposed" (dict "root" $ "face" $face)))) }}
  {{ $face }}:
    address: {{ printf "%s:%d" $host (int $listener.port) | quote }}
    {{- if $listener.tls.secretName }}
    certFile: {{ $run }}/{{ $face }}/tls.crt
    keyFile: {{ $run }}/{{ $face }}/tls.key
    {{- end }}
  {{- end }}
insecure:
  admin: {{ $c.insecure.admin }}
  grpc: {{ $c.insecure.grpc }}
  openEnrolment: {{ $c.insecure.openEnrolment }}
  vault: {{ $c.insecure.vault }}
  redis: {{ $c.insecure.redis }}
{{- with $c.trustedProxies }}
trustedProxies:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
issuers:
  {{- range $c.issuers }}
  - url: {{ .url | quote }}
    {{- with .signerUrls }}
    signerUrls:
      {{- range . }}
      - {{ . | quote }}
      {{- end }}
    {{- end }}
    {{- with .algorithm }}
    algorithm: {{ . }}
    {{- end }}
    {{- with .tokenTTL }}
    tokenTTL: {{ . }}
    {{- end }}
    {{- with .enrolment }}
    enrolment: {{ . }}
    {{- end }}
    {{- with .maxDevices }}
    maxDevices: {{ int64 . }}
    {{- end }}
    {{- with .limits }}
    limits:
      {{- range $name, $limit := . }}
      {{ $name }}:
        {{- range $key, $value := $limit }}
        {{ $key }}: {{ if eq $key "burst" }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
        {{- end }}
      {{- end }}
    {{- end }}
    {{- with .rotation }}
    rotation:
      {{- range $key, $value := . }}
      {{ $key }}: {{ if eq (toString $value) "0" }}0s{{ else }}{{ $value }}{{ end }}
      {{- end }}
    {{- end }}
  {{- end }}
custody:
  kind: {{ $c.custody.kind }}
  {{- if eq $c.custody.kind "vault" }}
  vault:
    addresses:
      {{- range $c.custody.vault.addresses }}
      - {{ . | quote }}
      {{- end }}
    {{- with $c.custody.vault.namespace }}
    namespace: {{ . | quote }}
    {{- end }}
    {{- if or $s.vault.ca.secretName $s.vault.ca.configMapName }}
    caFile: {{ $run }}/vault/ca.crt
    {{- end }}
    transit: {{ $c.custody.vault.transit | quote }}
    kv: {{ $c.custody.vault.kv | quote }}
    prefix: {{ $c.custody.vault.prefix | quote }}
    wrapped: {{ $c.custody.vault.wrapped }}
    auth:
      method: {{ $c.custody.vault.auth.method }}
      {{- with $c.custody.vault.auth.mount }}
      mount: {{ . | quote }}
      {{- end }}
      {{- if eq $c.custody.vault.auth.method "kubernetes" }}
      role: {{ $c.custody.vault.auth.role | quote }}
      jwtFile: {{ $run }}/vault/token
      {{- else if eq $c.custody.vault.auth.method "approle" }}
      roleIdFile: {{ $run }}/vault/role-id
      secretIdFile: {{ $run }}/vault/secret-id
      {{- else }}
      tokenFile: {{ $run }}/vault/token
      {{- end }}
  {{- else if $s.custodyPassphrase.secretName }}
  passphraseFile: {{ $run }}/custody/passphrase
  {{- end }}
store:
  kind: {{ $c.store.kind }}
  {{- if eq $c.store.kind "redis" }}
  redis:
    mode: {{ $c.store.redis.mode }}
    addresses:
      {{- range $c.store.redis.addresses }}
      - {{ . | quote }}
      {{- end }}
    {{- with $c.store.redis.masterName }}
    masterName: {{ . | quote }}
    {{- end }}
    {{- with $c.store.redis.username }}
    username: {{ . | quote }}
    {{- end }}
    {{- if $s.redis.password.secretName }}
    passwordFile: {{ $run }}/redis/password
    {{- end }}
    {{- with $c.store.redis.sentinelUsername }}
    sentinelUsername: {{ . | quote }}
    {{- end }}
    {{- if $s.redis.sentinelPassword.secretName }}
    sentinelPasswordFile: {{ $run }}/redis/sentinel-password
    {{- end }}
    tls:
      enabled: {{ $c.store.redis.tls.enabled }}
      {{- if or $s.redis.ca.secretName $s.redis.ca.configMapName }}
      caFile: {{ $run }}/redis/ca.crt
      {{- end }}
      {{- if $s.redis.certificate.secretName }}
      certFile: {{ $run }}/redis/tls.crt
      keyFile: {{ $run }}/redis/tls.key
      {{- end }}
      {{- with $c.store.redis.tls.serverName }}
      serverName: {{ . | quote }}
      {{- end }}
    prefix: {{ $c.store.redis.prefix | quote }}
    acks: {{ int $c.store.redis.acks }}
  {{- end }}
{{- with $c.admin.tokens }}
admin:
  tokens:
    {{- range . }}
    - name: {{ .name | quote }}
      role: {{ .role }}
      hash: {{ .hash }}
    {{- end }}
{{- end }}
log:
  level: {{ $c.log.level }}
  format: {{ $c.log.format }}
{{- if $c.tracing.endpoint }}
tracing:
  endpoint: {{ $c.tracing.endpoint | quote }}
  protocol: {{ $c.tracing.protocol }}
  insecure: {{ $c.tracing.insecure }}
  {{- if or $s.tracing.ca.secretName $s.tracing.ca.configMapName }}
  caFile: {{ $run }}/tracing/ca.crt
  {{- end }}
  {{- if $s.tracing.headers.secretName }}
  headersFile: {{ $run }}/tracing/headers
  {{- end }}
  sampleRatio: {{ $c.tracing.sampleRatio }}
  trustParent: {{ $c.tracing.trustParent }}
{{- end }}
drainTimeout: {{ $c.drainTimeout }}
{{- end -}}
