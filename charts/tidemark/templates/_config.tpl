{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The text of a setting's value; an integer that YAML parsed as a float remains an integer. */}}
{{- define "tidemark.setting" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{ printf "%.0f" . | quote }}
{{- else -}}
{{ . | toString | quote }}
{{- end -}}
{{- end -}}

{{/* (list $ component): the settings of the values as JSON. Not with `merge`, which takes false and 0 for missing. */}}
{{- define "tidemark.given" -}}
{{- $root := index . 0 -}}{{- $given := dict -}}
{{- range $config := list $root.Values.config (index $root.Values (index . 1)).config -}}
{{- range $key, $value := $config -}}{{- $_ := set $given $key $value -}}{{- end -}}
{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{/* The settings of a service, (list $ component): the chart's, those of all services, its own; later ones override. */}}
{{- define "tidemark.settings" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- $settings := dict "log.format" "json" -}}
{{- if ne $component "console" -}}
{{- $_ := set $settings "zookeeper.connect" (include "tidemark.zookeeperConnect" $root) -}}
{{- end -}}
{{- if eq $component "console" -}}
{{- $_ := set $settings "bootstrap" (include "tidemark.consoleBootstrap" $root) -}}
{{- $_ := set $settings "console.hosts" (include "tidemark.consoleHosts" $root) -}}
{{- if $root.Values.console.write -}}{{- $_ := set $settings "console.write" "true" -}}{{- end -}}
{{- if include "tidemark.secure" $root -}}
{{- $_ := set $settings "cluster.tls.ca.file" "/etc/tidemark-trust/ca.crt" -}}
{{- end -}}
{{- else if eq $component "broker" -}}
{{- $dirs := list -}}
{{- range $root.Values.broker.logDirs -}}{{- $dirs = append $dirs (printf "/var/lib/tidemark/%s/log" .name) -}}{{- end -}}
{{- $_ := set $settings "log.dirs" (join "," $dirs) -}}
{{- $_ := set $settings "admin.address" (include "tidemark.adminAddress" $root) -}}
{{- $_ := set $settings "log.dirs.trust.boot.id" "false" -}}
{{- $_ := set $settings "offsets.topic.replication.factor" (int $root.Values.topics.replicationFactor) -}}
{{- if ne (int $root.Values.topics.replicationFactor) 3 -}}
{{/* 3 is the default. Pods of 0.1.0 that restart during an upgrade read the new file, and refuse a setting that is new. */}}
{{- $_ := set $settings "transaction.state.log.replication.factor" (int $root.Values.topics.replicationFactor) -}}
{{- end -}}
{{- else if eq $component "admin" -}}
{{- $_ := set $settings "advertised.listeners" (include "tidemark.adminAddress" $root) -}}
{{- $_ := set $settings "default.replication.factor" (int $root.Values.topics.replicationFactor) -}}
{{- $_ := set $settings "default.min.insync.replicas" (int $root.Values.topics.minInsyncReplicas) -}}
{{- end -}}
{{- if and (include "tidemark.secure" $root) (has $component (list "broker" "admin")) -}}
{{- $_ := set $settings "authorization.enabled" $root.Values.security.authorization.enabled -}}
{{- $_ := set $settings "super.users" (include "tidemark.superUsers" $root) -}}
{{- if or $root.Values.security.tokens.serviceAccounts.enabled $root.Values.security.tokens.issuers -}}
{{- $_ := set $settings "tokens.issuers.file" "/etc/tidemark/issuers.yaml" -}}
{{- end -}}
{{- if $root.Values.security.tokens.existingSecret -}}
{{- $_ := set $settings "tokens.file" "/etc/tidemark-tokens/tokens" -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := include "tidemark.given" . | fromJson -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- range $key, $value := $settings }}
{{ $key }}: {{ include "tidemark.setting" $value }}
{{- end }}
{{- end -}}

{{/* The files of settings: one for all brokers, or one for each broker with its own external address. */}}
{{- define "tidemark.configMapData" -}}
{{- if .Values.externalAccess.enabled }}
{{- range $ordinal, $advertised := include "tidemark.externalAddresses" . | fromJsonArray }}
broker-{{ $ordinal }}.yaml: |
  {{- include "tidemark.settings" (list $ "broker") | nindent 2 }}
  advertised.listeners: {{ $advertised | quote }}
{{- end }}
{{- else }}
broker.yaml: |
  {{- include "tidemark.settings" (list . "broker") | nindent 2 }}
{{- end }}
controller.yaml: |
  {{- include "tidemark.settings" (list . "controller") | nindent 2 }}
admin.yaml: |
  {{- include "tidemark.settings" (list . "admin") | nindent 2 }}
{{- if .Values.console.enabled }}
console.yaml: |
  {{- include "tidemark.settings" (list . "console") | nindent 2 }}
{{- end }}
{{- if include "tidemark.secure" . }}
profiles.toml: |
  {{- include "tidemark.profile" . | nindent 2 }}
{{- if or .Values.security.tokens.serviceAccounts.enabled .Values.security.tokens.issuers }}
issuers.yaml: |
  {{- include "tidemark.issuers" . | nindent 2 }}
{{- end }}
{{- with .Values.security.tokens.serviceAccounts.keys }}
service-accounts.json: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The advertised addresses of each broker with an external address, as JSON. */}}
{{- define "tidemark.externalAddresses" -}}
{{- $root := . -}}{{- $found := list -}}
{{- $name := printf "%s-broker" (include "tidemark.fullname" .) -}}
{{- range $ordinal, $host := .Values.externalAccess.hosts -}}
{{- $inside := printf "%s-%d.%s-headless.%s" $name $ordinal $name (include "tidemark.domain" $root) -}}
{{- $found = append $found (include "tidemark.advertised" (list $root "broker" $inside (include "tidemark.brokerExternalAddress" (list $root $ordinal)))) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The first contact of the console: in plain text, or with its users' tokens. */}}
{{- define "tidemark.consoleBootstrap" -}}
{{ include "tidemark.fullname" . }}-bootstrap.{{ include "tidemark.domain" . }}:{{ ternary 9492 9192 (eq "yes" (include "tidemark.secure" .)) }}
{{- end -}}

{{/* The host names of the console: the Service's, and those of the values. */}}
{{- define "tidemark.consoleHosts" -}}
{{- $name := printf "%s-console" (include "tidemark.fullname" .) -}}
{{- $ours := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s" $name (include "tidemark.domain" .)) -}}
{{- concat $ours (.Values.console.hosts | default list) | join "," -}}
{{- end -}}

{{- define "tidemark.brokerExternalAddress" -}}
{{- $root := index . 0 -}}{{- $ordinal := index . 1 -}}
{{- $access := $root.Values.externalAccess -}}
{{- $port := int (include "tidemark.externalPort" (list $root "broker")) -}}
{{- if eq $access.type "NodePort" -}}{{- $port = index $access.nodePorts $ordinal -}}{{- end -}}
{{- include "tidemark.externalAddress" (dict "host" (index $access.hosts $ordinal) "port" $port) -}}
{{- end -}}

{{/* The checksum whose change restarts the pods: (list $ component). */}}
{{- define "tidemark.checksum" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- if and (eq $component "broker") $root.Values.externalAccess.enabled -}}
{{- printf "%s %s" (include "tidemark.settings" .) (include "tidemark.externalAddresses" $root) | sha256sum -}}
{{- else -}}
{{- include "tidemark.settings" . | sha256sum -}}
{{- end -}}
{{- end -}}
