{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Names and labels that Kubernetes would refuse half-way through an install. */}}
{{- define "tidemark.checkNames" -}}
{{- $name := include "tidemark.fullname" . -}}
{{- $isText := printf "name: %s" $name | fromYaml | values | first | kindIs "string" -}}
{{- if not (and $isText (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- $better := regexReplaceAll "[^a-z0-9]+" (lower $name) "-" | trimAll "-" -}}
{{- if or (eq $better $name) (not (regexMatch "^[a-z]" $better)) -}}{{- $better = printf "t-%s" $better -}}{{- end -}}
{{- fail (printf "names of objects would begin with %q, from fullnameOverride, nameOverride or the release: Kubernetes permits a-z, 0-9 and \"-\", a letter first, and no word such as on or null; set fullnameOverride, for example to %s" $name $better) -}}
{{- end -}}
{{- if include "tidemark.secure" . -}}
{{- $ofJob := eq .Values.security.certificates.source "chart" -}}
{{- $most := ternary 39 41 $ofJob -}}
{{- if gt (len $name) $most -}}
{{- fail (printf "the beginning of the names of objects, %s, has %d characters: a %s of the chart could not have a name with more than %d; set fullnameOverride to a shorter one" $name (len $name) (ternary "CronJob" "StatefulSet" $ofJob) $most) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses labels and annotations that the chart, or Kubernetes, sets itself: the pods would not match their selectors. */}}
{{- define "tidemark.checkLabels" -}}
{{- $root := . -}}
{{- $selector := include "tidemark.selectorLabels" (list . "") | fromYaml | keys -}}
{{- $pod := concat $selector (list "app.kubernetes.io/part-of" "apps.kubernetes.io/pod-index" "statefulset.kubernetes.io/pod-name" "controller-revision-hash" "pod-template-hash") -}}
{{- $object := include "tidemark.labels" (list . "") | fromYaml | keys -}}
{{- $annotations := list "checksum/config" "kubectl.kubernetes.io/default-container" -}}
{{- range $component := list "broker" "controller" "admin" "console" -}}
{{- $values := index $root.Values $component -}}
{{- include "tidemark.checkOurs" (list (printf "%s.podLabels" $component) $values.podLabels $pod) -}}
{{- include "tidemark.checkOurs" (list (printf "%s.podAnnotations" $component) $values.podAnnotations $annotations) -}}
{{- end -}}
{{- include "tidemark.checkOurs" (list "monitoring.serviceMonitor.endpoint" .Values.monitoring.serviceMonitor.endpoint (list "port" "path" "interval" "scrapeTimeout" "relabelings")) -}}
{{- range $part := list "serviceMonitor" "prometheusRule" "dashboards" -}}
{{- include "tidemark.checkOurs" (list (printf "monitoring.%s.labels" $part) (index $root.Values.monitoring $part).labels $object) -}}
{{- end -}}
{{- end -}}

{{/* (list place given ours) */}}
{{- define "tidemark.checkOurs" -}}
{{- $place := index . 0 -}}{{- $ours := index . 2 -}}
{{- range $name, $_ := index . 1 -}}
{{- if has $name $ours -}}
{{- fail (printf "%s names %s, which the chart or Kubernetes sets itself; remove it, or choose another name" $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
