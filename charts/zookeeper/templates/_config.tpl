{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "zookeeper.config" -}}
{{- $root := . -}}
dataDir=/data
dataLogDir=/data/log
clientPort=2181
{{- if include "zookeeper.secret" . }}
{{- if .Values.tls.enforce }}
clientPortAddress=127.0.0.1
enforce.auth.enabled=true
enforce.auth.schemes=x509
{{- end }}
secureClientPort=2281
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
client.certReload=true
{{- include "zookeeper.stores" "ssl" }}
{{- if ne .Values.tls.quorum "plain" }}
sslQuorum={{ ne .Values.tls.quorum "accept" }}
portUnification={{ ne .Values.tls.quorum "only" }}
sslQuorumReloadCertFiles=true
{{- include "zookeeper.stores" "ssl.quorum" }}
{{- end }}
{{- end }}
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

{{/* The settings of TLS below a prefix. */}}
{{- define "zookeeper.stores" }}
{{ . }}.protocol=TLSv1.3
{{ . }}.enabledProtocols=TLSv1.3,TLSv1.2
{{ . }}.clientAuth=need
{{ . }}.keyStore.location=/tls/server.pem
{{ . }}.keyStore.type=PEM
{{ . }}.trustStore.location=/tls/ca.crt
{{ . }}.trustStore.type=PEM
{{- end -}}
