{{/* The configuration that follows from other values, `config` laid over it; a mapping in YAML. */}}
{{- define "outrider.config" -}}
{{- $config := dict "registry" (dict "kind" "ray") -}}
{{- if include "outrider.hasRedis" . -}}
{{- $_ := set $config "store" (dict "kind" "redis" "url" (include "outrider.storeUrl" .)) -}}
{{- end -}}
{{- $security := dict -}}
{{- if .Values.security.clusterToken.enabled -}}
{{- $_ := set $security "cluster_token_file" "/etc/outrider/cluster/token" -}}
{{- end -}}
{{- if .Values.security.apiKeys.existingSecret -}}
{{- $_ := set $security "api_keys_file" "/etc/outrider/keys/keys.yaml" -}}
{{- end -}}
{{- with .Values.security.internalTls -}}
{{- if .existingSecret -}}
{{- $files := dict "certificate" "/etc/outrider/tls/tls.crt" "key" "/etc/outrider/tls/tls.key" "ca" "/etc/outrider/tls/ca.crt" -}}
{{- $_ := set $security "internal_tls" (set $files "server_name" .serverName) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "security" $security -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{/* Without a password: that is read from a file. Sessions have a database of their own, beside Ray's. */}}
{{- define "outrider.storeUrl" -}}
{{- $file := ternary "password_file=/etc/outrider/redis/password" "" (ne (include "outrider.redisSecret" .) "") -}}
{{- if .Values.redis.inCluster.enabled -}}
redis://{{ include "outrider.redis" . }}:6379/1?{{ $file }}
{{- else -}}
{{- $url := .Values.redis.external.url -}}
{{- with .Values.redis.auth.username -}}
{{- $url = regexReplaceAll "^([a-z+]+://)" $url (printf "${1}%s@" (urlquery .)) -}}
{{- end -}}
{{- $url }}{{ if $file }}{{ ternary "&" "?" (contains "?" $url) }}{{ $file }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* `pools`; without autoscaling each has one size, min_replicas. A mapping in YAML. */}}
{{- define "outrider.pools" -}}
{{- $pools := deepCopy .Values.pools -}}
{{- if not .Values.autoscaling.enabled -}}
{{- range $pool := concat (list $pools.gateway $pools.verifier) (values (default dict $pools.drafters)) -}}
{{- $size := max 1 (int (dig "min_replicas" 1 $pool)) -}}
{{- $_ := set $pool "min_replicas" $size -}}
{{- $_ := set $pool "max_replicas" $size -}}
{{- end -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{/* What Ray Serve deploys: the same form as deploy/serve. */}}
{{- define "outrider.serveConfig" -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
  port: {{ .Values.serve.httpPort }}
  keep_alive_timeout_s: {{ .Values.serve.keepAliveSeconds }}
grpc_options:
  port: {{ .Values.serve.grpcPort }}
  grpc_servicer_functions:
    - outrider.rayserve.servicing.add_generation
applications:
  - name: outrider
    route_prefix: /
    import_path: outrider.rayserve:build
    args:
      config:
        {{- include "outrider.config" . | nindent 8 }}
      pools:
        {{- include "outrider.pools" . | nindent 8 }}
    {{- if .Values.autoscaling.enabled }}
    autoscaling_policy:
      policy_function: outrider.rayserve.autoscaling:ApplicationPolicy
      policy_kwargs:
        {{- toYaml .Values.autoscaling.settings | nindent 8 }}
    {{- end }}
    {{- with .Values.serve.deployments }}
    deployments:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/* Ends with what is wrong between values that JSON schema cannot compare. */}}
{{- define "outrider.check" -}}
{{- $problems := list -}}
{{- $tags := dict "image" .Values.image "redis.inCluster.image" .Values.redis.inCluster.image -}}
{{- range $name, $group := .Values.workerGroups -}}
{{- if $group.image -}}{{- $_ := set $tags (printf "workerGroups.%s.image" $name) $group.image -}}{{- end -}}
{{- end -}}
{{- range $name, $image := $tags -}}
{{- if eq (default "" $image.tag) "latest" -}}
{{- $problems = append $problems (printf "%s.tag: latest changes under your feet: name a fixed one" $name) -}}
{{- end -}}
{{- end -}}
{{- $groups := .Values.workerGroups -}}
{{- range $name, $group := $groups -}}
{{- if gt (int $group.minReplicas) (int $group.maxReplicas) -}}
{{- $problems = append $problems (printf "workerGroups.%s.minReplicas (%v) is above maxReplicas (%v)" $name $group.minReplicas $group.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- $pools := dict "gateway" .Values.pools.gateway "verifier" .Values.pools.verifier -}}
{{- range $name, $pool := .Values.pools.drafters -}}
{{- $_ := set $pools (printf "drafters.%s" $name) $pool -}}
{{- if not (hasKey (default dict $.Values.config.drafters) $name) -}}
{{- $problems = append $problems (printf "pools.drafters.%s: config.drafters has no %s" $name $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- if gt (int (default 1 $pool.min_replicas)) (int (default 1 $pool.max_replicas)) -}}
{{- $problems = append $problems (printf "pools.%s.min_replicas (%v) is above max_replicas (%v)" $name $pool.min_replicas $pool.max_replicas) -}}
{{- end -}}
{{- $fitting := list -}}
{{- range $group := $groups -}}
{{- $fits := true -}}
{{- range $key, $value := $pool.labels -}}
{{- if ne (toString (get (default dict $group.rayLabels) $key)) (toString $value) -}}{{- $fits = false -}}{{- end -}}
{{- end -}}
{{- $gpus := index (default dict (default dict $group.resources).limits) "nvidia.com/gpu" | default 0 -}}
{{- if gt (float64 (default 0 $pool.gpus)) (float64 $gpus) -}}{{- $fits = false -}}{{- end -}}
{{- if $fits -}}{{- $fitting = append $fitting $group -}}{{- end -}}
{{- end -}}
{{- if not $fitting -}}
{{- $problems = append $problems (printf "pools.%s runs nowhere: no worker group has rayLabels %s and %v nvidia.com/gpu" $name (toJson (default dict $pool.labels)) (default 0 $pool.gpus)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.redis.inCluster.enabled .Values.redis.external.url -}}
{{- $problems = append $problems "redis.external.url is set, and redis.inCluster.enabled too: choose one" -}}
{{- end -}}
{{- if (regexMatch "://[^/?]*:[^/?]*@" .Values.redis.external.url) -}}
{{- $problems = append $problems "redis.external.url holds a password: put it into a secret, redis.auth.existingSecret" -}}
{{- end -}}
{{- if and .Values.redis.external.cidr (not .Values.redis.external.url) -}}
{{- $problems = append $problems "redis.external.cidr says where an external Redis is, but redis.external.url is empty" -}}
{{- end -}}
{{- if and (eq .Values.upgrade.type "NewClusterWithIncrementalUpgrade") (not .Values.upgrade.incremental) -}}
{{- $problems = append $problems "upgrade.incremental must be set for NewClusterWithIncrementalUpgrade" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- $problems = append $problems "ingress.host must be set where ingress.enabled is" -}}
{{- end -}}
{{- if and .Values.ingress.enabled .Values.ingress.grpc.enabled (not .Values.ingress.grpc.host) -}}
{{- $problems = append $problems "ingress.grpc.host must be set where ingress.grpc.enabled is" -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n  %s" (join "\n  " $problems)) -}}
{{- end -}}
{{- end -}}
