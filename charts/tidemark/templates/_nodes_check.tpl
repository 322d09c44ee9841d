{{/* Refuses pods that no node could take: they would stay Pending, and `helm --wait` would end with a timeout. */}}
{{- define "tidemark.checkNodes" -}}
{{- $root := . -}}
{{- $wanted := .Values.nodeCheck | toString -}}
{{- if ne $wanted "false" -}}
{{- $nodes := list -}}
{{- if or (eq $wanted "true") (eq .Values.rack.source "node") -}}
{{- $nodes = (include "tidemark.nodes" . | fromJson).items | default list -}}
{{- end -}}
{{- range $component := list "broker" "controller" "admin" -}}
{{- $kind := ternary "StatefulSet" "Deployment" (eq $component "broker") -}}
{{- $name := printf "%s-%s" (include "tidemark.fullname" $root) $component -}}
{{- include "tidemark.checkSpread" (dict "root" $root "component" $component "values" (index $root.Values $component) "kind" $kind "name" $name "nodes" $nodes) -}}
{{- end -}}
{{- if .Values.zookeeper.enabled -}}
{{- $ensemble := .Subcharts.zookeeper -}}
{{- include "tidemark.checkSpread" (dict "root" . "component" "zookeeper" "values" $ensemble.Values "kind" "StatefulSet" "name" (include "zookeeper.fullname" $ensemble) "nodes" $nodes) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict root component values kind name nodes): one component; without `nodes` the nodes are unknown. */}}
{{- define "tidemark.checkSpread" -}}
{{- $skip := "nodeCheck: false skips this check, for example where an autoscaler adds nodes" -}}
{{- $values := .values -}}
{{- $replicas := int $values.replicas -}}
{{- $fit := 0 -}}
{{- range .nodes -}}
{{- if include "tidemark.takes" (dict "node" . "values" $values) -}}{{- $fit = add1 $fit -}}{{- end -}}
{{- end -}}
{{- $short := and .nodes (lt (int $fit) $replicas) -}}
{{- if include "tidemark.isHard" $values -}}
{{- if $short -}}
{{- fail (printf "%s.antiAffinity is hard and %s.replicas is %d, but %d of %d nodes can take such a pod: the others would stay Pending, and helm --wait would end with a timeout; add nodes, use %d replicas or fewer, or set %s.antiAffinity: soft; %s" .component .component $replicas $fit (len .nodes) $fit .component $skip) -}}
{{- end -}}
{{- else if and (eq .kind "StatefulSet") (include "tidemark.isHardLive" (list .root .kind .name)) -}}
{{- $live := include "tidemark.live" (list .root .kind .name) | fromJson -}}
{{- $before := int $live.spec.replicas -}}
{{- if or $short (and (not .nodes) (gt $replicas $before)) -}}
{{- $first := min $before (ternary $fit $before (gt (len .nodes) 0)) -}}
{{- fail (printf "%s.antiAffinity changes from hard to %s: until each running pod is replaced, it keeps other pods off its node, and the StatefulSet replaces none while a pod is Pending; helm --wait would end with a timeout; upgrade twice, first with %s.replicas: %d and then with %d, or add nodes; %s" .component $values.antiAffinity .component (int $first) $replicas $skip) -}}
{{- end -}}
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
