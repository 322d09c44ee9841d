"""The peer beside us: Apache Kafka, where the environment says how to start it.

TIDEMARK_PEER_KAFKA names a script that takes `DIR up`, `DIR topic NAME PARTITIONS RF`,
`DIR produce NAME ACKS RECORDS SIZE` (its last line says "..., N records/sec ...") and `DIR down`;
TIDEMARK_PEER_KAFKA_DIR the directory it works in (default: a temporary one); TIDEMARK_PEER_KAFKA_BOOTSTRAP where it
listens, which only the comparison with the confluent-kafka package needs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator


class KafkaPeer:
    """A running Kafka cluster of three brokers."""

    def __init__(self, script: str, directory: str) -> None:
        self._script = script
        self._directory = directory

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._script, self._directory, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the peer's {arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def produce_per_s(self, topic: str, *, records: int, size_bytes: int) -> float:
        """One run of Kafka's own perf producer, acks=all."""
        line = self.call("produce", topic, "all", str(records), str(size_bytes)).strip().splitlines()[-1]
        found = re.search(r"([\d.]+) records/sec", line)
        if found is None:
            raise RuntimeError(f"the peer's answer has no rate: {line}")
        return float(found.group(1))


@contextlib.contextmanager
def kafka_peer() -> Iterator[KafkaPeer | None]:
    """The peer, up; None, with a line that says so, where the environment names none."""
    script = os.environ.get("TIDEMARK_PEER_KAFKA")
    if not script:
        print("no peer: TIDEMARK_PEER_KAFKA names no script; peer and ratio are null", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-peer-") as temporary:
        peer = KafkaPeer(script, os.environ.get("TIDEMARK_PEER_KAFKA_DIR", temporary))
        try:
            peer.call("up")
            yield peer
        finally:
            peer.call("down")


def confluent_is_there() -> bool:
    """Whether record by record can be compared; says what is missing if not."""
    if os.environ.get("TIDEMARK_PEER_KAFKA_BOOTSTRAP") and importlib.util.find_spec("confluent_kafka") is not None:
        return True
    print("no peer by record: confluent-kafka or TIDEMARK_PEER_KAFKA_BOOTSTRAP is missing", file=sys.stderr)
    return False


def confluent_per_s(topic: str, *, records: int, size_bytes: int) -> float:
    """One run, record by record from Python through confluent-kafka, acks=all."""
    confluent = importlib.import_module("confluent_kafka")
    producer = confluent.Producer(
        {
            "bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
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
        producer.poll(0)
    producer.flush(120)
    return records / (time.perf_counter() - started_s)
