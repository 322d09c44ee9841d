# SPDX-License-Identifier: Apache-2.0
"""The peer: Apache Kafka, which `kafka.sh` of this directory downloads and starts.

TIDEMARK_PEER_KAFKA names another script with the same commands (see the head of kafka.sh), or "none" for no peer.
TIDEMARK_PEER_KAFKA_DIR is its working directory (default: a temporary one). TIDEMARK_PEER_KAFKA_BOOTSTRAP is the
address of the other script's brokers. TIDEMARK_PEER_KAFKA_LIBS is a directory with Kafka's jars, for a machine that
cannot download them.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.peers.clients import BATCH_BYTES, confluent_is_there, confluent_per_s

__all__ = ["BATCH_BYTES", "KafkaPeer", "beside", "confluent_is_there", "confluent_per_s", "kafka_peer"]

OURS = Path(__file__).with_name("kafka.sh")
_PORTS = 200
_DOWNLOADS = Path(__file__).parents[2] / ".peers"


class KafkaPeer:
    """A running Kafka cluster of three brokers."""

    def __init__(self, script: str, directory: str, environment: Mapping[str, str] | None = None) -> None:
        self.script = script
        self.directory = directory
        self._environment = dict(environment or {})

    def call(self, *arguments: str, **environment: str) -> str:
        """Run a command of the script; returns its output."""
        done = subprocess.run(
            [self.script, self.directory, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, **self._environment, **environment},
        )
        if done.returncode:
            raise RuntimeError(f"the peer's {arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def pid(self, broker: int) -> int:
        """Process id of broker 1, 2 or 3."""
        return int(Path(self.directory, f"b{broker}.pid").read_text())

    def produce_per_s(
        self, topic: str, *, records: int, size_bytes: int, batch_bytes: int = 65_536, transaction_ms: int = 0
    ) -> float:
        """One run of Kafka's own perf producer, acks=all; in transactions of `transaction_ms`, unless 0."""
        environment = {"BATCH": str(batch_bytes)} | ({"TRANSACTION_MS": str(transaction_ms)} if transaction_ms else {})
        printed = self.call("produce", topic, "all", str(records), str(size_bytes), **environment)
        line = printed.strip().splitlines()[-1]
        found = re.search(r"([\d.]+) records/sec", line)
        if found is None:
            raise RuntimeError(f"the peer's answer has no rate: {line}")
        return float(found.group(1))

    def consume_per_s(self, topic: str, *, records: int) -> float:
        """One run of Kafka's own perf consumer, without the time to join its group."""
        line = self.call("consume", topic, str(records)).strip().splitlines()[-1]
        return float(line.rpartition(",")[2])


@contextlib.contextmanager
def kafka_peer(*, fetch: bool = False) -> Iterator[KafkaPeer | None]:
    """The running peer; without a peer prints the reason and returns None.

    Args:
        fetch: download a missing peer; otherwise only an earlier download is used.
    """
    script = os.environ.get("TIDEMARK_PEER_KAFKA") or str(OURS)
    if script == "none":
        print("no peer: TIDEMARK_PEER_KAFKA=none; peer and ratio are null", file=sys.stderr)
        yield None
        return
    ours = script == str(OURS)
    if ours and not fetch and not any(_DOWNLOADS.glob("kafka-*")) and "TIDEMARK_PEER_KAFKA_LIBS" not in os.environ:
        print(f"no peer: `{OURS} DIR fetch` downloads Kafka; peer and ratio are null", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-peer-") as temporary:
        directory = os.environ.get("TIDEMARK_PEER_KAFKA_DIR", temporary)
        peer = KafkaPeer(script, directory)
        if ours:
            try:
                peer.call("fetch")
            except RuntimeError as error:
                sys.exit(str(error))  # the script prints the missing program or variable
            os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"] = peer.call("bootstrap").strip()
        os.environ["TIDEMARK_PEER_KAFKA_DIR"] = directory
        try:
            peer.call("up")
            yield peer
        finally:
            peer.call("down")
            if directory == temporary:
                del os.environ["TIDEMARK_PEER_KAFKA_DIR"]


@contextlib.contextmanager
def beside(peer: KafkaPeer, name: str, environment: Mapping[str, str]) -> Iterator[KafkaPeer]:
    """A second cluster of the same peer, with these variables of its script and other ports."""
    port = int(os.environ.get("TIDEMARK_PEER_KAFKA_PORT", "19090")) + _PORTS
    directory = f"{peer.directory}/{name}"
    second = KafkaPeer(peer.script, directory, {**environment, "TIDEMARK_PEER_KAFKA_PORT": str(port)})
    try:
        second.call("up")
        yield second
    finally:
        second.call("down")
