#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# zkServer.sh start-foreground [FILE]: the part of ZooKeeper's own script that a container needs.
# FILE is zoo.cfg by default; a FILE without a path is in $ZOOCFGDIR (/conf).
# Java gets $JVMFLAGS and $SERVER_JVMFLAGS; $ZK_SERVER_HEAP is the heap in MB.
set -eu
if [ "${1:-}" != start-foreground ]; then
    echo "usage: zkServer.sh start-foreground [FILE]" >&2
    exit 2
fi
file=${2:-zoo.cfg}
case $file in */*) ;; *) file=${ZOOCFGDIR:-/conf}/$file ;; esac
if [ ! -r "$file" ]; then
    echo "zkServer.sh: there is no configuration $file: mount one there, or name a FILE" >&2
    exit 1
fi
# shellcheck disable=SC2086  # flags are words
exec java -Xmx"${ZK_SERVER_HEAP:-256}m" -XX:+UseSerialGC -XX:-UsePerfData \
    -Dzookeeper.admin.enableServer=false -Dlog4j2.configurationFile=/opt/zookeeper/log4j2.properties \
    ${JVMFLAGS:-} ${SERVER_JVMFLAGS:-} -cp '/opt/zookeeper/lib/*' \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$file"
