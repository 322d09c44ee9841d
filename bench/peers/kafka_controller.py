# SPDX-License-Identifier: Apache-2.0
"""The figures of `bench controller` for Apache Kafka, as far as its admin client and its processes show them: create,
delete, shutdown, restart.

The script of `peers` starts the peer.
"""

from __future__ import annotations

import importlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.measuring.slowdown import Slowdown, slowed
from bench.measuring.watching import wait_until
from bench.peers import KafkaPeer, confluent_is_there, kafka_peer

BROKERS = 3
TOPIC_PARTITIONS = 1000
TIMEOUT_S = 300.0
SMALL_INDEXES_BYTES = "65536"
"""Kafka maps each index completely; with its default, thousands of replicas do not fit on a disk."""


def kafka_figures(partitions: int, rounds: int, times: float = 1) -> dict[str, float]:
    """Medians of the peer, under the names of Tidemark's figures, with 1/`times` of the CPU; empty without a peer."""
    os.environ.setdefault("IDX", SMALL_INDEXES_BYTES)
    with ExitStack() as stack:
        slow = stack.enter_context(slowed(times))
        with slow.entered():
            peer = stack.enter_context(kafka_peer())
        if peer is None or not confluent_is_there():
            return {}
        admin: Any = importlib.import_module("confluent_kafka.admin").AdminClient(
            {"bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]}
        )
        # The script waits for the first broker only.
        wait_until("the peer's brokers", lambda: _broker_count(admin) == BROKERS, timeout_s=TIMEOUT_S)
        run = f"{int(time.time())}"
        names = [f"bench-{run}-{index}" for index in range(partitions // TOPIC_PARTITIONS)]
        filling = [_create(admin, name) for name in names]
        print(f"peer: while filling, a topic took {[round(took_s, 2) for took_s in filling]}")
        found: dict[str, list[float]] = {
            name: [] for name in ("create_1000_s", "delete_1000_s", "controlled_shutdown_s", "restart_s")
        }
        for number in range(rounds):
            name = f"more-{run}-{number}"
            found["create_1000_s"].append(_create(admin, name))
            found["delete_1000_s"].append(_delete(admin, name))
            shutdown_s, restart_s = _bounce(peer, slow, admin, 1 + (number + 1) % BROKERS)
            found["controlled_shutdown_s"].append(shutdown_s)
            found["restart_s"].append(restart_s)
            print(f"peer: round {number + 1}: { {name: round(values[-1], 2) for name, values in found.items()} }")
        for name in [name for name in _topics(admin) if name.startswith("bench-")]:
            _delete(admin, name)  # leave the directory unchanged for the next benchmark
        return {name: statistics.median(values) for name, values in found.items()}


def _broker_count(admin: Any) -> int:
    return len(admin.list_topics(timeout=TIMEOUT_S).brokers)


def _create(admin: Any, name: str) -> float:
    """Wait until every partition has a leader and its full ISR."""
    new_topic = importlib.import_module("confluent_kafka.admin").NewTopic
    began_s = time.time()
    topic = new_topic(name, num_partitions=TOPIC_PARTITIONS, replication_factor=2)
    for future in admin.create_topics([topic], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S).values():
        future.result()
    return wait_until("the peer's topic", is_in_sync(admin, name), timeout_s=TIMEOUT_S) - began_s


def _delete(admin: Any, name: str) -> float:
    began_s = time.time()
    for future in admin.delete_topics([name], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S).values():
        future.result()
    gone_s = wait_until("the deletion of the peer's topic", lambda: name not in _topics(admin), timeout_s=TIMEOUT_S)
    return gone_s - began_s


def _bounce(peer: KafkaPeer, slow: Slowdown, admin: Any, broker: int) -> tuple[float, float]:
    """Time from SIGTERM to the end of the process, and from its start until no partition is under-replicated."""
    pid = peer.pid(broker)
    began_s = time.time()
    os.kill(pid, signal.SIGTERM)
    shutdown_s = wait_until("the peer's end", lambda: not _runs(pid), timeout_s=TIMEOUT_S) - began_s
    began_s = time.time()
    with slow.entered():
        peer.call("start", str(broker))
    restart_s = wait_until("the peer's ISRs", is_in_sync(admin, None), timeout_s=TIMEOUT_S, interval_s=0.3) - began_s
    return shutdown_s, restart_s


def is_in_sync(admin: Any, name: str | None) -> Callable[[], bool]:
    """Whether every partition of a topic, or of all topics, has a leader and all its replicas in sync."""

    def looked() -> bool:
        topics = [topic for topic in _topics(admin).values() if name in (None, topic.topic)]
        return bool(topics) and all(
            partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )

    return looked


def _topics(admin: Any) -> dict[str, Any]:
    found: dict[str, Any] = admin.list_topics(timeout=TIMEOUT_S).topics
    return found


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
