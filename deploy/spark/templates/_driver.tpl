{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "driver.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.Version }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The beginning of the names of the release's objects. */}}
{{- define "driver.fullname" -}}
{{- $name := .Values.release -}}
{{- if not (contains "tidemark" $name) -}}{{- $name = printf "%s-tidemark" $name -}}{{- end -}}
{{ $name | trunc 43 | trimSuffix "-" }}
{{- end -}}

{{/* The address of the Service that the chart tidemark names after its release. */}}
{{- define "driver.bootstrap" -}}
{{- if .Values.bootstrap -}}
{{ .Values.bootstrap }}
{{- else -}}
{{ include "driver.fullname" . }}-bootstrap{{ with .Values.releaseNamespace }}.{{ . }}{{ end }}:{{ ternary 9492 9192 .Values.security.enabled }}
{{- end -}}
{{- end -}}

{{- define "driver.audience" -}}
{{- if not (or .Values.security.audience .Values.releaseNamespace) -}}
{{- fail "security.enabled is true: set releaseNamespace to the namespace of the release, or security.audience" -}}
{{- end -}}
{{ .Values.security.audience | default (printf "tidemark:%s/%s" .Values.releaseNamespace .Values.release) }}
{{- end -}}

{{/* The volume with the authorities to trust and the token, which the kubelet renews. */}}
{{- define "driver.identity" -}}
name: tidemark
projected:
  sources:
    - serviceAccountToken: {path: token, audience: {{ include "driver.audience" . | quote }}, expirationSeconds: 3600}
    - configMap:
        name: {{ .Values.security.configMap | default (printf "%s-ca" (include "driver.fullname" .)) }}
        items: [{key: ca.crt, path: ca.crt}]
{{- end -}}

{{- define "driver.identityEnv" -}}
- {name: TIDEMARK_TLS_CA_FILE, value: /var/run/tidemark/ca.crt}
- {name: TIDEMARK_TOKEN_FILE, value: /var/run/tidemark/token}
{{- end -}}

{{/* The template of executors, with token and authorities, and without a token for the API server. */}}
{{- define "driver.executorPod" -}}
{{- $pod := .Files.Get "pod.yaml" | fromYaml -}}
{{- $container := first $pod.spec.containers -}}
{{- $mount := dict "name" "tidemark" "mountPath" "/var/run/tidemark" "readOnly" true -}}
{{- $_ := set $container "env" (include "driver.identityEnv" . | fromYamlArray) -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
{{- $_ := set $pod.spec "volumes" (append $pod.spec.volumes (include "driver.identity" . | fromYaml)) -}}
{{- $_ := set $pod.spec "containers" (list $container) -}}
{{- $_ := set $pod.spec "automountServiceAccountToken" false -}}
{{- toYaml $pod -}}
{{- end -}}

{{- define "driver.labels" -}}
app.kubernetes.io/name: tidemark-spark
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: tidemark
{{- end -}}

{{- define "driver.settings" -}}
- --master=k8s://https://kubernetes.default.svc
- --deploy-mode=client
- --num-executors={{ int .Values.executors.replicas }}
- --executor-memory={{ .Values.executors.memory }}
{{- $conf := dict "spark.executor.cores" (int .Values.executors.cores) "spark.kubernetes.namespace" "$(NAMESPACE)" "spark.kubernetes.container.image" (include "driver.image" .) "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy "spark.kubernetes.executor.podTemplateFile" "/etc/tidemark-spark/pod.yaml" "spark.kubernetes.executor.podTemplateContainerName" "spark" "spark.kubernetes.driver.pod.name" "$(POD)" "spark.driver.host" "$(ADDRESS)" "spark.driver.bindAddress" "$(ADDRESS)" "spark.ui.enabled" "false" "spark.log.level" "WARN" }}
{{- if .Values.security.enabled }}
{{- $_ := set $conf "spark.kubernetes.executor.podTemplateFile" "/tmp/executor.yaml" }}
{{- $_ := set $conf "spark.kubernetes.authenticate.executor.serviceAccountName" .Values.serviceAccountName }}
{{- end }}
{{- with .Values.volume.claim }}
{{- $key := printf "spark.kubernetes.executor.volumes.persistentVolumeClaim.%s" (replace "." "-" .) }}
{{- $_ := set $conf (printf "%s.options.claimName" $key) . }}
{{- $_ := set $conf (printf "%s.mount.path" $key) $.Values.volume.path }}
{{- end }}
{{- range $key, $value := merge (deepCopy .Values.conf) $conf }}
{{- $text := $value | toString }}
{{- if kindIs "float64" $value }}{{- if eq $value (floor $value) }}{{- $text = printf "%.0f" $value }}{{- end }}{{- end }}
- {{ printf "--conf=%s=%s" $key $text | quote }}
{{- end }}
- {{ ternary .Values.job (printf "/opt/pipelines/%s.py" .Values.job) (hasPrefix "/" .Values.job) }}
{{- range .Values.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The specification of the Job. */}}
{{- define "driver.spec" -}}
backoffLimit: {{ int .Values.backoffLimit }}
ttlSecondsAfterFinished: 86400
template:
  metadata:
    labels:
      {{- include "driver.labels" . | nindent 6 }}
      app.kubernetes.io/component: driver
  spec:
    restartPolicy: Never
    serviceAccountName: {{ .Values.serviceAccountName }}
    securityContext:
      runAsNonRoot: true
      runAsUser: 10001
      runAsGroup: 10001
      fsGroup: 10001
      seccompProfile:
        type: RuntimeDefault
    containers:
      - name: driver
        image: {{ include "driver.image" . }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        {{- if .Values.security.enabled }}
        command: [/bin/sh, -ec, 'printf "%s\n" "$EXECUTOR" >/tmp/executor.yaml && exec spark-submit "$@"', spark-submit]
        {{- else }}
        command: [spark-submit]
        {{- end }}
        args: {{- include "driver.settings" . | nindent 10 }}
        env:
          - name: TIDEMARK_BOOTSTRAP
            value: {{ include "driver.bootstrap" . }}
          - name: NAMESPACE
            valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
          - name: POD
            valueFrom: {fieldRef: {fieldPath: metadata.name}}
          - name: ADDRESS
            valueFrom: {fieldRef: {fieldPath: status.podIP}}
          {{- if .Values.security.enabled }}
          {{- include "driver.identityEnv" . | nindent 10 }}
          - name: EXECUTOR
            value: {{ include "driver.executorPod" . | quote }}
          {{- end }}
        resources: {{- toYaml .Values.driver.resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop: [ALL]
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
          - {name: work, mountPath: /opt/spark-work}
          - {name: template, mountPath: /etc/tidemark-spark}
          {{- if .Values.security.enabled }}
          - {name: tidemark, mountPath: /var/run/tidemark, readOnly: true}
          {{- end }}
          {{- if .Values.volume.claim }}
          - {name: volume, mountPath: {{ .Values.volume.path }}}
          {{- end }}
    volumes:
      - {name: tmp, emptyDir: {}}
      - {name: work, emptyDir: {}}
      - {name: template, configMap: {name: tidemark-spark}}
      {{- if .Values.security.enabled }}
      - {{- include "driver.identity" . | nindent 8 }}
      {{- end }}
      {{- with .Values.volume.claim }}
      - {name: volume, persistentVolumeClaim: {claimName: {{ . }}}}
      {{- end }}
{{- end -}}
