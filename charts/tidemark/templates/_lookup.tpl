{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Reads from the API server, as JSON; empty with `helm template` and a dry run of the client. */}}
{{- define "tidemark.nodes" -}}
{{- lookup "v1" "Node" "" "" | toJson -}}
{{- end -}}

{{/* (list $ kind name): an object of apps/v1 in the namespace of the release. */}}
{{- define "tidemark.live" -}}
{{- $root := index . 0 -}}
{{- lookup "apps/v1" (index . 1) $root.Release.Namespace (index . 2) | toJson -}}
{{- end -}}
