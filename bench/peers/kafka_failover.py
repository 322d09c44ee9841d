# SPDX-License-Identifier: Apache-2.0
"""The figures of `bench failover` for Apache Kafka: confluent-kafka, acks=all, idempotent, while a leader is killed or
stopped.

The script of `peers` starts the peer.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.measuring.steady_load import PARTITIONS, SIZE_BYTES, Done, SteadyLoad
from bench.measuring.watching import wait_until
from bench.peers import KafkaPeer, confluent_is_there, kafka_peer
from bench.peers.kafka_controller import is_in_sync

WARM_UP_S = 2.0
TIMEOUT_S = 180.0

Restore = Callable[[], object]
"""Restores the broker."""


def kafka_figures(rounds: int) -> dict[str, float]:
    """Medians of the peer, under the names of Tidemark's figures; empty without a peer."""
    with kafka_peer() as peer:
        if peer is None or not confluent_is_there():
            return {}
        topic = f"failover-{int(time.time())}"
        peer.call("topic", topic, str(PARTITIONS), "3")
        servers = {"bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]}
        admin: Any = importlib.import_module("confluent_kafka.admin").AdminClient(servers)
        producer: Any = importlib.import_module("confluent_kafka").Producer(
            {**servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )
        leader_at_work = functools.partial(_leader_at_work, admin, topic)
        with SteadyLoad(functools.partial(_send, producer, topic)) as load:
            kills = [_round(load, leader_at_work, functools.partial(_kill, peer), "killed") for _ in range(rounds)]
            stops = [_round(load, leader_at_work, functools.partial(_stop, peer), "stopped") for _ in range(rounds)]
        producer.flush(TIMEOUT_S)
        if load.failures:
            print(f"peer: {len(load.failures)} sends failed; the first: {load.failures[0]}")
        return {"kill_total_s": statistics.median(kills), "stop_total_s": statistics.median(stops)}


def _send(producer: Any, topic: str, partition: int, done: Done) -> None:
    while True:
        try:
            producer.produce(topic, bytes(SIZE_BYTES), partition=partition, on_delivery=lambda error, _: done(error))
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.05)


def _round(
    load: SteadyLoad,
    leader_at_work: Callable[[], int],
    inject: Callable[[int], Restore],
    how: str,
) -> float:
    """Seconds; afterwards the peer is complete again."""
    leader = leader_at_work()
    began_s = time.time()
    restore = inject(leader)
    try:
        took_s = load.first_after(began_s, timeout_s=TIMEOUT_S) - began_s
    finally:
        restore()
    print(f"peer: broker {leader} {how}: {took_s:.3f} s")
    return took_s


def _leader_at_work(admin: Any, topic: str) -> int:
    """The leader of partition 0, after every replica is in sync and the load has run for a moment."""
    wait_until("the peer's ISRs", is_in_sync(admin, topic), timeout_s=TIMEOUT_S, interval_s=0.3)
    time.sleep(WARM_UP_S)
    return int(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader)


def _kill(peer: KafkaPeer, broker: int) -> Restore:
    os.kill(peer.pid(broker), signal.SIGKILL)
    return functools.partial(peer.call, "start", str(broker))


def _stop(peer: KafkaPeer, broker: int) -> Restore:
    os.kill(peer.pid(broker), signal.SIGSTOP)
    return functools.partial(os.kill, peer.pid(broker), signal.SIGCONT)
