{{/* Combinations of security's values that cannot work, or that would be open although they look closed. */}}
{{- define "tidemark.checkSecurity" -}}
{{- $security := .Values.security -}}
{{- $certificates := $security.certificates -}}
{{- if not (include "tidemark.secure" .) -}}
{{- if ne $security.plainText "closed" -}}
{{- fail (printf "security.plainText is %s, but security.mode is plain, where there is nothing but plain text: set security.mode: secure, or remove security.plainText" $security.plainText) -}}
{{- end -}}
{{- else -}}
{{- $cluster := include "tidemark.clusterName" . -}}
{{- if not (regexMatch "^[a-z0-9][a-z0-9.-]*$" $cluster) -}}
{{- fail (printf "the cluster's name in identities would be %q: set security.cluster to a name of a-z, 0-9, \".\" and \"-\"" $cluster) -}}
{{- end -}}
{{- if gt (int .Values.broker.replicas) (int $certificates.brokersMax) -}}
{{- fail (printf "broker.replicas is %d and security.certificates.brokersMax %d: pods mount no certificate of the last brokers; raise the second, which restarts brokers once" (int .Values.broker.replicas) (int $certificates.brokersMax)) -}}
{{- end -}}
{{- if and (eq $certificates.source "certManager") (not $certificates.issuerRef.name) -}}
{{- fail "security.certificates.source is certManager, but no issuer is named: set security.certificates.issuerRef.name to an Issuer in this namespace, or kind: ClusterIssuer too" -}}
{{- end -}}
{{- if and (ne $certificates.source "chart") (gt (int $certificates.generation) 1) -}}
{{- fail (printf "security.certificates.generation makes the chart's own authority again, but security.certificates.source is %s: replace the authority of your issuer, with both in security.trust.configMap meanwhile" $certificates.source) -}}
{{- end -}}
{{- if and (eq $certificates.source "chart") $security.trust.configMap -}}
{{- fail "security.trust.configMap is set, but the chart's Job makes the authority and its ConfigMap: remove it, or set security.certificates.source to certManager or existing" -}}
{{- end -}}
{{- if and (eq $security.plainText "used") $security.authorization.enabled -}}
{{- fail "security.plainText is used: services call one another in plain text, without an identity, and access rules would refuse them; set security.authorization.enabled: false for this step" -}}
{{- end -}}
{{- if and (not (include "tidemark.tokens" .)) .Values.externalAccess.enabled (eq .Values.externalAccess.listener "clients.token") -}}
{{- fail "externalAccess.listener is clients.token, but no tokens are accepted: set externalAccess.listener: clients.mtls, or security.tokens" -}}
{{- end -}}
{{- if and .Values.externalAccess.enabled (ne $security.plainText "closed") -}}
{{- fail (printf "security.plainText is %s with externalAccess: the plain port would have no external address; move external clients first, as docs/kubernetes.md describes" $security.plainText) -}}
{{- end -}}
{{- if hasKey $security.tokens.issuers "kubernetes" -}}
{{- fail "security.tokens.issuers names kubernetes, which is the alias of security.tokens.serviceAccounts: choose another alias" -}}
{{- end -}}
{{- if and .Values.zookeeper.enabled .Subcharts.zookeeper.Values.tls.existingSecret (eq $certificates.source "chart") -}}
{{- fail "zookeeper.tls.existingSecret is set, but the services trust only the authority of the chart's Job, which makes the servers' certificate too: set zookeeper.tls.enabled: true in its place, or security.certificates.source: existing" -}}
{{- end -}}
{{- end -}}
{{- end -}}
