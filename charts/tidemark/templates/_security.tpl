{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Whether ports have TLS: "yes" or empty. */}}
{{- define "tidemark.secure" -}}
{{- if eq .Values.security.mode "secure" -}}yes{{- end -}}
{{- end -}}

{{- define "tidemark.clusterName" -}}
{{ .Values.security.cluster | default (printf "%s.%s" (include "tidemark.fullname" .) .Release.Namespace) }}
{{- end -}}

{{/* (list $ name): the Secret of a certificate, such as broker-0. */}}
{{- define "tidemark.secretOf" -}}
{{- $root := index . 0 -}}
{{ $root.Values.security.certificates.prefix | default (include "tidemark.fullname" $root) }}-{{ index . 1 }}-tls
{{- end -}}

{{- define "tidemark.audience" -}}
{{ .Values.security.tokens.audience | default (printf "tidemark:%s/%s" .Release.Namespace .Release.Name) }}
{{- end -}}

{{/* Whether clients.token exists: "yes" or empty. */}}
{{- define "tidemark.tokens" -}}
{{- $tokens := .Values.security.tokens -}}
{{- if and (include "tidemark.secure" .) (or $tokens.serviceAccounts.enabled $tokens.issuers $tokens.existingSecret) -}}yes{{- end -}}
{{- end -}}

{{/* Whether pods ask the API server for the keys of service accounts: "yes" or empty. */}}
{{- define "tidemark.asksForKeys" -}}
{{- $accounts := .Values.security.tokens.serviceAccounts -}}
{{- if and (include "tidemark.secure" .) $accounts.enabled (not $accounts.keys) -}}yes{{- end -}}
{{- end -}}

{{/* Whether sessions with ZooKeeper use TLS: "yes" or empty. */}}
{{- define "tidemark.zookeeperTls" -}}
{{- $wanted := .Values.zookeeperTls.enabled | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (or .Values.zookeeperTls.existingSecret (include "tidemark.secure" .))) -}}yes{{- end -}}
{{- end -}}

{{/* (list $ component): the listeners of a service as JSON, a list of name and port; the first one is for services. */}}
{{- define "tidemark.listeners" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- $digit := index (dict "broker" 2 "controller" 3 "admin" 4) $component -}}
{{- $plainText := dict "name" "plain" "port" (add 9190 $digit) -}}
{{- $found := list (dict "name" "internal" "port" (add 9690 $digit)) -}}
{{- if ne $component "controller" -}}
{{- $found = append $found (dict "name" "clients.mtls" "port" (add 9390 $digit)) -}}
{{- if include "tidemark.tokens" $root -}}{{- $found = append $found (dict "name" "clients.token" "port" (add 9490 $digit)) -}}{{- end -}}
{{- end -}}
{{- if eq $root.Values.security.plainText "used" -}}{{- $found = prepend $found $plainText -}}{{- end -}}
{{- if eq $root.Values.security.plainText "open" -}}{{- $found = append $found $plainText -}}{{- end -}}
{{- if not (include "tidemark.secure" $root) -}}{{- $found = list (dict "name" "" "port" (add 9190 $digit)) -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* (list $ component host): the addresses of all listeners at a host, as a setting. */}}
{{- define "tidemark.addresses" -}}
{{- $host := index . 2 -}}{{- $found := list -}}
{{- range include "tidemark.listeners" . | fromJsonArray -}}
{{- $address := printf "%s:%d" $host (int .port) -}}
{{- $found = append $found (ternary (printf "%s://%s" .name $address) $address (ne .name "")) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* (list $ component kind): the ports of the listeners, for a service, policy or container. kind policy-internal and
policy-clients: those for services, and those for clients. */}}
{{- define "tidemark.ports" -}}
{{- $kind := index . 2 -}}
{{- range include "tidemark.listeners" . | fromJsonArray }}
{{- $name := ternary "grpc" (replace "." "-" .name) (has .name (list "" "plain")) -}}
{{- $ofClients := ne .name "internal" }}
{{- if eq $kind "container" }}
- {name: {{ $name }}, containerPort: {{ .port }}}
{{- else if eq $kind "policy-internal" }}
{{- if has .name (list "internal" "plain" "") }}
- {protocol: TCP, port: {{ $name }}}
{{- end }}
{{- else if eq $kind "policy-clients" }}
{{- if $ofClients }}
- {protocol: TCP, port: {{ $name }}}
{{- end }}
{{- else if or $ofClients (eq $kind "service") }}
- {name: {{ $name }}, port: {{ .port }}, targetPort: {{ $name }}{{ if eq $name "grpc" }}, appProtocol: kubernetes.io/h2c{{ end }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The port of the health service: (list $ component). */}}
{{- define "tidemark.healthPort" -}}
{{- $digit := index (dict "broker" 2 "controller" 3 "admin" 4) (index . 1) -}}
{{- if include "tidemark.secure" (index . 0) -}}{{ add 9590 $digit }}{{- else -}}{{ add 9190 $digit }}{{- end -}}
{{- end -}}

