{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "tidemark.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* (list $ component): the pod's spec without containers. */}}
{{- define "tidemark.podSpec" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $values := index $root.Values $component -}}
serviceAccountName: {{ include "tidemark.serviceAccount" $root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
dnsConfig: # a lost name server costs one second, not five
  options:
    - {name: timeout, value: "1"}
    - {name: attempts, value: "5"}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- $labels := include "tidemark.selectorLabels" . | fromYaml -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else if eq $values.antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {{- list $term | toYaml | nindent 6 }}
{{- else if eq $values.antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution: {{- list (dict "weight" 100 "podAffinityTerm" $term) | toYaml | nindent 6 }}
{{- end }}
{{- if $values.zoneSpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ $root.Values.rack.label }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- toYaml $labels | nindent 8 }}
{{- end }}
{{- include "tidemark.nodesOf" $values }}
{{- end -}}

{{/* (values of a component): the nodes of its pods. */}}
{{- define "tidemark.nodesOf" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (list $ component): labels and annotations of a pod. */}}
{{- define "tidemark.podMetadata" -}}
{{- $root := index . 0 -}}{{- $values := index $root.Values (index . 1) -}}
labels:
  {{- include "tidemark.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: tidemark
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ index . 1 }}
  checksum/config: {{ include "tidemark.checksum" . }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* (list $ component port): probes, security, resources and ports of a service's container. */}}
{{- define "tidemark.container" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $port := index . 2 -}}{{- $values := index $root.Values $component -}}
name: {{ $component }}
image: {{ include "tidemark.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
terminationMessagePath: /dev/termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- $health := include "tidemark.healthPort" (list $root $component) }}
ports:
  {{- include "tidemark.ports" (list $root $component "container") | trim | nindent 2 }}
  {{- if include "tidemark.secure" $root }}
  - {name: health, containerPort: {{ $health }}}
  {{- end }}
  - {name: metrics, containerPort: {{ add $port 100 }}}
startupProbe:
  grpc: {port: {{ $health }}, service: liveness}
  {{- toYaml $values.probes.startup | nindent 2 }}
readinessProbe:
  grpc: {port: {{ $health }}, service: readiness}
  {{- toYaml $values.probes.readiness | nindent 2 }}
livenessProbe:
  grpc: {port: {{ $health }}, service: liveness}
  {{- toYaml $values.probes.liveness | nindent 2 }}
{{ include "tidemark.containerSecurity" $root }}
resources: {{- toYaml $values.resources | nindent 2 }}
{{- end -}}

{{/* (list $ component) */}}
{{- define "tidemark.env" -}}
{{- $root := index . 0 -}}
- {name: TIDEMARK_LISTENERS, value: {{ include "tidemark.addresses" (list $root (index . 1) "0.0.0.0") | quote }}}
- {name: TIDEMARK_TERMINATION_MESSAGE_PATH, value: /dev/termination-log}
{{- include "tidemark.tlsEnv" . }}
{{- if include "tidemark.zookeeperTls" $root }}
- {name: TIDEMARK_ZOOKEEPER_CONNECT, value: {{ include "tidemark.zookeeperConnect" $root | quote }}}
{{- end }}
{{- if and (include "tidemark.zookeeperTls" $root) (not $root.Values.zookeeperTls.existingSecret) }}
- {name: TIDEMARK_ZOOKEEPER_TLS_CA_FILE, value: $(TIDEMARK_TLS_CA_FILE)}
- {name: TIDEMARK_ZOOKEEPER_TLS_CERTIFICATE_FILE, value: $(TIDEMARK_TLS_CERTIFICATE_FILE)}
- {name: TIDEMARK_ZOOKEEPER_TLS_KEY_FILE, value: $(TIDEMARK_TLS_KEY_FILE)}
{{- else if include "tidemark.zookeeperTls" $root }}
- {name: TIDEMARK_ZOOKEEPER_TLS_CA_FILE, value: /etc/tidemark-zookeeper/ca.crt}
- {name: TIDEMARK_ZOOKEEPER_TLS_CERTIFICATE_FILE, value: /etc/tidemark-zookeeper/tls.crt}
- {name: TIDEMARK_ZOOKEEPER_TLS_KEY_FILE, value: /etc/tidemark-zookeeper/tls.key}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* The files for sessions with ZooKeeper. */}}
{{- define "tidemark.zookeeperTlsMount" -}}
{{- if and .Values.zookeeperTls.existingSecret (include "tidemark.zookeeperTls" .) -}}
- {name: zookeeper-tls, mountPath: /etc/tidemark-zookeeper, readOnly: true}
{{- end -}}
{{- end -}}

{{- define "tidemark.zookeeperTlsVolume" -}}
{{- with ternary .Values.zookeeperTls.existingSecret "" (eq "yes" (include "tidemark.zookeeperTls" .)) -}}
- name: zookeeper-tls
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ . | quote }}
          items:
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
            - {key: ca.crt, path: ca.crt}
{{- end -}}
{{- end -}}
