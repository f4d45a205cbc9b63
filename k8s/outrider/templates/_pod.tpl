{{/* The pod of a Ray node. Takes [root, "head" or "worker", the values of head or group]. */}}
{{- define "outrider.rayPod" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $own := index . 2 -}}
{{- $values := $root.Values -}}
{{- $head := eq $kind "head" -}}
metadata:
  labels:
    {{- include "outrider.selector" (list $root "ray") | nindent 4 }}
    app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
    app.kubernetes.io/part-of: outrider
  {{- with $own.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not $head }}
  serviceAccountName: {{ include "outrider.fullname" $root }}
  {{- end }}
  # Only Ray's autoscaler, a container that KubeRay adds to the head, speaks with the Kubernetes API: it is handed a token of its own.
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "outrider.podSecurityContext" $values.podSecurity | nindent 4 }}
  terminationGracePeriodSeconds: {{ ternary 30 (add $values.drainSeconds 30) $head }}
  {{- with $own.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $own.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  containers:
    - name: ray-{{ $kind }}
      image: {{ include "outrider.image" (dict "Values" $values "own" $own.image) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      securityContext:
        {{- include "outrider.containerSecurityContext" $root | nindent 8 }}
      ports:
        {{- if $head }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        - {name: as-metrics, containerPort: 44217}
        - {name: dash-metrics, containerPort: 44227}
        {{- end }}
        - {name: metrics, containerPort: 8080}
        - {name: serve, containerPort: {{ $values.serve.httpPort }}}
        - {name: serve-grpc, containerPort: {{ $values.serve.grpcPort }}}
      env:
        - {name: HOME, value: /tmp}
        - {name: OUTRIDER_CACHE, value: /cache}
        # Ray's default, 15, starves replicas beside anything else on the node.
        - {name: RAY_worker_niceness, value: "0"}
        # Or the cluster reports itself to Ray's makers.
        - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
        # Few cores are busy for longer than Serve's 5 s while all start at once.
        - {name: RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S, value: "60"}
        {{- if ($values.config.telemetry | default dict).otlp_endpoint }}
        - {name: RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH, value: "outrider.rayserve.tracing:span_processors"}
        - {name: OTEL_SERVICE_NAME, value: ray-serve}
        - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ $values.config.telemetry.otlp_endpoint | quote }}}
        - {name: RAY_SERVE_TRACING_SAMPLING_RATIO, value: {{ $values.config.telemetry.sample_ratio | default 1.0 | quote }}}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if not $head }}
      lifecycle:
        preStop:
          exec:
            # Serve starts successors elsewhere and drains the replicas here; nothing is lost if it cannot.
            command:
              - /bin/bash
              - -c
              - >-
                ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod is deleted"
                --deadline-remaining-seconds {{ $values.drainSeconds }} && sleep {{ $values.drainSeconds }}
      {{- end }}
      # The agent of the node: raylet, and on the head GCS.
      startupProbe:
        httpGet: {path: /api/healthz, port: 52365}
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /api/healthz, port: 52365}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 12
      readinessProbe:
        {{- if $head }}
        httpGet: {path: /api/healthz, port: 52365}
        {{- else }}
        # Traffic comes to nodes whose Serve proxy answers.
        httpGet: {path: /-/healthz, port: serve}
        {{- end }}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      resources:
        {{- toYaml $own.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: cache, mountPath: /cache}
        {{- if $values.models.existingClaim }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- include "outrider.secretMounts" $root | nindent 8 }}
  volumes:
    - {name: tmp, emptyDir: {}}
    - {name: cache, emptyDir: {sizeLimit: {{ $values.models.cacheSizeLimit }}}}
    {{- with $values.models.existingClaim }}
    - {name: models, persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}}
    {{- end }}
    {{- include "outrider.secretVolumes" $root | nindent 4 }}
    {{- if and $head $values.autoscaler.enabled }}
    - name: api-token
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
          - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
    {{- end }}
{{- end -}}

{{/* Whole folders, not single files: only these are updated when a secret changes. */}}
{{- define "outrider.secretMounts" -}}
{{- if .Values.security.clusterToken.enabled }}
- {name: cluster-token, mountPath: /etc/outrider/cluster, readOnly: true}
{{- end }}
{{- if .Values.security.apiKeys.existingSecret }}
- {name: api-keys, mountPath: /etc/outrider/keys, readOnly: true}
{{- end }}
{{- if .Values.security.internalTls.existingSecret }}
- {name: internal-tls, mountPath: /etc/outrider/tls, readOnly: true}
{{- end }}
{{- if include "outrider.redisSecret" . }}
- {name: redis-password, mountPath: /etc/outrider/redis, readOnly: true}
{{- end }}
{{- end -}}

{{- define "outrider.secretVolumes" -}}
{{- if .Values.security.clusterToken.enabled }}
- name: cluster-token
  secret:
    secretName: {{ include "outrider.tokenSecret" . }}
    defaultMode: 0440
    items: [{key: {{ include "outrider.tokenKey" . }}, path: token}]
{{- end }}
{{- with .Values.security.apiKeys }}
{{- if .existingSecret }}
- name: api-keys
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: keys.yaml}]
{{- end }}
{{- end }}
{{- with .Values.security.internalTls.existingSecret }}
- name: internal-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if include "outrider.redisSecret" . }}
- name: redis-password
  secret:
    secretName: {{ include "outrider.redisSecret" . }}
    defaultMode: 0440
    items: [{key: {{ include "outrider.redisPasswordKey" . }}, path: password}]
{{- end }}
{{- end -}}
