{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Every certificate as JSON: a list of secret, role, name and hosts. */}}
{{- define "tidemark.certificates" -}}
{{- $root := . -}}{{- $found := list -}}
{{- $access := .Values.externalAccess -}}
{{- $name := include "tidemark.fullname" . -}}
{{- $domain := include "tidemark.domain" . -}}
{{- $bootstrap := include "tidemark.serviceNames" (list . (printf "%s-bootstrap" $name)) | fromJsonArray -}}
{{- range $id := until (int .Values.broker.replicas) -}}
{{- $hosts := prepend $bootstrap (printf "%s-broker-%d.%s-broker-headless.%s" $name $id $name $domain) -}}
{{- if and $access.enabled (lt $id (len $access.hosts)) -}}{{- $hosts = append $hosts (index $access.hosts $id | regexFind "^(\\[.*\\]|[^:]+)" | trimAll "[]") -}}{{- end -}}
{{- $found = append $found (dict "secret" (include "tidemark.secretOf" (list $root (printf "broker-%d" $id))) "role" "broker" "name" (toString $id) "hosts" $hosts) -}}
{{- end -}}
{{- range $ordinal := until (int .Values.controller.replicas) -}}
{{- $id := add 100 $ordinal -}}
{{- $found = append $found (dict "secret" (include "tidemark.secretOf" (list $root (printf "controller-%d" $id))) "role" "controller" "name" (toString $id) "hosts" (list (printf "%s-controller-%d.%s-controller-headless.%s" $name $id $name $domain))) -}}
{{- end -}}
{{- $hosts := include "tidemark.serviceNames" (list . (printf "%s-admin" $name)) | fromJsonArray -}}
{{- if and $access.enabled $access.admin.host -}}{{- $hosts = append $hosts ($access.admin.host | regexFind "^(\\[.*\\]|[^:]+)" | trimAll "[]") -}}{{- end -}}
{{- $found = append $found (dict "secret" (include "tidemark.secretOf" (list . "admin")) "role" "admin" "name" "admin" "hosts" $hosts) -}}
{{- $found = append $found (dict "secret" (include "tidemark.secretOf" (list . "operator")) "role" "user" "name" "operator" "hosts" list) -}}
{{- if and .Values.zookeeper.enabled .Subcharts.zookeeper.Values.tls.enabled (not .Subcharts.zookeeper.Values.tls.existingSecret) -}}
{{- $ensemble := include "zookeeper.fullname" .Subcharts.zookeeper -}}
{{- $servers := prepend (include "tidemark.serviceNames" (list . $ensemble) | fromJsonArray) (printf "*.%s-headless.%s" $ensemble $domain) -}}
{{- $found = append $found (dict "secret" (include "zookeeper.secret" .Subcharts.zookeeper) "role" "zookeeper" "name" "servers" "hosts" $servers) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* (list $ service): the names of a Service, as JSON. */}}
{{- define "tidemark.serviceNames" -}}
{{- $root := index . 0 -}}{{- $service := index . 1 -}}{{- $namespace := $root.Release.Namespace -}}
{{- list (printf "%s.%s" $service (include "tidemark.domain" $root)) (printf "%s.%s.svc" $service $namespace) (printf "%s.%s" $service $namespace) $service | toJson -}}
{{- end -}}

{{/* The names of the Secrets that the Job may read and change, as JSON. */}}
{{- define "tidemark.secretsOfJob" -}}
{{- $names := list (printf "%s-authority" (include "tidemark.fullname" .)) -}}
{{- range include "tidemark.certificates" . | fromJsonArray -}}{{- $names = append $names .secret -}}{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}

{{/* What the Job reads, as JSON. */}}
{{- define "tidemark.plan" -}}
{{- $certificates := .Values.security.certificates -}}
{{- dict "namespace" .Release.Namespace "cluster" (include "tidemark.clusterName" .) "authority" (printf "%s-authority" (include "tidemark.fullname" .)) "trust" (printf "%s-ca" (include "tidemark.fullname" .)) "generation" (int $certificates.generation) "days" (int $certificates.days) "settle_s" (int $certificates.settleSeconds) "labels" (include "tidemark.selectorLabels" (list . "certificates") | fromYaml) "certificates" (include "tidemark.certificates" . | fromJsonArray) | toJson -}}
{{- end -}}

{{/* (list $ account): the pod of the Job. */}}
{{- define "tidemark.certificatesPod" -}}
{{- $root := index . 0 -}}
metadata:
  labels:
    {{- include "tidemark.selectorLabels" (list $root "certificates") | nindent 4 }}
    app.kubernetes.io/part-of: tidemark
spec:
  restartPolicy: Never
  serviceAccountName: {{ index . 1 }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with include "tidemark.nodesOf" $root.Values.admin }}{{ . | trim | nindent 2 }}{{ end }}
  containers:
    - name: certificates
      image: {{ include "tidemark.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      terminationMessagePolicy: FallbackToLogsOnError
      command: [python3, -c]
      args:
        - |
          {{- $root.Files.Get "files/certificates.py" | nindent 10 }}
      env:
        - name: PLAN
          value: {{ include "tidemark.plan" $root | quote }}
      {{- include "tidemark.containerSecurity" $root | nindent 6 }}
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 256Mi}
      volumeMounts:
        - {name: scratch, mountPath: /tmp}
        - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
  volumes:
    - name: scratch
      emptyDir: {medium: Memory, sizeLimit: 4Mi}
    - name: token
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}

{{/* (list $ name hook): the account of the Job and its rights; hook: annotations of hooks, or none. */}}
{{- define "tidemark.certificatesAccount" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}{{- $hook := index . 2 -}}
{{- range $kind := list "ServiceAccount" "Role" "RoleBinding" }}
---
apiVersion: {{ ternary "v1" "rbac.authorization.k8s.io/v1" (eq $kind "ServiceAccount") }}
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- include "tidemark.labels" (list $root "certificates") | nindent 4 }}
  {{- with $hook }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if eq $kind "ServiceAccount" }}
automountServiceAccountToken: false
{{- else if eq $kind "Role" }}
rules:
  {{- if $hook }}
  # The right to create cannot be bound to names. Only the Job has this right, until the Job has succeeded; the CronJob
  # only renews certificates.
  - apiGroups: [""]
    resources: [secrets, configmaps]
    verbs: [create]
  {{- end }}
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: {{- include "tidemark.secretsOfJob" $root | fromJsonArray | toYaml | nindent 6 }}
    verbs: [get, update]
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [{{ include "tidemark.fullname" $root }}-ca]
    verbs: [get, update]
{{- else }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $root.Release.Namespace | quote }}}
{{- end }}
{{- end }}
{{- end -}}
