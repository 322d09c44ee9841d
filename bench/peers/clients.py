# SPDX-License-Identifier: Apache-2.0
"""Kafka's clients for Python, record by record: confluent-kafka, and aiokafka if installed."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
import time
from typing import Any, Final

CONSUME_MAX: Final = 10_000
"""Records of one list that a consumer returns, at most."""
BATCH_BYTES: Final = 65_536
"""Batch size of each producer that sends record by record."""
_LINGER_MS = 5
_FIRST_S = 30.0


def confluent_is_there() -> bool:
    """Whether the record by record clients are available; prints the missing one if not."""
    if os.environ.get("TIDEMARK_PEER_KAFKA_BOOTSTRAP") and importlib.util.find_spec("confluent_kafka") is not None:
        return True
    print("no peer by record: confluent-kafka or TIDEMARK_PEER_KAFKA_BOOTSTRAP is missing", file=sys.stderr)
    return False


def aiokafka_is_there() -> bool:
    """The same for aiokafka."""
    return bool(os.environ.get("TIDEMARK_PEER_KAFKA_BOOTSTRAP")) and importlib.util.find_spec("aiokafka") is not None


def confluent_per_s(topic: str, *, records: int, size_bytes: int) -> float:
    """One run, record by record from Python through confluent-kafka, acks=all."""
    confluent = importlib.import_module("confluent_kafka")
    producer = confluent.Producer(
        {
            "bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": _LINGER_MS,
            "batch.size": BATCH_BYTES,
        }
    )
    value = bytes(size_bytes)
    started_s = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
    return records / (time.perf_counter() - started_s)


def confluent_consume_per_s(topic: str, *, partitions: int, records: int, limit_s: float) -> float:
    """Read values one by one from the start of the topic: this number of records, or fewer after `limit_s`.

    The clock starts after the first records, which do not count, so that the time to connect is not measured.
    """
    confluent = importlib.import_module("confluent_kafka")
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
            "group.id": "bench",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent.TopicPartition(topic, index, 0) for index in range(partitions)])
        size_bytes, found, first = 0, 0, len(consumer.consume(1, _FIRST_S))
        started_s = time.perf_counter()
        while first + found < records and time.perf_counter() - started_s < limit_s:
            for message in consumer.consume(CONSUME_MAX, 0.5):
                if message.error():
                    raise RuntimeError(f"the peer's consumer: {message.error()}")
                size_bytes += len(message.value())
                found += 1
        return found / (time.perf_counter() - started_s)
    finally:
        consumer.close()


def aiokafka_per_s(topic: str, *, records: int, size_bytes: int) -> float:
    """One run, record by record through aiokafka, acks=all."""
    return asyncio.run(_aiokafka_per_s(topic, records, size_bytes))


async def _aiokafka_per_s(topic: str, records: int, size_bytes: int) -> float:
    producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(
        bootstrap_servers=os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
        acks="all",
        enable_idempotence=True,
        linger_ms=_LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    try:
        value = bytes(size_bytes)
        started_s = time.perf_counter()
        for _ in range(records):
            await producer.send(topic, value)
        await producer.flush()
        return records / (time.perf_counter() - started_s)
    finally:
        await producer.stop()


def aiokafka_consume_per_s(topic: str, *, partitions: int, records: int, limit_s: float) -> float:
    """The same as `confluent_consume_per_s`, through aiokafka."""
    return asyncio.run(_aiokafka_consume_per_s(topic, partitions, records, limit_s))


async def _aiokafka_consume_per_s(topic: str, partitions: int, records: int, limit_s: float) -> float:
    aiokafka: Any = importlib.import_module("aiokafka")
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"])
    await consumer.start()
    try:
        wanted = [aiokafka.TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(wanted)
        for one in wanted:
            consumer.seek(one, 0)
        size_bytes = found = 0
        await consumer.getone()
        started_s = time.perf_counter()
        while found + 1 < records and time.perf_counter() - started_s < limit_s:
            for messages in (await consumer.getmany(timeout_ms=500, max_records=CONSUME_MAX)).values():
                for message in messages:
                    size_bytes += len(message.value)
                    found += 1
        return found / (time.perf_counter() - started_s)
    finally:
        await consumer.stop()
