#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Apache Kafka 3.9.1 as a peer: three brokers and their ZooKeeper on loopback, from Maven Central's jars.
#
#   kafka.sh DIR fetch                              download missing jars; prints their directory
#   kafka.sh DIR up | down | start ID | kill ID     data, logs and bN.pid in DIR; brokers 1, 2 and 3
#   kafka.sh DIR bootstrap                          print the bootstrap addresses
#   kafka.sh DIR topic NAME PARTITIONS RF [--config KEY=VALUE ...]    create a topic
#   kafka.sh DIR delete NAMES                       delete topics; a regular expression
#   kafka.sh DIR produce NAME ACKS RECORDS SIZE     Kafka's ProducerPerformance; "..., N records/sec ..."
#   kafka.sh DIR consume NAME RECORDS               Kafka's ConsumerPerformance; CSV, the last field is records/s
#
# Jars: the directory TIDEMARK_PEER_KAFKA_LIBS (such as libs/ of Kafka's distribution), otherwise downloaded by `mvn` with
# its own settings. TIDEMARK_PEER_KAFKA_PORT (19090): brokers listen 1, 2 and 3 above it, ZooKeeper 91 above it.
# BATCH (65536): bytes of a producer's batch. HEAP (1g): heap of each broker. IDX: log.index.size.max.bytes; 65536 permits
# 10,000 partitions. TIDEMARK_PEER_KAFKA_TLS: a directory with ca.crt and peer.pem (certificate and PKCS#8 key); clients and
# brokers then speak TLS 1.3 only, with certificates on both sides. CIPHER (TLS_AES_256_GCM_SHA384): their cipher suite.
set -eu

version=3.9.1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
command=$2
shift 2
port=${TIDEMARK_PEER_KAFKA_PORT:-19090}
servers=127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2)),127.0.0.1:$((port + 3))
tls=${TIDEMARK_PEER_KAFKA_TLS:-}
protocol=PLAINTEXT
if [ -n "$tls" ]; then protocol=SSL; fi
libs=${TIDEMARK_PEER_KAFKA_LIBS:-$here/../../.peers/kafka-$version}
java=java
if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi

