#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts a driver or executor for Spark's Kubernetes scheduler, like the entrypoint of Spark's own images. Any other
# command runs unchanged.
set -euo pipefail

options=()
while IFS= read -r -d '' line; do options+=("$line"); done \
    < <(env -0 | sort -z -t_ -k4 -n | sed -z -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')

classpath=${SPARK_CLASSPATH:-}${SPARK_CLASSPATH:+:}$SPARK_HOME/jars/*
if [ -n "${SPARK_EXTRA_CLASSPATH:-}" ]; then classpath=$SPARK_EXTRA_CLASSPATH:$classpath; fi
if [ -n "${SPARK_CONF_DIR:-}" ]; then
    classpath=$SPARK_CONF_DIR:$classpath
elif [ -d "$SPARK_HOME/conf" ]; then
    classpath=$SPARK_HOME/conf:$classpath
fi

case ${1:-} in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    shift
    exec "$JAVA_HOME/bin/java" "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "$classpath${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
"")
    echo "usage: driver ARGUMENTS of spark-submit | executor | COMMAND" >&2
    exit 2
    ;;
*)
    exec "$@"
    ;;
esac
