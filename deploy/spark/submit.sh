#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a job of spark/pipelines on Kubernetes with spark-submit; driver and executors are pods (docs/spark-kubernetes.md).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

help() {
    cat <<'TEXT'
usage: submit.sh [OPTION...] JOB [FLAG OF THE JOB...]

Runs a job of spark/pipelines (archive, replay, rollup, audit, flights) on Kubernetes: a driver pod, which creates its
executor pods. Waits for the end, shows the driver's output, and exits with its status. JOB --help shows a job's flags.

  --namespace NAME      namespace of the pods (that of the current context, else default)
  --image IMAGE         image of driver and executors (tidemark/tidemark-spark:latest)
  --executors N         number of executor pods (2)
  --cores N             cores of each executor (1)
  --memory SIZE         memory of the driver and of each executor (1g)
  --service-account N   account of the driver, as rbac.yaml creates it (tidemark-spark)
  --volume CLAIM:PATH   PersistentVolumeClaim for checkpoints and archives, mounted in every pod; must allow
                        ReadWriteMany unless all pods are on one node
  --audience NAME       a secure cluster: give the pods a token of their service account with this audience, such as
                        tidemark:streams/tidemark
  --authorities NAME    with --audience: ConfigMap with the authorities to trust, ca.crt (tidemark-ca)
  --conf KEY=VALUE      setting of Spark; can be repeated
  --master URL          the API server, k8s://https://HOST:PORT (that of the current context)
  --name NAME           name of the driver's pod (tidemark-JOB-TIME)
  --detach              do not wait, for streams without an end; kubectl delete pod NAME stops one
  --print               only print the command

Needs spark-submit (pip install pyspark), Java >= 17, and kubectl with a context.

examples:
  kubectl apply -n data -f deploy/spark/rbac.yaml
  deploy/spark/submit.sh --namespace data audit --bootstrap tidemark-broker:9192 --topic orders
  deploy/spark/submit.sh --namespace data --volume archives:/archives --executors 4 --detach \
    archive --bootstrap tidemark-broker:9192 --topic orders --to /archives/orders --every "1 minute"
TEXT
}

JOBS="archive, replay, rollup, audit and flights"
wrong() { echo "submit.sh: $1; see submit.sh --help" >&2; exit 2; }

namespace= image=tidemark/tidemark-spark:latest executors=2 cores=1 memory=1g account=tidemark-spark
audience= authorities=tidemark-ca template=$HERE/pod.yaml
master= name= wait=true only_print= settings=()
while [ $# -gt 0 ]; do
    case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
    case $1 in
    -h | --help) help; exit 0 ;;
    --detach) wait=false; shift; continue ;;
    --print) only_print=yes; shift; continue ;;
    --namespace | --image | --executors | --cores | --memory | --service-account | --conf | --master | --name | --volume | --audience | \
        --authorities)
        case ${2:-} in "" | --*) wrong "$1 needs a value" ;; esac
        ;;
    -*) wrong "there is no option $1" ;;
    *) break ;;
    esac
    case $1 in
    --namespace) namespace=$2 ;;
    --image) image=$2 ;;
    --executors | --cores)
        case $2 in *[!0-9]* | 0*) wrong "$1 is $2; use a number from 1" ;; esac
        if [ "$1" = --cores ]; then cores=$2; else executors=$2; fi
        ;;
    --memory) memory=$2 ;;
    --service-account) account=$2 ;;
    --audience) audience=$2 ;;
    --authorities) authorities=$2 ;;
    --conf)
        case $2 in ?*=*) settings+=(--conf "$2") ;; *) wrong "--conf $2 is not KEY=VALUE" ;; esac
        ;;
    --master) master=$2 ;;
    --name)
        [[ $2 =~ ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$ ]] || wrong "--name $2 is not a valid pod name: use a-z, 0-9 and -"
        name=$2
        ;;
    --volume)
        claim=${2%%:*} path=${2#*:}
        case $2 in *?:/?*) ;; *) wrong "--volume $2 is not CLAIM:/PATH" ;; esac
        # Claims may contain dots, but the names of volumes, and so Spark's settings, may not.
        for role in driver executor; do
            key=spark.kubernetes.$role.volumes.persistentVolumeClaim.${claim//./-}
            settings+=(--conf "$key.options.claimName=$claim" --conf "$key.mount.path=$path")
        done
        ;;
    esac
    shift 2
done
[ $# -gt 0 ] || wrong "name a job: ${JOBS/ and / or }"
job=$1; shift
case $job in
archive | replay | rollup | audit | flights) ;;
*) wrong "there is no job '$job', only $JOBS" ;;
esac

