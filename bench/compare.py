# SPDX-License-Identifier: Apache-2.0
"""Tidemark beside Apache Kafka: produce, consume, end to end; three brokers each on loopback, RF 3, acks=all.

`python -m bench compare [--rounds 5] [--seconds 4]`: medians of the rounds. The first round warms both
up and does not count. In each round every phase runs once on either side, and each round swaps the order; a phase takes
about `--seconds`. Use an idle machine.

- `produce_all_100b_64k`, `produce_all_100b_256k`, `produce_all_1k` (64 KiB): columns through the Arrow API, with
  batches of this size; peer: Kafka's ProducerPerformance with batches of the same size.
- `produce_records_python`: a `send` for each record; peer: confluent-kafka, and aiokafka if installed.
- `consume_arrow_per_s`: `Consumer.batches()` over the records of the first phase; peer: Kafka's ConsumerPerformance.
- `consume_records_per_s`: `async for record`; peers: confluent-kafka, aiokafka.
- `e2e_p50_ms`, `e2e_p99_ms`: one record at a time, from `send` until a consumer has the record; peer: confluent-kafka.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidemark.client import AdminClient
from tidemark.client.aio import Consumer
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.local.cluster import LocalCluster

from bench import latency, produce
from bench.measuring.figures import Figure, report
from bench.peers import KafkaPeer, clients, kafka_peer

T = TypeVar("T")
PARTITIONS = produce.PARTITIONS
SMALL_BYTES, LARGE_BYTES = produce.SIZE_BYTES, 1024
LATENCY_RECORDS_PER_S = 250
"""Records of the end to end phase for each second of its duration."""


class Load(NamedTuple):
    """The input of a phase; a run takes about `seconds`, estimated from the best rate so far."""

    topic: str
    records: int
    seconds: float
    written: int
    """Number of records in the topic."""


class Phase(NamedTuple):
    """A phase of the benchmark: the rate of one side in records per second."""

    name: str
    side: str
    guess_per_s: float
    run: Callable[[Load], float]
    reads: bool = False


def _arrow(bootstrap: str, size_bytes: int, batch_bytes: int) -> Callable[[Load], float]:
    return lambda load: produce.arrow_per_s(
        bootstrap, load.topic, records=load.records, size_bytes=size_bytes, batch_bytes=batch_bytes
    )


def _perf(peer: KafkaPeer, size_bytes: int, batch_bytes: int) -> Callable[[Load], float]:
    return lambda load: peer.produce_per_s(
        load.topic, records=load.records, size_bytes=size_bytes, batch_bytes=batch_bytes
    )


def _on_our_loop(measuring: Coroutine[Any, Any, T]) -> T:
    """One event loop for all phases of Tidemark, since gRPC reports errors for calls that outlive their loop."""
    return background_loop().call(measuring)


async def _batches_per_s(bootstrap: str, load: Load) -> float:
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(load.topic)
        found, started_s = 0, time.perf_counter()
        async for batch in consumer.batches():
            found += batch.rows.num_rows
            if found >= load.written or time.perf_counter() - started_s > load.seconds:
                break
        return found / (time.perf_counter() - started_s)


async def _records_per_s(bootstrap: str, load: Load) -> float:
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(load.topic)
        await anext(consumer)  # as with the peers, the time to connect is not measured
        found = size_bytes = 0
        started_s = time.perf_counter()
        async for record in consumer:
            found += 1
            size_bytes += len(record.value or b"")
            if found + 1 >= load.written or (found % 10_000 == 0 and time.perf_counter() - started_s > load.seconds):
                break
        return found / (time.perf_counter() - started_s)


WRITTEN = "produce_all_100b_64k"
"""The phase whose records the consumers read."""
BATCHES = {
    WRITTEN: (SMALL_BYTES, 64 << 10),
    "produce_all_100b_256k": (SMALL_BYTES, 256 << 10),
    "produce_all_1k": (LARGE_BYTES, 64 << 10),
}
E2E = "e2e"
WARM_UP_S = 4.0


def our_phases(bootstrap: str) -> list[Phase]:
    return [
        *(Phase(name, "tidemark", 20e6 / sizes[0], _arrow(bootstrap, *sizes)) for name, sizes in BATCHES.items()),
        Phase(
            "produce_records_python",
            "tidemark",
            100_000,
            lambda load: produce.records_per_s(bootstrap, load.topic, records=load.records),
        ),
        Phase(
            "consume_arrow_per_s",
            "tidemark",
            1e6,
            lambda load: _on_our_loop(_batches_per_s(bootstrap, load)),
            reads=True,
        ),
        Phase(
            "consume_records_per_s",
            "tidemark",
            1e5,
            lambda load: _on_our_loop(_records_per_s(bootstrap, load)),
            reads=True,
        ),
    ]


def their_phases(peer: KafkaPeer) -> list[Phase]:
    phases = [
        *(Phase(name, "kafka", 20e6 / sizes[0], _perf(peer, *sizes)) for name, sizes in BATCHES.items()),
        Phase(
            "consume_arrow_per_s",
            "kafka",
            500_000,
            lambda load: peer.consume_per_s(load.topic, records=load.written),
            reads=True,
        ),
    ]
    if clients.confluent_is_there():
        phases += _by_record("kafka", clients.confluent_per_s, clients.confluent_consume_per_s)
    if clients.aiokafka_is_there():
        phases += _by_record("aiokafka", clients.aiokafka_per_s, clients.aiokafka_consume_per_s)
    return phases


def _by_record(side: str, send: Callable[..., float], read: Callable[..., float]) -> list[Phase]:
    return [
        Phase(
            "produce_records_python",
            side,
            30_000,
            lambda load: send(load.topic, records=load.records, size_bytes=SMALL_BYTES),
        ),
        Phase(
            "consume_records_per_s",
            side,
            100_000,
            lambda load: read(load.topic, partitions=PARTITIONS, records=load.written, limit_s=load.seconds),
            reads=True,
        ),
    ]


class Rounds:
    """The measured values by figure and side, one for each round."""

    def __init__(self, cluster: LocalCluster, peer: KafkaPeer | None, seconds: float) -> None:
        self.found: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._best_per_s: dict[tuple[str, str], float] = {}
        self._cluster, self._peer, self._seconds = cluster, peer, min(WARM_UP_S, seconds)
        self._phases = [our_phases(cluster.bootstrap), [] if peer is None else their_phases(peer)]
        self._run = int(time.time())
        self.run(0)
        self.found.clear()
        self._seconds = seconds

    def run(self, number: int) -> None:
        """Run one round, then delete its topics."""
        sides = self._phases if number % 2 == 0 else self._phases[::-1]
        names = list(dict.fromkeys(phase.name for phases in sides for phase in phases))
        topics = {name: f"compare-{self._run}-{number}-{name}" for name in (*names, E2E) if "consume" not in name}
        with AdminClient(self._cluster.admin_address) as admin:
            for name, topic in topics.items():
                partitions = 1 if name == E2E else PARTITIONS
                admin.create_topic(topic, partitions=partitions, replication_factor=3)
                if self._peer is not None:
                    self._peer.call("topic", topic, str(partitions), "3")
            written: dict[str, int] = {}
            for name in sorted(names, key=list(BATCHES).__contains__, reverse=True):
                for phase in (phase for phases in sides for phase in phases if phase.name == name):
                    self._measure(phase, topics.get(name, topics[WRITTEN]), written)
            self._latency(topics[E2E], ours_first=number % 2 == 0)
            for topic in topics.values():
                admin.delete_topic(topic)
            if self._peer is not None:
                self._peer.call("delete", f"compare-{self._run}-{number}-.*")

    def _measure(self, phase: Phase, topic: str, written: dict[str, int]) -> None:
        key = phase.name, phase.side
        records = int(self._best_per_s.get(key, phase.guess_per_s) * self._seconds)
        system = "tidemark" if phase.side == "tidemark" else "kafka"
        rate = phase.run(Load(topic, records, self._seconds, written.get(system, 0)))
        if phase.name == WRITTEN:
            rows = produce.ARROW_BATCH_RECORDS
            written[system] = max(1, records // rows) * rows if system == "tidemark" else records
        self._best_per_s[key] = max(rate, self._best_per_s.get(key, 0.0))
        self.found[key].append(rate)
        print(f"  {phase.name:24} {phase.side:10} {rate:>14,.0f} records/s", flush=True)

    def _latency(self, topic: str, *, ours_first: bool) -> None:
        records = max(100, round(self._seconds * LATENCY_RECORDS_PER_S))
        sides: list[tuple[str, Callable[[], list[float]]]] = [
            ("tidemark", lambda: _on_our_loop(latency.ours_ms(self._cluster.bootstrap, topic, records=records)))
        ]
        if self._peer is not None and clients.confluent_is_there():
            sides.append(("kafka", lambda: latency.theirs_ms(topic, records=records)))
        for side, measure in sides if ours_first else sides[::-1]:
            times_ms = measure()
            for name, share in (("e2e_p50_ms", 0.5), ("e2e_p99_ms", 0.99)):
                self.found[name, side].append(latency.percentile(times_ms, share))
            print(f"  {E2E:24} {side:10} {self.found['e2e_p50_ms', side][-1]:>14.2f} ms, median", flush=True)


def figures_of(found: Mapping[tuple[str, str], list[float]]) -> dict[str, Figure]:
    """Medians; aiokafka has separate figures."""
    medians = {key: statistics.median(values) for key, values in found.items()}
    figures = {}
    for (name, side), ours in medians.items():
        if side != "tidemark":
            continue
        times = name.endswith("_ms")
        unit = "ms" if times else "records/s"
        figures[name] = Figure(ours, unit, medians.get((name, "kafka")), lower_is_better=times)
        if (name, "aiokafka") in medians:
            figures[f"{name}_aiokafka"] = Figure(ours, unit, medians[name, "aiokafka"])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds for the medians (5)")
    parser.add_argument("--seconds", type=float, default=4, help="duration of each phase of a round on either side (4)")
    options = parser.parse_args()
    started_s = time.monotonic()
    with (
        kafka_peer(fetch=True) as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        print("warming up", flush=True)
        rounds = Rounds(cluster, peer, options.seconds)
        for number in range(1, options.rounds + 1):
            print(f"round {number} of {options.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            rounds.run(number)
    print(f"{time.monotonic() - started_s:.0f} s in all, load {os.getloadavg()[0]:.1f}")
    report("compare", figures_of(rounds.found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