{{/* Principals that need no rules, as a setting. */}}
{{- define "tidemark.superUsers" -}}
{{- $operator := printf "User:tidemark://%s/user/operator" (include "tidemark.clusterName" .) -}}
{{- prepend (.Values.security.authorization.superUsers | default list) $operator | join ";" -}}
{{- end -}}

{{/* The claim iss of tokens of service accounts. */}}
{{- define "tidemark.serviceAccountIssuer" -}}
{{ .Values.security.tokens.serviceAccounts.issuer | default (printf "https://kubernetes.default.svc.%s" .Values.clusterDomain) }}
{{- end -}}

{{/* The file of issuers of tokens. */}}
{{- define "tidemark.issuers" -}}
{{- $accounts := .Values.security.tokens.serviceAccounts -}}
{{- $issuers := .Values.security.tokens.issuers | default dict | deepCopy -}}
{{- if $accounts.enabled -}}
{{- $here := dict "issuer" (include "tidemark.serviceAccountIssuer" .) "audience" (include "tidemark.audience" .) "kubernetes" true -}}
{{- if $accounts.keys -}}
{{- $_ := set $here "jwks" "/etc/tidemark/service-accounts.json" -}}
{{- else -}}
{{- $_ := set $here "jwks" "https://kubernetes.default.svc/openid/v1/jwks" -}}
{{- $_ := set $here "ca.file" "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt" -}}
{{- $_ := set $here "token.file" "/var/run/secrets/kubernetes.io/serviceaccount/token" -}}
{{- end -}}
{{- $_ := set $issuers "kubernetes" $here -}}
{{- end -}}
{{- toYaml $issuers -}}
{{- end -}}

{{/* The source of ca.crt, for a projected volume. */}}
{{- define "tidemark.trust" -}}
{{- $certificates := .Values.security.certificates -}}
{{- if .Values.security.trust.configMap -}}
- configMap: {name: {{ .Values.security.trust.configMap | quote }}, items: [{key: ca.crt, path: ca.crt}]}
{{- else if eq $certificates.source "chart" -}}
- configMap: {name: {{ include "tidemark.fullname" . }}-ca, items: [{key: ca.crt, path: ca.crt}]}
{{- else -}}
- secret: {name: {{ include "tidemark.secretOf" (list . "admin") }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}
{{- end -}}

{{/* (list $ certificate): the sources of a projected volume with ca.crt, tls.crt and tls.key. */}}
{{- define "tidemark.pair" -}}
{{ include "tidemark.trust" (index . 0) }}
- secret:
    name: {{ include "tidemark.secretOf" . }}
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end -}}

{{/* (list $ component): the volumes that security needs. */}}
{{- define "tidemark.securityVolumes" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- if include "tidemark.secure" $root }}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      {{- if eq $component "admin" }}
      {{- include "tidemark.pair" . | nindent 6 }}
      {{- else }}
      {{- include "tidemark.trust" $root | nindent 6 }}
      # A StatefulSet cannot mount a Secret by ordinal: each pod has all, and uses its own.
      {{- range $name := include "tidemark.numbered" . | fromJsonArray }}
      - secret:
          name: {{ include "tidemark.secretOf" (list $root $name) }}
          optional: true
          items: [{key: tls.crt, path: {{ $name }}/tls.crt}, {key: tls.key, path: {{ $name }}/tls.key}]
      {{- end }}
      {{- end }}
{{- if eq $component "admin" }}
# The command line in this pod runs as the operator.
- name: operator
  projected:
    defaultMode: 0440
    sources: {{- include "tidemark.pair" (list $root "operator") | nindent 6 }}
- name: profile
  configMap:
    name: {{ include "tidemark.fullname" $root }}
    items: [{key: profiles.toml, path: tidemark/profiles.toml}]
{{- end }}
{{- if and (ne $component "controller") $root.Values.security.tokens.existingSecret }}
- name: tokens
  secret:
    secretName: {{ $root.Values.security.tokens.existingSecret | quote }}
    defaultMode: 0440
    items: [{key: tokens, path: tokens}]
{{- end }}
{{- end }}
{{- if and (eq $component "broker") (eq $root.Values.rack.source "node") }}
{{- include "tidemark.tokenVolume" (include "tidemark.asksForKeys" $root) }}
{{- else if and (ne $component "controller") (include "tidemark.asksForKeys" $root) }}
{{- include "tidemark.tokenVolume" "yes" }}
{{- end }}
{{- end -}}

