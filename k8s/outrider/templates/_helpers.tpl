{{/* Names and labels. KubeRay adds up to 30 characters to the RayService's name, so ours stays short. */}}
{{- define "outrider.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- define "outrider.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains (include "outrider.name" .) .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "outrider.name" .) | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outrider.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "outrider.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: outrider
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* What selects pods. KubeRay puts a name of its own on Ray pods, so `name` is not among it. Takes [root, component]. */}}
{{- define "outrider.selector" -}}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "outrider.image" -}}
{{- $image := mergeOverwrite (deepCopy .Values.image) (default dict .own) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag }}
{{- end -}}
{{- end -}}

{{- define "outrider.serveService" -}}
{{ include "outrider.fullname" . }}-serve-svc
{{- end -}}

{{- define "outrider.redis" -}}
{{ include "outrider.fullname" . }}-redis
{{- end -}}

{{/* "true" if there is a Redis, of ours or another one. */}}
{{- define "outrider.hasRedis" -}}
{{- if or .Values.redis.inCluster.enabled .Values.redis.external.url -}}true{{- end -}}
{{- end -}}

{{/* "true" if Ray keeps its state in it. */}}
{{- define "outrider.hasFaultTolerance" -}}
{{- if and .Values.gcsFaultTolerance.enabled (or .Values.redis.inCluster.enabled .Values.redis.external.gcsAddress) -}}true{{- end -}}
{{- end -}}

{{- define "outrider.generatedSecret" -}}
{{ include "outrider.fullname" . }}-generated
{{- end -}}

{{/* The secret with Redis' password; empty: it has none. */}}
{{- define "outrider.redisSecret" -}}
{{- if .Values.redis.auth.existingSecret -}}
{{ .Values.redis.auth.existingSecret }}
{{- else if .Values.redis.inCluster.enabled -}}
{{ include "outrider.generatedSecret" . }}
{{- end -}}
{{- end -}}

{{- define "outrider.redisPasswordKey" -}}
{{- if .Values.redis.auth.existingSecret -}}{{ .Values.redis.auth.passwordKey }}{{- else -}}redis-password{{- end -}}
{{- end -}}

{{- define "outrider.tokenSecret" -}}
{{ .Values.security.clusterToken.existingSecret | default (include "outrider.generatedSecret" .) }}
{{- end -}}

{{- define "outrider.tokenKey" -}}
{{- if .Values.security.clusterToken.existingSecret -}}{{ .Values.security.clusterToken.key }}{{- else -}}cluster-token{{- end -}}
{{- end -}}

{{/* Restricted pod security. */}}
{{- define "outrider.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .runAsUser }}
runAsGroup: {{ .runAsGroup }}
fsGroup: {{ .fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "outrider.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}
