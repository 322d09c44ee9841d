{{- define "driver.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.Version }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The address of the Service that the chart tidemark names after its release. */}}
{{- define "driver.bootstrap" -}}
{{- if .Values.bootstrap -}}
{{ .Values.bootstrap }}
{{- else -}}
{{- $name := .Values.release -}}
{{- if not (contains "tidemark" $name) -}}{{- $name = printf "%s-tidemark" $name -}}{{- end -}}
{{ $name | trunc 43 | trimSuffix "-" }}-bootstrap{{ with .Values.releaseNamespace }}.{{ . }}{{ end }}:9192
{{- end -}}
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
        command: [spark-submit]
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
          {{- if .Values.volume.claim }}
          - {name: volume, mountPath: {{ .Values.volume.path }}}
          {{- end }}
    volumes:
      - {name: tmp, emptyDir: {}}
      - {name: work, emptyDir: {}}
      - {name: template, configMap: {name: tidemark-spark}}
      {{- with .Values.volume.claim }}
      - {name: volume, persistentVolumeClaim: {claimName: {{ . }}}}
      {{- end }}
{{- end -}}
