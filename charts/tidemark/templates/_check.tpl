{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Checks beyond the schema: each invalid combination of values fails with a sentence. */}}
{{- define "tidemark.check" -}}
{{- include "tidemark.checkNames" . -}}
{{- include "tidemark.checkLabels" . -}}
{{- include "tidemark.checkImage" . -}}
{{- include "tidemark.checkReplicas" . -}}
{{- include "tidemark.checkZooKeeper" . -}}
{{- include "tidemark.checkSecurity" . -}}
{{- include "tidemark.checkLogDirs" . -}}
{{- include "tidemark.checkExternalAccess" . -}}
{{- include "tidemark.checkStop" . -}}
{{- include "tidemark.checkSettings" . -}}
{{- include "tidemark.checkEnvironment" . -}}
{{- include "tidemark.checkMetrics" . -}}
{{- include "tidemark.checkScrapes" . -}}
{{- include "tidemark.checkNodes" . -}}
{{- end -}}

{{- define "tidemark.checkImage" -}}
{{- if and .Values.image.digestRequired (not .Values.image.digest) -}}
{{- fail (printf "image.digestRequired is true and image.digest is empty: a tag such as %s can change; set image.digest to the digest of the image that you tested, or digestRequired: false" (include "tidemark.image" .)) -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkScrapes" -}}
{{- $monitor := .Values.monitoring.serviceMonitor -}}
{{- if include "tidemark.monitored" (list . $monitor.enabled) -}}
{{- $ms := dict -}}
{{- range $name := list "interval" "scrapeTimeout" -}}
{{- $text := get $monitor $name -}}
{{- $unit := ternary 1 (ternary 1000 60000 (hasSuffix "s" $text)) (hasSuffix "ms" $text) -}}
{{- $_ := set $ms $name (mul $unit (atoi (regexFind "^[0-9]+" $text))) -}}
{{- end -}}
{{- if gt $ms.scrapeTimeout $ms.interval -}}
{{- fail (printf "monitoring.serviceMonitor.scrapeTimeout is %s and interval %s: Prometheus' operator leaves out such a monitor; lower the first or raise the second" $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkReplicas" -}}
{{- $brokers := int .Values.broker.replicas -}}
{{- $factor := int .Values.topics.replicationFactor -}}
{{- $least := int .Values.topics.minInsyncReplicas -}}
{{- if lt $brokers 1 -}}
{{- fail "broker.replicas is 0: a cluster needs a broker; to stop all brokers for a while, scale the StatefulSet instead" -}}
{{- end -}}
{{- if lt $brokers $least -}}
{{- fail (printf "topics.minInsyncReplicas is %d and broker.replicas %d: no record could ever be acknowledged; use at least %d brokers" $least $brokers $least) -}}
{{- end -}}
{{- if gt $least $factor -}}
{{- fail (printf "topics.minInsyncReplicas is %d and topics.replicationFactor %d: no topic has that many replicas, so no record could be acknowledged" $least $factor) -}}
{{- end -}}
{{- if gt $factor $brokers -}}
{{- fail (printf "topics.replicationFactor is %d and broker.replicas %d: a broker holds one replica of a partition at most; lower the first or raise the second" $factor $brokers) -}}
{{- end -}}
{{- if lt (int .Values.controller.replicas) 1 -}}
{{- fail "controller.replicas is 0: without a controller no leader is elected and no topic is created; use 2, so that one is a standby" -}}
{{- end -}}
{{- if lt (int .Values.admin.replicas) 1 -}}
{{- fail "admin.replicas is 0: topics are created and brokers are restarted through the admin service; use at least 1" -}}
{{- end -}}
{{- if and .Values.console.enabled (include "tidemark.secure" .) (not (include "tidemark.tokens" .)) -}}
{{- fail "console.enabled is true, and the cluster has no tokens: users of the console log in with one; set security.tokens, or console.enabled: false" -}}
{{- end -}}
{{- $pdb := .Values.broker.podDisruptionBudget -}}
{{- if and $pdb.enabled (gt $brokers 1) (gt (int $pdb.maxUnavailable) 1) (lt (sub $factor (int $pdb.maxUnavailable)) $least) -}}
{{- fail (printf "broker.podDisruptionBudget.maxUnavailable is %d: of %d replicas of a partition fewer than topics.minInsyncReplicas, %d, would remain; use at most %d" (int $pdb.maxUnavailable) $factor $least (max 1 (sub $factor $least))) -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkZooKeeper" -}}
{{- if and .Values.zookeeper.enabled .Values.externalZookeeper.connect -}}
{{- fail "both zookeeper.enabled and externalZookeeper.connect are set: choose one ensemble; set zookeeper.enabled: false for the external one" -}}
{{- end -}}
{{- if .Values.zookeeper.enabled -}}
{{- $servers := .Subcharts.zookeeper.Values.tls -}}
{{- $secret := include "zookeeper.secret" .Subcharts.zookeeper -}}
{{- if and .Values.zookeeperTls.existingSecret (not $secret) -}}
{{- fail "zookeeperTls.existingSecret is set, but the servers have no TLS: set zookeeper.tls.existingSecret to a Secret with the servers' certificate" -}}
{{- end -}}
{{- if and (include "tidemark.zookeeperTls" .) (not $secret) -}}
{{- fail "security.mode is secure, but ZooKeeper's servers have no TLS, and a process that reaches ZooKeeper owns the cluster: set zookeeper.tls.enabled: true (zookeeperTls.enabled: false leaves ZooKeeper open while a running cluster moves)" -}}
{{- end -}}
{{- if and $servers.enabled (not $servers.existingSecret) (not (include "tidemark.secure" .)) -}}
{{- fail "zookeeper.tls.enabled is true, but with security.mode: plain the chart makes no certificate: set zookeeper.tls.existingSecret, or security.mode: secure" -}}
{{- end -}}
{{- if and $secret $servers.enforce (not (include "tidemark.zookeeperTls" .)) -}}
{{- fail "zookeeper.tls.enforce is true, but the services have no certificate and would be refused: set zookeeperTls.existingSecret or security.mode: secure, or zookeeper.tls.enforce: false while services move to TLS" -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.zookeeper.enabled) (not .Values.externalZookeeper.connect) -}}
{{- fail "there is no ZooKeeper: set zookeeper.enabled: true, or externalZookeeper.connect to host:port[,host:port...][/chroot]" -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkLogDirs" -}}
{{- $seen := dict -}}
{{- range .Values.broker.logDirs -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "broker.logDirs names %s twice: each log directory needs its own volume" .name) -}}
{{- end -}}
{{- if has .name (list "config" "scratch" "token" "tokens" "tls" "zookeeper-tls") -}}
{{- fail (printf "broker.logDirs names %s, which is another volume of the pod; choose another name" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkExternalAccess" -}}
{{- $access := .Values.externalAccess -}}
{{- $brokers := int .Values.broker.replicas -}}
{{- if $access.enabled -}}
{{- if lt (len $access.hosts) $brokers -}}
{{- fail (printf "externalAccess.hosts has %d entries and broker.replicas is %d: each broker needs a host, or host:port, at which clients reach it" (len $access.hosts) $brokers) -}}
{{- end -}}
{{- if and (eq $access.type "NodePort") (lt (len $access.nodePorts) (len $access.hosts)) -}}
{{- fail (printf "externalAccess.type is NodePort, with %d hosts and %d nodePorts: add a port for each host, since the port is part of the address" (len $access.hosts) (len $access.nodePorts)) -}}
{{- end -}}
{{- if ne (len (uniq $access.nodePorts)) (len $access.nodePorts) -}}
{{- fail "externalAccess.nodePorts names a port twice: each broker needs its own port" -}}
{{- end -}}
{{- if and (eq $access.type "NodePort") $access.admin.host (not $access.admin.nodePort) -}}
{{- fail "externalAccess.admin.host is set without externalAccess.admin.nodePort: the port is part of the address" -}}
{{- end -}}
{{- if and (eq $access.type "NodePort") $access.admin.host (has $access.admin.nodePort $access.nodePorts) -}}
{{- fail (printf "externalAccess.admin.nodePort is %d, which a broker has: the admin service needs its own port" (int $access.admin.nodePort)) -}}
{{- end -}}
{{- if eq $access.type "LoadBalancer" -}}
{{- if ne (len (uniq $access.hosts)) (len $access.hosts) -}}
{{- fail "externalAccess.hosts names a host twice: the load balancer of each broker has its own address" -}}
{{- end -}}
{{- $port := include "tidemark.externalPort" (list . "broker") -}}
{{- range $access.hosts -}}
{{- if and (regexMatch ":[0-9]+$" .) (not (hasSuffix (printf ":%s" $port) .)) -}}
{{- fail (printf "externalAccess.hosts names %s: the load balancer of a broker listens on %s" . $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkStop" -}}
{{- $config := include "tidemark.given" (list . "broker") | fromJson -}}
{{- $wait := int (dig "controlled.shutdown.max.wait.ms" 30000 $config) -}}
{{- $grace := int (dig "shutdown.grace.ms" 10000 $config) -}}
{{- $session := int (dig "zookeeper.session.timeout.ms" 6000 $config) -}}
{{- $logs := 10000 -}}
{{- $needed := add $wait $grace $session $logs -}}
{{- $given := mul 1000 (int .Values.broker.shutdownSeconds) -}}
{{- if gt $needed $given -}}
{{- fail (printf "broker.shutdownSeconds is %d, but controlled.shutdown.max.wait.ms, shutdown.grace.ms, zookeeper.session.timeout.ms and 10 s for the logs are %d ms together: brokers would be killed during their shutdown; use at least %d" (int .Values.broker.shutdownSeconds) $needed (div (add $needed 999) 1000)) -}}
{{- end -}}
{{- if .Values.zookeeper.enabled -}}
{{- $registered := int .Subcharts.zookeeper.Values.registrationWaitSeconds -}}
{{- $stop := add (int .Values.broker.safeToRestartWaitSeconds) (int .Values.broker.shutdownSeconds) -}}
{{- if and (gt $registered 0) (lt $registered (int $stop)) -}}
{{- fail (printf "zookeeper.registrationWaitSeconds is %d, but a broker may take broker.safeToRestartWaitSeconds and broker.shutdownSeconds, %d s together, to stop: at an uninstall its registration would outlive ZooKeeper; use at least %d, or 0 for no wait" $registered $stop $stop) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkMetrics" -}}
{{- $root := . -}}
{{- range $component := list "broker" "controller" "admin" -}}
{{- $config := include "tidemark.given" (list $root $component) | fromJson -}}
{{- $tls := index $config "metrics.tls" | default "none" -}}
{{- if ne $tls "none" -}}
{{- if not (or (include "tidemark.secure" $root) (index $config "tls.certificate.file")) -}}
{{- fail (printf "metrics.tls is %s, and with security.mode: plain services have no certificates; remove it, or set security.mode: secure" $tls) -}}
{{- end -}}
{{- $monitor := $root.Values.monitoring.serviceMonitor -}}
{{- if and (include "tidemark.monitored" (list $root $monitor.enabled)) (ne (dig "scheme" "" ($monitor.endpoint | default dict)) "https") -}}
{{- fail (printf "metrics.tls is %s, and Prometheus would scrape in plain text: set monitoring.serviceMonitor.endpoint to scheme: https and a tlsConfig" $tls) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemark.checkEnvironment" -}}
{{- $ours := list "POD_NAME" "POD_IP" "ADMIN_ADDRESS" "WAIT_S" "XDG_CONFIG_HOME" -}}
{{- range $component := list "broker" "controller" "admin" "console" -}}
{{- range (index $.Values $component).extraEnv -}}
{{- if or (has .name $ours) (hasPrefix "TIDEMARK_" .name) -}}
{{- fail (printf "%s.extraEnv names %s: the chart sets this variable itself; put settings into %s.config" $component .name $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
