{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "zookeeper.id" -}}
- name: ZOO_MY_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}
{{- end -}}

{{- define "zookeeper.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "zookeeper.scheduling" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "zookeeper.selectorLabels" . | fromYaml)) -}}
{{- if .Values.affinity }}
affinity: {{- toYaml .Values.affinity | nindent 2 }}
{{- else if eq .Values.antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {{- list $term | toYaml | nindent 6 }}
{{- else if eq .Values.antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution: {{- list (dict "weight" 100 "podAffinityTerm" $term) | toYaml | nindent 6 }}
{{- end }}
{{- if .Values.zoneSpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "zookeeper.selectorLabels" . | nindent 8 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
