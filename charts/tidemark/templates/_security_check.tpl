{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Combinations of security's values that cannot work, or that would be open although they look closed. */}}
{{- define "tidemark.checkSecurity" -}}
{{- include "tidemark.checkSteps" . -}}
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
{{- if and (eq $certificates.source "chart") (gt (len $cluster) 64) -}}
{{- fail (printf "the cluster's name in identities, %s, has %d characters, and a certificate has 64 for it: set security.cluster to a shorter name" $cluster (len $cluster)) -}}
{{- end -}}
{{- if gt (int .Values.broker.replicas) (int $certificates.brokersMax) -}}
{{- fail (printf "broker.replicas is %d and security.certificates.brokersMax %d: pods mount no certificate of the last brokers; raise the second, which restarts brokers once" (int .Values.broker.replicas) (int $certificates.brokersMax)) -}}
{{- end -}}
{{- if eq $certificates.source "chart" -}}
{{- include "tidemark.checkRenewal" . -}}
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
{{- if and $security.trust.configMap .Values.zookeeper.enabled (ne $security.trust.configMap .Subcharts.zookeeper.Values.tls.trustConfigMap) -}}
{{- fail (printf "security.trust.configMap is %s and zookeeper.tls.trustConfigMap %q: services and ZooKeeper's servers trust the same authorities; set both to the same ConfigMap" $security.trust.configMap .Subcharts.zookeeper.Values.tls.trustConfigMap) -}}
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
{{- if has "User:ANONYMOUS" $security.authorization.superUsers -}}
{{- fail "security.authorization.superUsers names User:ANONYMOUS, which is every caller whose certificate has no URI name: name users with an identity" -}}
{{- end -}}
{{- range $security.authorization.superUsers -}}
{{- if not (regexMatch "^User:([A-Za-z][A-Za-z0-9+.-]*://[!-~]+|CN=.+|token:.+|oidc:[^:]+:.+|system:serviceaccount:[a-z0-9-]{1,63}:[a-z0-9.-]{1,253})$" .) -}}
{{- fail (printf "security.authorization.superUsers names %s, and no caller has this name: expected User: and the URI name of a certificate, User:token:NAME, User:oidc:ALIAS:SUBJECT, User:system:serviceaccount:NAMESPACE:NAME or User:CN=NAME" .) -}}
{{- end -}}
{{- end -}}
{{- include "tidemark.checkIssuers" . -}}
{{- if and .Values.zookeeper.enabled .Subcharts.zookeeper.Values.tls.existingSecret (eq $certificates.source "chart") -}}
{{- fail "zookeeper.tls.existingSecret is set, but the services trust only the authority of the chart's Job, which makes the servers' certificate too: set zookeeper.tls.enabled: true in its place, or security.certificates.source: existing" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses a schedule whose Job may find a certificate too young to be replaced, and at its next run expired. The
longest pause is counted in the days of 2024, a leap year, to 2026. */}}
{{- define "tidemark.checkRenewal" -}}
{{- $certificates := .Values.security.certificates -}}
{{- $fields := regexSplit " +" $certificates.renewal -1 -}}
{{- $values := list -}}
{{- range $place, $part := list (list 0 59 "" "minute") (list 0 23 "" "hour") (list 1 31 "" "day of the month") (list 1 12 " jan feb mar apr may jun jul aug sep oct nov dec" "month") (list 0 6 "sun mon tue wed thu fri sat" "day of the week") -}}
{{- $values = append $values (include "tidemark.cronValues" (concat (list (index $fields $place)) $part (list $certificates.renewal)) | fromJson) -}}
{{- end -}}
{{- $days := index $values 2 -}}{{- $months := index $values 3 -}}{{- $weekdays := index $values 4 -}}
{{- $either := and (not (regexMatch "^[*?](/1)?$" (index $fields 2))) (not (regexMatch "^[*?](/1)?$" (index $fields 4))) -}}
{{- $first := toDate "2006-01-02T15:04Z07:00" "2024-01-01T12:00Z" -}}
{{- $pause := 1 -}}
{{- $since := 0 -}}
{{- range until 1096 -}}
{{- $since = add1 $since -}}
{{- $date := splitList " " (dateInZone "2 1 Mon" (dateModify (printf "%dh" (mul 24 .)) $first) "UTC") -}}
{{- $onDay := hasKey $days (index $date 0) -}}
{{- $onWeekday := hasKey $weekdays (lower (index $date 2)) -}}
{{- if and (hasKey $months (index $date 1)) (ternary (or $onDay $onWeekday) (and $onDay $onWeekday) $either) -}}
{{- $pause = max $pause $since -}}
{{- $since = 0 -}}
{{- end -}}
{{- end -}}
{{- $pause = max $pause $since -}}
{{- if and (eq (int $pause) 1) (regexMatch "^[*]" (index $fields 1)) -}}{{- $pause = 0 -}}{{- end -}}
{{- if le (int $certificates.days) (int (mul 3 $pause)) -}}
{{- fail (printf "security.certificates.days is %d, and the schedule %s of security.certificates.renewal may pause for %d d: certificates are replaced in the last third of their validity, and could expire between two runs; set days to %d or more, or run the Job more often" (int $certificates.days) $certificates.renewal $pause (add 1 (mul 3 $pause))) -}}
{{- end -}}
{{- end -}}

{{/* The values of a cron field, and their names, as the keys of an object; refuses a field that Kubernetes would refuse.
Arguments: the field, its range, names from 0, a word for the field, and the schedule. */}}
{{- define "tidemark.cronValues" -}}
{{- $names := splitList " " (index . 3) -}}
{{- $values := dict -}}
{{- $first := index . 1 -}}
{{- $last := index . 2 -}}
{{- $sentence := printf "security.certificates.renewal is %s, and %%s is no %s of a cron schedule: expected %d to %d, a range such as %d-%d, or * and a step such as */2" (index . 5) (index . 4) $first $last $first $last -}}
{{- range splitList "," (lower (index . 0)) -}}
{{- $parts := splitList "/" . -}}
{{- $ends := list $first $last -}}
{{- $good := regexMatch "^([*?]|[0-9]{1,2}(-[0-9]{1,2})?|[a-z]{3}(-[a-z]{3})?)(/[1-9][0-9]{0,3})?$" . -}}
{{- if not (has (first $parts) (list "*" "?")) -}}
{{- $ends = list -}}
{{- range splitList "-" (first $parts) -}}
{{- $word := . -}}
{{- $number := ternary (int (trimPrefix "0" $word | default "0")) -1 (regexMatch "^[0-9]{1,2}$" $word) -}}
{{- range $place, $name := $names -}}{{- if and $name (eq $name $word) -}}{{- $number = $place -}}{{- end -}}{{- end -}}
{{- $ends = append $ends $number -}}
{{- end -}}
{{- end -}}
{{- if or (not $good) (lt (int (first $ends)) (int $first)) (gt (int (last $ends)) (int $last)) (gt (int (first $ends)) (int (last $ends))) -}}
{{- fail (printf $sentence .) -}}
{{- end -}}
{{- $to := ternary $last (last $ends) (and (eq (len $ends) 1) (eq (len $parts) 2)) -}}
{{- range untilStep (int (first $ends)) (int (add1 $to)) (max 1 (int (index (append $parts "1") 1)) | int) -}}
{{- $_ := set $values (toString .) true -}}
{{- if lt . (len $names) -}}{{- $_ := set $values (index $names .) true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $values -}}
{{- end -}}

{{/* Refuses issuers that services would refuse, at their next start: an upgrade that changes issuers restarts no pod. */}}
{{- define "tidemark.checkIssuers" -}}
{{- $accounts := .Values.security.tokens.serviceAccounts -}}
{{- $issuers := .Values.security.tokens.issuers | default dict -}}
{{- if hasKey $issuers "kubernetes" -}}
{{- fail "security.tokens.issuers names kubernetes, which is the alias of security.tokens.serviceAccounts: choose another alias" -}}
{{- end -}}
{{- $seen := dict -}}
{{- $accountsOf := "" -}}
{{- if and $accounts.enabled $accounts.keys (not (kindIs "slice" (get (fromJson $accounts.keys) "keys"))) -}}
{{- fail "security.tokens.serviceAccounts.keys is not a JWKS, so no token would be accepted: set it to the output of `kubectl get --raw /openid/v1/jwks`, or remove it" -}}
{{- end -}}
{{- if $accounts.enabled -}}
{{- $_ := set $seen (include "tidemark.serviceAccountIssuer" .) "kubernetes" -}}
{{- $accountsOf = "security.tokens.serviceAccounts" -}}
{{- end -}}
{{- range $alias, $one := $issuers -}}
{{- if hasKey $seen $one.issuer -}}
{{- fail (printf "security.tokens.issuers: %s and %s have the same issuer, %s: remove one, and list all its audiences at the other" (get $seen $one.issuer) $alias $one.issuer) -}}
{{- end -}}
{{- $_ := set $seen $one.issuer $alias -}}
{{- if $one.kubernetes -}}
{{- if $accountsOf -}}
{{- fail (printf "security.tokens.issuers: %s has kubernetes: true, as %s: service accounts of two Kubernetes clusters would share names; remove it from one" $alias $accountsOf) -}}
{{- end -}}
{{- $accountsOf = $alias -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses to skip a step between plain text and TLS while brokers run: those before and after it could not call one
another. The listeners of the running brokers show their step. */}}
{{- define "tidemark.checkSteps" -}}
{{- $steps := list "security.mode: plain" "security.mode: secure and security.plainText: used" "security.plainText: open" "security.plainText: closed" -}}
{{- $to := 0 -}}
{{- if include "tidemark.secure" . -}}{{- $to = get (dict "used" 1 "open" 2 "closed" 3) .Values.security.plainText | int -}}{{- end -}}
{{- $live := include "tidemark.live" (list . "StatefulSet" (printf "%s-broker" (include "tidemark.fullname" .))) | fromJson -}}
{{- if dig "spec" "replicas" 0 $live -}}
{{- range dig "spec" "template" "spec" "containers" list $live -}}
{{- range .env -}}
{{- if eq .name "TIDEMARK_LISTENERS" -}}
{{- $from := 3 -}}
{{- if not (contains "://" .value) -}}{{- $from = 0 -}}
{{- else if hasPrefix "plain://" .value -}}{{- $from = 1 -}}
{{- else if contains "plain://" .value -}}{{- $from = 2 -}}
{{- end -}}
{{- $next := ternary (add $from 1) (sub $from 1) (gt $to $from) | int -}}
{{- if and (ne $to $from) (ne $to $next) -}}
{{- fail (printf "the running brokers have %s, and could not call those with %s: set %s first (docs/kubernetes.md, From plain text to secure), or scale the StatefulSet to 0 before" (index $steps $from) (index $steps $to) (index $steps $next)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
