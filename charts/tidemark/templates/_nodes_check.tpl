{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Refuses pods that no node could take: they would stay Pending, and `helm --wait` would end with a timeout. */}}
{{- define "tidemark.checkNodes" -}}
{{- $root := . -}}
{{- if ne (.Values.nodeCheck | toString) "false" -}}
{{- range $component := concat (list "broker" "controller" "admin") (ternary (list "console") list .Values.console.enabled) -}}
{{- $kind := ternary "StatefulSet" "Deployment" (or (eq $component "broker") (and (eq $component "controller") (eq "yes" (include "tidemark.secure" $root)))) -}}
{{- $name := printf "%s-%s" (include "tidemark.fullname" $root) $component -}}
{{- include "tidemark.checkSpread" (dict "root" $root "component" $component "values" (index $root.Values $component) "kind" $kind "name" $name) -}}
{{- end -}}
{{- if .Values.zookeeper.enabled -}}
{{- $ensemble := .Subcharts.zookeeper -}}
{{- include "tidemark.checkSpread" (dict "root" . "component" "zookeeper" "values" $ensemble.Values "kind" "StatefulSet" "name" (include "zookeeper.fullname" $ensemble)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict root component values kind name): one component. Nodes are read only if its pods need, or needed, their own. */}}
{{- define "tidemark.checkSpread" -}}
{{- $values := .values -}}
{{- $hard := include "tidemark.isHard" $values -}}
{{- $softer := "" -}}
{{- if and (not $hard) (eq .kind "StatefulSet") -}}{{- $softer = include "tidemark.isHardLive" (list .root .kind .name) -}}{{- end -}}
{{- if or $hard $softer -}}
{{- $skip := "nodeCheck: false skips this check, for example where an autoscaler adds nodes" -}}
{{- $replicas := int $values.replicas -}}
{{- $nodes := include "tidemark.knownNodes" .root | fromJsonArray -}}
{{- $fit := 0 -}}
{{- range $nodes -}}
{{- if include "tidemark.takes" (dict "node" . "values" $values) -}}{{- $fit = add1 $fit -}}{{- end -}}
{{- end -}}
{{- $short := and $nodes (lt (int $fit) $replicas) -}}
{{- if and $hard $short -}}
{{- fail (printf "%s.antiAffinity is hard and %s.replicas is %d, but %d of %d nodes can take such a pod: the others would stay Pending, and helm --wait would end with a timeout; add nodes, use %d replicas or fewer, or set %s.antiAffinity: soft; %s" .component .component $replicas $fit (len $nodes) $fit .component $skip) -}}
{{- end -}}
{{- if $softer -}}
{{- $before := int (include "tidemark.live" (list .root .kind .name) | fromJson).spec.replicas -}}
{{- if or $short (and (not $nodes) (gt $replicas $before)) -}}
{{- $first := min $before (ternary $fit $before (gt (len $nodes) 0)) -}}
{{- fail (printf "%s.antiAffinity changes from hard to %s: until each running pod is replaced, it keeps other pods off its node, and the StatefulSet replaces none while a pod is Pending; helm --wait would end with a timeout; upgrade twice, first with %s.replicas: %d and then with %d, or add nodes; %s" .component $values.antiAffinity .component (int $first) $replicas $skip) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The nodes as a JSON array; empty if they are unknown. */}}
{{- define "tidemark.knownNodes" -}}
{{- if or (eq (.Values.nodeCheck | toString) "true") (eq .Values.rack.source "node") -}}
{{- (include "tidemark.nodes" . | fromJson).items | default list | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/* (values of a component) */}}
{{- define "tidemark.isHard" -}}
{{- if and (eq .antiAffinity "hard") (not .affinity) -}}yes{{- end -}}
{{- end -}}

{{/* (list $ kind name): whether running pods have hard anti-affinity, from before this upgrade. */}}
{{- define "tidemark.isHardLive" -}}
{{- $live := include "tidemark.live" . | fromJson -}}
{{- if $live -}}
{{- if dig "spec" "template" "spec" "affinity" "podAntiAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "" $live -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict node values): whether a node takes pods with these values, by its labels and taints. */}}
{{- define "tidemark.takes" -}}
{{- $labels := .node.metadata.labels | default dict -}}
{{- $values := .values -}}
{{- $takes := not .node.spec.unschedulable -}}
{{- range $label, $value := $values.nodeSelector -}}
{{- if ne (get $labels $label | toString) $value -}}{{- $takes = false -}}{{- end -}}
{{- end -}}
{{- range $taint := .node.spec.taints -}}
{{- if and (ne $taint.effect "PreferNoSchedule") (not (include "tidemark.tolerates" (dict "taint" $taint "tolerations" $values.tolerations))) -}}
{{- $takes = false -}}
{{- end -}}
{{- end -}}
{{- if $takes -}}yes{{- end -}}
{{- end -}}

{{/* (dict taint tolerations), as Kubernetes matches them. */}}
{{- define "tidemark.tolerates" -}}
{{- $taint := .taint -}}
{{- range .tolerations -}}
{{- $value := or (eq (.operator | default "Equal") "Exists") (eq (.value | default "" | toString) ($taint.value | default "" | toString)) -}}
{{- if and $value (or (not .effect) (eq .effect $taint.effect)) (or (not .key) (eq .key $taint.key)) -}}yes{{- end -}}
{{- end -}}
{{- end -}}
