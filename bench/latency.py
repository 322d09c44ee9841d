# SPDX-License-Identifier: Apache-2.0
"""One record at a time: from `send` until a consumer has the record, acks=all, RF 3; three brokers on loopback.

`e2e_p50_ms`, `e2e_p99_ms`, `e2e_p999_ms`: of all records of all rounds. The peer is confluent-kafka on Kafka, in the
same loop: produce, flush, poll until the record arrives. The sides take turns by rounds.

`grpc_p50_ms`, `sockets_p50_ms`: the same messages between processes that do nothing else (`bench.jobs.transports`).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.client.aio import Consumer, Producer
from tidemark.local.cluster import LocalCluster

from bench.jobs.transports import TRANSPORTS
from bench.jobs.transports import measure as transport_ms
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.peers import confluent_is_there, kafka_peer

ROUNDS = 3
RECORDS = 2000
WARM_UP = 200
SIZE_BYTES = 100
TIMEOUT_S = 30.0


async def ours_ms(bootstrap: str, topic: str, *, records: int = RECORDS) -> list[float]:
    """Milliseconds of each record."""
    value, found = bytes(SIZE_BYTES), []
    async with Producer(bootstrap, acks="all", linger_ms=0) as producer, Consumer(bootstrap) as consumer:
        await consumer.assign(topic, start="latest")
        for _ in range(WARM_UP + records):
            sent_s = time.perf_counter()
            handle = await producer.send(topic, value, partition=0)
            async with asyncio.timeout(TIMEOUT_S):
                await handle
                await anext(consumer)
            found.append((time.perf_counter() - sent_s) * 1000)
    return found[WARM_UP:]


def theirs_ms(topic: str, *, records: int = RECORDS) -> list[float]:
    """Milliseconds of each record through confluent-kafka."""
    confluent = importlib.import_module("confluent_kafka")
    servers = {"bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]}
    producer = confluent.Producer({**servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    consumer = confluent.Consumer({**servers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 500})
    value, found = bytes(SIZE_BYTES), []
    try:
        end = consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0), timeout=TIMEOUT_S)[1]
        consumer.assign([confluent.TopicPartition(topic, 0, end)])
        for _ in range(WARM_UP + records):
            sent_s = time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.flush(TIMEOUT_S)
            message = consumer.poll(TIMEOUT_S)
            if message is None or message.error():
                raise RuntimeError(f"the peer returned no record: {message and message.error()}")
            found.append((time.perf_counter() - sent_s) * 1000)
    finally:
        consumer.close()
    return found[WARM_UP:]


def percentile(times_ms: list[float], share: float) -> float:
    """The quantile of the times for this share of the records."""
    return statistics.quantiles(times_ms, n=1000, method="inclusive")[round(share * 1000) - 1]


def main() -> int:
    flags_of("latency", __doc__).parse_args()
    ours: list[float] = []
    theirs: list[float] = []
    with (
        kafka_peer() as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        topic = f"latency-{int(time.time())}"
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(topic, partitions=1, replication_factor=3)
        if peer is not None:
            peer.call("topic", topic, "1", "3")
        by_record = peer is not None and confluent_is_there()
        for _ in range(ROUNDS):
            ours += asyncio.run(ours_ms(cluster.bootstrap, topic))
            if by_record:
                theirs += theirs_ms(topic)
    figures = {
        name: Figure(percentile(ours, share), "ms", percentile(theirs, share) if theirs else None, lower_is_better=True)
        for name, share in (("e2e_p50_ms", 0.5), ("e2e_p99_ms", 0.99), ("e2e_p999_ms", 0.999))
    }
    for name in TRANSPORTS:
        figures[f"{name}_p50_ms"] = Figure(percentile(transport_ms(name, RECORDS), 0.5), "ms", lower_is_better=True)
    report("latency", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
