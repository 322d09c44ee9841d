{{- define "zookeeper.config" -}}
{{- $root := . -}}
dataDir=/data
dataLogDir=/data/log
clientPort=2181
{{- range $key, $value := .Values.config }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }}={{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end }}
4lw.commands.whitelist=ruok,srvr,mntr
admin.enableServer=false
standaloneEnabled=true
reconfigEnabled=false
quorumListenOnAllIPs=true
{{- if .Values.metrics.enabled }}
metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider
metricsProvider.httpPort={{ .Values.metrics.port }}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}
{{- range $id := untilStep 1 (int (add1 .Values.replicas)) 1 }}
server.{{ $id }}={{ include "zookeeper.host" (list $root $id) }}:2888:3888
{{- end }}
{{- end }}
{{- end -}}