fetch() {
  if ls "$libs"/kafka_2.13-*.jar >/dev/null 2>&1; then return; fi
  if [ -n "${TIDEMARK_PEER_KAFKA_LIBS:-}" ]; then
    echo "TIDEMARK_PEER_KAFKA_LIBS=$libs has no kafka_2.13-*.jar: name libs/ of a Kafka $version" >&2
    exit 1
  fi
  if ! command -v mvn >/dev/null; then
    echo "Kafka $version is missing: install Maven, which downloads it with its own settings (apt install maven), or" \
      "set TIDEMARK_PEER_KAFKA_LIBS to libs/ of a Kafka $version that you have; TIDEMARK_PEER_KAFKA=none goes without" >&2
    exit 1
  fi
  echo "downloading Kafka $version, 56 MB" >&2
  mkdir -p "$libs"
  mvn -q -B -f "$here/kafka-pom.xml" "-Dkafka.version=$version" "-DbuildDirectory=$libs.part" \
    dependency:copy-dependencies "-DoutputDirectory=$libs.part/jars" >&2
  mv "$libs.part/jars"/*.jar "$libs"
  rm -rf "$libs.part"
}

stores() {
  if [ -z "$tls" ]; then return; fi
  cat <<X
ssl.keystore.type=PEM
ssl.keystore.location=$tls/peer.pem
ssl.truststore.type=PEM
ssl.truststore.location=$tls/ca.crt
ssl.enabled.protocols=TLSv1.3
ssl.cipher.suites=${CIPHER:-TLS_AES_256_GCM_SHA384}
X
}

run() { "$java" "-Dlog4j.configuration=file:$here/kafka-log4j.properties" "$@"; }

broker() {
  cat >"$dir/b$1.properties" <<X
broker.id=$1
listeners=$protocol://127.0.0.1:$((port + $1))
security.inter.broker.protocol=$protocol
ssl.client.auth=required
$(stores)
zookeeper.connect=127.0.0.1:$((port + 91))
log.dirs=$dir/data$1
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
zookeeper.session.timeout.ms=${ZKTO:-6000}
auto.create.topics.enable=false
unclean.leader.election.enable=false
log.segment.delete.delay.ms=1000
log.index.size.max.bytes=${IDX:-10485760}
X
  ulimit -n "$(ulimit -Hn)"
  nohup "$java" "-Dlog4j.configuration=file:$here/kafka-log4j.properties" "-Xmx${HEAP:-1g}" -Xms512m -XX:+UseG1GC \
    kafka.Kafka "$dir/b$1.properties" </dev/null >"$dir/b$1.log" 2>&1 &
  echo $! >"$dir/b$1.pid"
}

up() {
  mkdir -p "$dir/zk"
  printf 'tickTime=2000\ndataDir=%s/zk\nclientPort=%s\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n' \
    "$dir" $((port + 91)) >"$dir/zoo.cfg"
  nohup "$java" "-Dlog4j.configuration=file:$here/kafka-log4j.properties" -Xmx512m -Djute.maxbuffer=8388608 \
    org.apache.zookeeper.server.ZooKeeperServerMain "$dir/zoo.cfg" </dev/null >"$dir/zk.log" 2>&1 &
  echo $! >"$dir/zk.pid"
  for one in 1 2 3; do broker $one; done
  # The brokers end with the calling process, even if it is killed.
  (
    while kill -0 "$PPID" 2>/dev/null; do sleep 1; done
    if [ -f "$dir/zk.pid" ]; then exec "$0" "$dir" down; fi
  ) </dev/null >/dev/null 2>&1 &
  # A broker waits for ZooKeeper by itself; a topic with three replicas needs all three brokers.
  for _ in $(seq 60); do
    found=$(run kafka.admin.BrokerApiVersionsCommand --bootstrap-server "$servers" --command-config "$client" 2>/dev/null | grep -c '(id: ' || true)
    if [ "${found:-0}" -eq 3 ]; then return; fi
    sleep 1
  done
  echo "Kafka did not start after 60 checks; its logs, $dir/b*.log, end with:" >&2
  tail -n 5 "$dir"/b*.log >&2
  exit 1
}

case $command in bootstrap | down | kill) ;; *) fetch ;; esac
CLASSPATH="$libs/*"
export CLASSPATH
client=$dir/client.properties
{
  echo "security.protocol=$protocol"
  stores
} >"$client"
case $command in
fetch) echo "$libs" ;;
up) up ;;
start) broker "$1" ;;
kill) kill -9 "$(cat "$dir/b$1.pid")" ;;
down) for one in b1 b2 b3 zk; do
  if [ -f "$dir/$one.pid" ]; then kill -9 "$(cat "$dir/$one.pid")" 2>/dev/null || true; fi
  rm -f "$dir/$one.pid"
done ;;
bootstrap) echo "$servers" ;;
topic)
  name=$1 partitions=$2 replicas=$3
  shift 3
  run org.apache.kafka.tools.TopicCommand --bootstrap-server "$servers" --command-config "$client" --create --topic "$name" \
    --partitions "$partitions" --replication-factor "$replicas" "$@"
  ;;
delete) run org.apache.kafka.tools.TopicCommand --bootstrap-server "$servers" --command-config "$client" --delete \
  --topic "$1" ;;
produce)
  # Without a payload file, the tool generates each record byte by byte, which takes longer than sending it.
  printf "%0$4d\n" 0 >"$dir/payload"
  run -Xmx512m org.apache.kafka.tools.ProducerPerformance --topic "$1" --num-records "$3" --payload-file "$dir/payload" \
    --throughput -1 --producer.config "$client" --producer-props "bootstrap.servers=$servers" "acks=$2" "batch.size=${BATCH:-65536}" linger.ms=5 \
    buffer.memory=67108864 ${TRANSACTION_MS:+--transactional-id bench --transaction-duration-ms "$TRANSACTION_MS"} | tail -n 1
  ;;
consume) run -Xmx512m org.apache.kafka.tools.ConsumerPerformance --bootstrap-server "$servers" --topic "$1" --messages "$2" \
  --consumer.config "$client" \
  --timeout 60000 --hide-header | tail -n 1 ;;
*)
  echo "no such command: $command" >&2
  exit 2
  ;;
esac
