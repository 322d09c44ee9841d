{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Checks name and value of every setting in config, broker.config, controller.config, admin.config and console.config.
files/settings.json is the table of docs/configuration.md. */}}
{{- define "tidemark.checkSettings" -}}
{{- $secure := include "tidemark.secure" . -}}
{{- $table := .Files.Get "files/settings.json" | fromJson -}}
{{- $places := dict "config" (list "" .Values.config) "broker.config" (list "broker" .Values.broker.config) "controller.config" (list "controller" .Values.controller.config) "admin.config" (list "admin" .Values.admin.config) "console.config" (list "console" .Values.console.config) -}}
{{- range $place, $what := $places -}}
{{- range $name, $value := index $what 1 -}}
{{- include "tidemark.checkSetting" (dict "secure" $secure "table" $table "place" $place "owner" (index $what 0) "name" $name "value" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkSetting" -}}
{{- $written := dict "zookeeper.connect" "externalZookeeper.connect" "listeners" "the chart" "advertised.listeners" "externalAccess" "metrics.listeners" "the chart" "broker.id" "the pod's ordinal" "broker.rack" "rack.source" "controller.id" "the pod's name" "log.dirs" "broker.logDirs" "admin.address" "externalAccess.admin" "termination.message.path" "the chart" "bootstrap" "the chart" "console.listeners" "the chart" "console.hosts" "console.hosts of the values" "console.write" "console.write of the values" "cluster.tls.ca.file" "security.mode" "https.certificate.file" "your Ingress" "https.key.file" "your Ingress" "zookeeper.tls.ca.file" "zookeeperTls.existingSecret" "zookeeper.tls.certificate.file" "zookeeperTls.existingSecret" "zookeeper.tls.key.file" "zookeeperTls.existingSecret" -}}
{{- if .secure -}}
{{- range $name, $value := dict "tls.ca.file" "certificates" "tls.certificate.file" "certificates" "tls.key.file" "certificates" "clients.tls.ca.file" "certificates" "clients.tls.certificate.file" "certificates" "clients.tls.key.file" "certificates" "health.listeners" "mode" "authorization.enabled" "authorization.enabled" "super.users" "authorization.superUsers" "tokens.file" "tokens.existingSecret" "tokens.issuers.file" "tokens" -}}
{{- $_ := set $written $name (printf "security.%s" $value) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $written .name -}}
{{- fail (printf "%s names %s, which comes from %s; remove it" .place .name (index $written .name)) -}}
{{- end -}}
{{- if not (hasKey .table .name) -}}
{{- fail (printf "%s names %s, which no service has; docs/configuration.md lists the settings" .place .name) -}}
{{- end -}}
{{- $key := index .table .name -}}
{{- if and .owner (not (has .owner $key.owners)) -}}
{{- fail (printf "%s names %s, which is a setting of: %s" .place .name (join ", " $key.owners)) -}}
{{- end -}}
{{- $text := include "tidemark.setting" .value | trimAll "\"" -}}
{{- if eq $key.kind "int" -}}
{{- $number := int64 $text -}}
{{- if not (regexMatch "^-?[0-9]{1,18}$" $text) -}}
{{- fail (printf "%s: %s is %q: expected a whole number" .place .name $text) -}}
{{- end -}}
{{- if and (or (lt $number (int64 $key.minimum)) (and $key.maximum (gt $number (int64 $key.maximum)))) (not (and $key.unlimited (eq $number -1))) -}}
{{- fail (printf "%s: %s is %s: expected %s" .place .name $text $key.values) -}}
{{- end -}}
{{- else if $key.choices -}}
{{- if not (has $text $key.choices) -}}
{{- fail (printf "%s: %s is %q: expected %s" .place .name $text $key.values) -}}
{{- end -}}
{{- end -}}
{{- end -}}
