{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "tidemark.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "tidemark" .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 43 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The following take (list $ component). Selectors never change; labels may. */}}
{{- define "tidemark.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: tidemark
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tidemark.labels" -}}
{{- $root := index . 0 -}}
{{ include "tidemark.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "tidemark.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "tidemark.fullname" $root }}-{{ index . 1 }}
namespace: {{ $root.Release.Namespace | quote }}
labels: {{- include "tidemark.labels" . | nindent 2 }}
{{- end -}}

{{- define "tidemark.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "tidemark.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "tidemark.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "tidemark.domain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The first contact of clients: in plain text, or with a certificate. */}}
{{- define "tidemark.bootstrap" -}}
{{ include "tidemark.fullname" . }}-bootstrap.{{ include "tidemark.domain" . }}:{{ ternary 9392 9192 (eq "yes" (include "tidemark.secure" .)) }}
{{- end -}}

{{- define "tidemark.zookeeperConnect" -}}
{{- if .Values.zookeeper.enabled -}}
{{ include "zookeeper.connect" (list .Subcharts.zookeeper (ternary 2281 2181 (eq "yes" (include "tidemark.zookeeperTls" .)))) }}
{{- else -}}
{{ .Values.externalZookeeper.connect }}
{{- end -}}
{{- end -}}

{{/* The advertised addresses of the admin service. */}}
{{- define "tidemark.adminAddress" -}}
{{- $port := int (include "tidemark.externalPort" (list . "admin")) -}}
{{- $outside := "" -}}
{{- with .Values.externalAccess -}}
{{- if and .enabled .admin.host -}}
{{- $outside = include "tidemark.externalAddress" (dict "host" .admin.host "port" (ternary (.admin.nodePort | default $port) $port (eq .type "NodePort"))) -}}
{{- end -}}
{{- end -}}
{{- include "tidemark.advertised" (list . "admin" (printf "%s-admin.%s" (include "tidemark.fullname" .) (include "tidemark.domain" .)) $outside) -}}
{{- end -}}

{{/* (list $ component host outside): the addresses of all listeners at a host. If `outside` is not empty, one listener has
that address: the one of externalAccess, or the only one. */}}
{{- define "tidemark.advertised" -}}
{{- $root := index . 0 -}}{{- $outside := index . 3 -}}
{{- $addresses := list -}}
{{- range include "tidemark.addresses" . | splitList "," -}}
{{- $name := ternary (splitList "://" . | first) "" (contains "://" .) -}}
{{- $address := . -}}
{{- if and $outside (eq $name "") -}}{{- $address = $outside -}}
{{- else if and $outside (eq $name $root.Values.externalAccess.listener) -}}{{- $address = printf "%s://%s" $name $outside -}}
{{- end -}}
{{- $addresses = append $addresses $address -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{/* (list $ component): the port of the listener for external clients. */}}
{{- define "tidemark.externalPort" -}}
{{- $root := index . 0 -}}
{{- range include "tidemark.listeners" . | fromJsonArray -}}
{{- if has .name (list "" $root.Values.externalAccess.listener) -}}{{ .port }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.externalPortName" -}}
{{- ternary (replace "." "-" .Values.externalAccess.listener) "grpc" (eq "yes" (include "tidemark.secure" .)) -}}
{{- end -}}

{{/* (dict "host" host or host:port, "port" the port if the host has none) */}}
{{- define "tidemark.externalAddress" -}}
{{- if regexMatch ":[0-9]+$" .host }}{{ .host }}{{ else }}{{ .host }}:{{ int .port }}{{ end -}}
{{- end -}}

{{/* Whether (list $ "true"|"false"|"auto") is on; "auto" is on if the Prometheus operator is installed. */}}
{{- define "tidemark.monitored" -}}
{{- $root := index . 0 -}}{{- $wanted := index . 1 | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}yes{{- end -}}
{{- end -}}
