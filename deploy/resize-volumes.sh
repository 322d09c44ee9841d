#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Enlarges the volumes of one log directory, while all pods run.
#
#   deploy/resize-volumes.sh [-z] NAMESPACE RELEASE CLAIM CHART [helm's options, such as -f values.yaml]
#
# Set the new size in your values first (broker.logDirs, or zookeeper.storage with -z); CLAIM is the name of the log
# directory, data-0 (data with -z). Example, after size: 200Gi was written into values.yaml:
#
#   deploy/resize-volumes.sh streams tide data-0 charts/tidemark -f values.yaml
#
# Kubernetes does not permit a change of a StatefulSet's claim templates, so `helm upgrade` alone fails. This script deletes
# the StatefulSet without its pods and changes the claims. The upgrade recreates the StatefulSet around the same pods; no
# pod restarts. After a failure run the script again: completed steps are not repeated.
set -eu

say() { printf '%s\n' "$*" >&2; }
refuse() { say "resize-volumes: $*"; exit 1; }

component=broker template=templates/broker-statefulset.yaml
if [ "${1:-}" = -z ]; then
    component=zookeeper template=charts/zookeeper/templates/statefulset.yaml
    shift
fi
[ $# -ge 4 ] || { sed -n '3,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
namespace=$1 release=$2 claim=$3 chart=$4
shift 4

rendered=$(helm template "$release" "$chart" -n "$namespace" --show-only "$template" "$@")
of_rendered() { printf '%s\n' "$rendered" | kubectl -n "$namespace" create --dry-run=client -f - -o "jsonpath=$1"; }
set_name=$(of_rendered '{.metadata.name}')
size=$(of_rendered "{.spec.volumeClaimTemplates[?(@.metadata.name==\"$claim\")].spec.resources.requests.storage}")
[ -n "$size" ] || refuse "with these values $set_name has no claim $claim"

claims=$(kubectl -n "$namespace" get pvc -o name \
    -l "app.kubernetes.io/instance=$release,app.kubernetes.io/component=$component" |
    sed -n "s|^persistentvolumeclaim/\($claim-$set_name-[0-9]*\)$|\1|p")
[ -n "$claims" ] || refuse "there are no claims $claim-$set_name-N in namespace $namespace"

# Check every claim with the API server before the first change.
for each in $claims; do
    class=$(kubectl -n "$namespace" get pvc "$each" -o 'jsonpath={.spec.storageClassName}')
    grows=$(kubectl get storageclass "$class" -o 'jsonpath={.allowVolumeExpansion}')
    [ "$grows" = true ] || refuse "storage class $class of $each cannot expand volumes (allowVolumeExpansion); nothing was changed"
    kubectl -n "$namespace" patch pvc "$each" --dry-run=server -o name \
        -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$size\"}}}}" >/dev/null ||
        refuse "$each cannot become $size; nothing was changed"
done

for each in $claims; do
    kubectl -n "$namespace" patch pvc "$each" -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$size\"}}}}" >&2
done
kubectl -n "$namespace" delete statefulset "$set_name" --cascade=orphan --ignore-not-found >&2
helm upgrade "$release" "$chart" -n "$namespace" "$@" >/dev/null ||
    refuse "helm upgrade failed, and $set_name is deleted: its pods run, but a pod that ends would not restart. Correct the error, then run this again"

say "requested $size; volumes grow in the background, and mounted file systems too if their driver supports it:"
kubectl -n "$namespace" get pvc $claims \
    -o 'custom-columns=CLAIM:.metadata.name,WANTED:.spec.resources.requests.storage,IS:.status.capacity.storage,STATE:.status.conditions[*].type'
