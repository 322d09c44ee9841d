{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "tidemark.brokerId" -}}
- name: TIDEMARK_BROKER_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}
{{- end -}}

{{/* The id of a controller in a StatefulSet. */}}
{{- define "tidemark.controllerId" -}}
- name: TIDEMARK_CONTROLLER_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}
{{- end -}}

{{/* The wait before the stop, the stop, and a reserve of 10 s. */}}
{{- define "tidemark.brokerGraceSeconds" -}}
{{- add (int .Values.broker.safeToRestartWaitSeconds) (int .Values.broker.shutdownSeconds) 10 -}}
{{- end -}}