command -v kubectl > /dev/null || wrong "kubectl is missing"
[ -n "$only_print" ] || command -v spark-submit > /dev/null || wrong "spark-submit is missing: pip install pyspark"
: "${namespace:=$(kubectl config view --minify -o 'jsonpath={..namespace}' 2> /dev/null || true)}"
: "${namespace:=default}"
: "${master:=k8s://$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')}"
[ "$master" != k8s:// ] || wrong "kubectl has no current context: use --master k8s://https://HOST:PORT"
: "${name:=tidemark-$job-$(date +%Y%m%d-%H%M%S)}"

if [ -n "$audience" ]; then # the template with a token and the authorities
    template=$(mktemp)
    [ -n "$only_print" ] || trap 'rm -f "$template"' EXIT
    awk '/^      volumeMounts:/ {
            print "      env:"
            print "        - {name: TIDEMARK_TLS_CA_FILE, value: /var/run/tidemark/ca.crt}"
            print "        - {name: TIDEMARK_TOKEN_FILE, value: /var/run/tidemark/token}"
        }
        /^  volumes:/ { print "        - {name: tidemark, mountPath: /var/run/tidemark, readOnly: true}" }
        { print }' "$HERE/pod.yaml" > "$template"
    cat >> "$template" << TEXT
    - name: tidemark
      projected:
        sources:
          - serviceAccountToken: {path: token, audience: "$audience", expirationSeconds: 3600}
          - configMap: {name: "$authorities", items: [{key: ca.crt, path: ca.crt}]}
TEXT
    settings+=(--conf "spark.kubernetes.authenticate.executor.serviceAccountName=$account")
fi

command=(spark-submit --master "$master" --deploy-mode cluster --name "tidemark-$job"
    --driver-memory "$memory" --executor-memory "$memory" --executor-cores "$cores" --num-executors "$executors"
    --conf "spark.kubernetes.namespace=$namespace"
    --conf "spark.kubernetes.container.image=$image"
    --conf spark.kubernetes.container.image.pullPolicy=IfNotPresent
    --conf "spark.kubernetes.authenticate.driver.serviceAccountName=$account"
    --conf "spark.kubernetes.driver.pod.name=$name"
    --conf "spark.kubernetes.driver.podTemplateFile=$template"
    --conf "spark.kubernetes.executor.podTemplateFile=$template"
    --conf spark.kubernetes.driver.podTemplateContainerName=spark
    --conf spark.kubernetes.executor.podTemplateContainerName=spark
    --conf "spark.kubernetes.submission.waitAppCompletion=$wait"
    --conf spark.ui.enabled=false --conf spark.log.level=WARN
    ${settings[@]+"${settings[@]}"} "local:///opt/pipelines/$job.py" "$@")
if [ -n "$only_print" ]; then printf '%q ' "${command[@]}"; echo; exit 0; fi

echo "submit.sh: $job in pod $name of namespace $namespace" >&2
trap 'echo "submit.sh: the driver continues; kubectl delete pod -n $namespace $name stops it" >&2; exit 130' INT
if ! log=$("${command[@]}" 2>&1); then
    printf '%s\n' "$log" >&2
    exit 1
fi
if [ "$wait" = false ]; then
    echo "submit.sh: the driver continues; kubectl logs -f -n $namespace $name shows its output, and" \
        "kubectl delete pod -n $namespace $name stops it" >&2
    exit 0
fi
kubectl logs -n "$namespace" "$name"
# spark-submit exits with 0 even if the driver failed.
code=$(kubectl get pod -n "$namespace" "$name" -o 'jsonpath={.status.containerStatuses[0].state.terminated.exitCode}')
exit "${code:-1}"
