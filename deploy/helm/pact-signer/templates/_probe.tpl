{{/* What `pactctl probe` is told in either pod. */}}
{{- define "pact-signer.probeArgs" -}}
{{- $name := include "pact-signer.fullname" . -}}
{{- $public := include "pact-signer.scheme" (dict "root" . "face" "public") -}}
- probe
- {{ printf "--issuer=%s" (.Values.probe.issuer | default (first .Values.config.issuers).url) | quote }}
# Past the ingress: sockets go to the Service, while URL, Host and audience stay the issuer's.
- --connect-to={{ $public }}://{{ $name }}:{{ int .Values.listeners.public.port }}
- --replicas={{ $public }}://{{ $name }}-replicas:{{ int .Values.listeners.public.port }}
{{- if include "pact-signer.exposed" (dict "root" . "face" "grpc") }}
- --grpc={{ include "pact-signer.scheme" (dict "root" . "face" "grpc") }}://{{ $name }}-grpc:{{ int .Values.listeners.grpc.port }}
{{- end }}
- {{ printf "--audience=%s" .Values.probe.audience | quote }}
- {{ printf "--killed-audience=%s" .Values.probe.killedAudience | quote }}
- --deadline={{ .Values.probe.deadline }}
{{- if or .Values.probe.ca.secretName .Values.probe.ca.configMapName }}
- --signer-ca-file=/run/secrets/probe/ca.crt
{{- end }}
{{- if .Values.probe.adminToken.secretName }}
- --server={{ include "pact-signer.scheme" (dict "root" . "face" "admin") }}://{{ $name }}-admin:{{ int .Values.listeners.admin.port }}
- --token-file=/run/secrets/probe/admin-token
{{- if not .Values.listeners.admin.tls.secretName }}
- --insecure-http
{{- else if or .Values.probe.ca.secretName .Values.probe.ca.configMapName }}
- --ca-file=/run/secrets/probe/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{/* Its files, besides what only one of the pods has. */}}
{{- define "pact-signer.probeSources" -}}
{{- $p := .Values.probe -}}
{{- include "pact-signer.projected" (dict "from" $p.ca "items" (dict $p.ca.key "ca.crt")) }}
{{- include "pact-signer.projected" (dict "from" $p.adminToken "items" (dict $p.adminToken.key "admin-token")) }}
{{- include "pact-signer.projected" (dict "from" $p.credential "items" (dict $p.credential.key "credential")) }}
{{- include "pact-signer.projected" (dict "from" $p.deviceKey "items" (dict $p.deviceKey.key "device.key")) }}
{{- end -}}
