{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "zookeeper.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "zookeeper" .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "zookeeper.selectorLabels" -}}
app.kubernetes.io/name: zookeeper
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: zookeeper
{{- end -}}

{{- define "zookeeper.labels" -}}
{{ include "zookeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "zookeeper.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Ids and names of pods start at 1, like ZooKeeper's ids. */}}
{{- define "zookeeper.host" -}}
{{- $root := index . 0 -}}{{- $id := index . 1 -}}
{{- $name := include "zookeeper.fullname" $root -}}
{{ $name }}-{{ $id }}.{{ $name }}-headless.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{/* The Secret with the servers' certificate; empty: no TLS. */}}
{{- define "zookeeper.secret" -}}
{{- if .Values.tls.existingSecret -}}{{ .Values.tls.existingSecret }}{{- else if .Values.tls.enabled -}}{{ include "zookeeper.fullname" . }}-tls{{- end -}}
{{- end -}}

{{/* The ports of clients that other pods can reach: (list $ kind), for a service, policy or container. */}}
{{- define "zookeeper.clientPorts" -}}
{{- $values := (index . 0).Values -}}{{- $kind := index . 1 -}}{{- $tls := include "zookeeper.secret" (index . 0) -}}
{{- $ports := dict -}}
{{- if not (and $tls $values.tls.enforce) -}}{{- $_ := set $ports "client" 2181 -}}{{- end -}}
{{- if $tls -}}{{- $_ := set $ports "client-tls" 2281 -}}{{- end -}}
{{- range $name, $port := $ports }}
{{- if eq $kind "service" }}
- {name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }}}
{{- else if eq $kind "policy" }}
- {protocol: TCP, port: {{ $name }}}
{{- else }}
- {name: {{ $name }}, containerPort: {{ $port }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The value of zookeeper.connect: (list $ port). */}}
{{- define "zookeeper.connect" -}}
{{- $root := index . 0 -}}{{- $port := index . 1 -}}
{{- $hosts := list -}}
{{- range $id := untilStep 1 (int (add1 $root.Values.replicas)) 1 -}}
{{- $hosts = append $hosts (printf "%s:%d" (include "zookeeper.host" (list $root $id)) $port) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- define "zookeeper.check" -}}
{{- include "zookeeper.checkNames" . -}}
{{- if and .Values.image.digestRequired (not .Values.image.digest) -}}
{{- fail (printf "zookeeper: image.digestRequired is true and image.digest is empty: a tag such as %s can change; set zookeeper.image.digest to the digest of the image that you tested, or digestRequired: false" (include "zookeeper.image" .)) -}}
{{- end -}}
{{- if eq (mod (int .Values.replicas) 2) 0 -}}
{{- fail (printf "zookeeper: replicas is %d: an even number of servers survives no more losses than one server less; choose 1, 3, 5 or 7" (int .Values.replicas)) -}}
{{- end -}}
{{- $spare := max 1 (div (int .Values.replicas) 2) | int -}}
{{- if and .Values.podDisruptionBudget.enabled (gt (int .Values.podDisruptionBudget.maxUnavailable) $spare) -}}
{{- fail (printf "zookeeper: podDisruptionBudget.maxUnavailable is %d: of %d servers too few for a quorum would remain; use at most %d" (int .Values.podDisruptionBudget.maxUnavailable) (int .Values.replicas) $spare) -}}
{{- end -}}
{{- if lt (int .Values.juteMaxBufferBytes) 8388608 -}}
{{- fail (printf "zookeeper: juteMaxBufferBytes is %d: Tidemark writes up to 8 MiB in one request; use at least 8388608" (int .Values.juteMaxBufferBytes)) -}}
{{- end -}}
{{- $ours := list "dataDir" "dataLogDir" "clientPort" "quorumListenOnAllIPs" "4lw.commands.whitelist" "admin.enableServer" "standaloneEnabled" "reconfigEnabled" -}}
{{- if include "zookeeper.secret" . -}}
{{- $ours = concat $ours (list "clientPortAddress" "secureClientPort" "serverCnxnFactory" "authProvider.x509" "client.certReload" "enforce.auth.enabled" "enforce.auth.schemes" "sslQuorum" "portUnification" "sslQuorumReloadCertFiles") -}}
{{- end -}}
{{- range $key, $_ := .Values.config -}}
{{- if or (has $key $ours) (hasPrefix "server." $key) -}}
{{- fail (printf "zookeeper: config names %s, which the chart writes itself; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names become names of Services: a name that Kubernetes refuses would end an install half-way. */}}
{{- define "zookeeper.checkNames" -}}
{{- $name := include "zookeeper.fullname" . -}}
{{- $isText := printf "name: %s" $name | fromYaml | values | first | kindIs "string" -}}
{{- if not (and $isText (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- $better := regexReplaceAll "[^a-z0-9]+" (lower $name) "-" | trimAll "-" -}}
{{- if or (eq $better $name) (not (regexMatch "^[a-z]" $better)) -}}{{- $better = printf "zk-%s" $better -}}{{- end -}}
{{- fail (printf "zookeeper: names of objects would begin with %q, from fullnameOverride, nameOverride or the release: Kubernetes permits a-z, 0-9 and \"-\", a letter first, and no word such as on or null; set zookeeper.fullnameOverride, for example to %s" $name $better) -}}
{{- end -}}
{{- $labels := include "zookeeper.selectorLabels" . | fromYaml -}}
{{- range $label, $_ := .Values.podLabels -}}
{{- if or (hasKey $labels $label) (has $label (list "app.kubernetes.io/part-of" "apps.kubernetes.io/pod-index" "statefulset.kubernetes.io/pod-name" "controller-revision-hash")) -}}
{{- fail (printf "zookeeper: podLabels names %s, which the chart or Kubernetes sets itself; remove it" $label) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.podAnnotations | default dict) "checksum/config" -}}
{{- fail "zookeeper: podAnnotations names checksum/config, which the chart sets itself; remove it" -}}
{{- end -}}
{{- end -}}