{{/* (whether the service itself uses it) */}}
{{- define "tidemark.tokenVolume" }}
# {{ if . }}The token reads the keys that sign tokens of service accounts{{ else }}For the init container only: brokers
# do not call the API server{{ end }}.
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}

{{/* (list $ component): the mounts that security needs in the container of a service. */}}
{{- define "tidemark.securityMounts" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- if include "tidemark.secure" $root }}
- {name: tls, mountPath: /etc/tidemark-tls, readOnly: true}
{{- if eq $component "admin" }}
- {name: operator, mountPath: /etc/tidemark-operator, readOnly: true}
- {name: profile, mountPath: /etc/tidemark-profile, readOnly: true}
{{- end }}
{{- if and (ne $component "controller") $root.Values.security.tokens.existingSecret }}
- {name: tokens, mountPath: /etc/tidemark-tokens, readOnly: true}
{{- end }}
{{- if and (ne $component "controller") (include "tidemark.asksForKeys" $root) }}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $ component): names of the certificates of all its pods, as JSON. Controllers begin with 100. */}}
{{- define "tidemark.numbered" -}}
{{- $root := index . 0 -}}{{- $names := list -}}
{{- if eq (index . 1) "broker" -}}
{{- range $id := until (int $root.Values.security.certificates.brokersMax) -}}{{- $names = append $names (printf "broker-%d" $id) -}}{{- end -}}
{{- else -}}
{{- range $id := until (int $root.Values.controller.replicas) -}}{{- $names = append $names (printf "controller-%d" (add 100 $id)) -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* (list $ component id): the variables with the paths of the certificate; id: of the service, a variable. */}}
{{- define "tidemark.tlsEnv" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- if include "tidemark.secure" $root }}
{{- $directory := printf "/etc/tidemark-tls%s" (ternary "" (printf "/%s-$(TIDEMARK_%s_ID)" $component (upper $component)) (eq $component "admin")) }}
- {name: TIDEMARK_TLS_CA_FILE, value: /etc/tidemark-tls/ca.crt}
- {name: TIDEMARK_TLS_CERTIFICATE_FILE, value: {{ $directory }}/tls.crt}
- {name: TIDEMARK_TLS_KEY_FILE, value: {{ $directory }}/tls.key}
- {name: TIDEMARK_HEALTH_LISTENERS, value: "0.0.0.0:{{ include "tidemark.healthPort" . }}"}
- {name: TIDEMARK_METRICS_LISTENERS, value: "0.0.0.0:{{ index (dict "broker" 9292 "controller" 9293 "admin" 9294) $component }}"}
{{- if eq $component "admin" }}
- {name: TIDEMARK_PROFILE, value: operator}
- {name: XDG_CONFIG_HOME, value: /etc/tidemark-profile}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $ component): an init container that waits for the certificate, which may be issued after the pod began. */}}
{{- define "tidemark.waitForCertificate" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
- name: certificate
  image: {{ include "tidemark.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command:
    - /bin/sh
    - -ec
    - 'until [ -s "$TIDEMARK_TLS_CERTIFICATE_FILE" ]; do echo "waiting for the Secret with $TIDEMARK_TLS_CERTIFICATE_FILE"; sleep 2; done'
  env:
    {{- include (printf "tidemark.%sId" $component) $root | nindent 4 }}
    {{- include "tidemark.tlsEnv" . | trim | nindent 4 }}
  {{- include "tidemark.containerSecurity" $root | nindent 2 }}
  resources: {{- toYaml (index $root.Values $component).resources | nindent 4 }}
  volumeMounts:
    - {name: tls, mountPath: /etc/tidemark-tls, readOnly: true}
{{- end -}}

{{/* The profile of the command line in the pod of the admin service. */}}
{{- define "tidemark.profile" -}}
[operator]
bootstrap = "{{ include "tidemark.fullname" . }}-bootstrap.{{ include "tidemark.domain" . }}:9392"
admin = "{{ include "tidemark.fullname" . }}-admin.{{ include "tidemark.domain" . }}:9394"
tls.ca.file = "/etc/tidemark-operator/ca.crt"
tls.certificate.file = "/etc/tidemark-operator/tls.crt"
tls.key.file = "/etc/tidemark-operator/tls.key"
{{- end -}}
