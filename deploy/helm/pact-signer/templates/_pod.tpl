{{/* The pod of a signer. */}}
{{- define "pact-signer.pod" -}}
{{- $single := include "pact-signer.single" . -}}
{{- $ops := include "pact-signer.scheme" (dict "root" . "face" "ops") | upper -}}
metadata:
  labels:
    {{- include "pact-signer.podLabels" (dict "root" . "component" "signer") | nindent 4 }}
  annotations:
    kubectl.kubernetes.io/default-container: signer
    # A change of the configuration rolls the replicas.
    checksum/config: {{ include "pact-signer.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "pact-signer.serviceAccountName" . }}
  {{- include "pact-signer.podCommon" . | nindent 2 }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $single }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "pact-signer.selector" (dict "root" $ "component" "signer") | nindent 10 }}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
    {{- end }}
  {{- end }}
  # preStopSeconds, then drainTimeout, then what is left to close.
  terminationGracePeriodSeconds: {{ add (int .Values.preStopSeconds) (include "pact-signer.seconds" .Values.config.drainTimeout | float64 | ceil | int) 5 }}
  containers:
    - name: signer
      image: {{ include "pact-signer.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/pact-signer/signer.yaml]
      {{- $loopback := not (include "pact-signer.exposed" (dict "root" . "face" "admin")) }}
      {{- if or $loopback $single .Values.extraEnv }}
      env:
        {{- if $loopback }}
        # For pactctl, which is in the image: kubectl exec POD -- pactctl …
        - name: PACT_SERVER
          value: http://127.0.0.1:{{ int .Values.listeners.admin.port }}
        {{- end }}
        {{- if $single }}
        - name: PACT_TOKEN_FILE
          value: /data/pact-signer/admin-token
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        {{- range $face := list "public" "grpc" "admin" "ops" }}
        {{- if include "pact-signer.exposed" (dict "root" $ "face" $face) }}
        - name: {{ $face }}
          containerPort: {{ int (index $.Values.listeners $face).port }}
        {{- end }}
        {{- end }}
      # /livez is 200 as long as the process answers: a restart mends neither Vault nor Redis. /readyz says whether this replica
      # may sign.
      startupProbe:
        httpGet: {path: /livez, port: ops, scheme: {{ $ops }}}
        periodSeconds: {{ int .Values.probes.startup.periodSeconds }}
        failureThreshold: {{ int .Values.probes.startup.failureThreshold }}
      readinessProbe:
        httpGet: {path: /readyz, port: ops, scheme: {{ $ops }}}
        periodSeconds: {{ int .Values.probes.readiness.periodSeconds }}
        failureThreshold: {{ int .Values.probes.readiness.failureThreshold }}
        timeoutSeconds: 2
      livenessProbe:
        httpGet: {path: /livez, port: ops, scheme: {{ $ops }}}
        periodSeconds: {{ int .Values.probes.liveness.periodSeconds }}
        failureThreshold: {{ int .Values.probes.liveness.failureThreshold }}
        timeoutSeconds: 5
      {{- if .Values.preStopSeconds }}
      lifecycle:
        preStop:
          # Serves on until no balancer sends it anything new. Then SIGTERM: it finishes what is in flight and leaves the fleet.
          sleep:
            seconds: {{ int .Values.preStopSeconds }}
      {{- end }}
      securityContext:
        {{- include "pact-signer.securityContext" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "pact-signer.volumeMounts" . | nindent 8 }}
        {{- if $single }}
        - name: data
          mountPath: /data
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "pact-signer.volumes" . | nindent 4 }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
