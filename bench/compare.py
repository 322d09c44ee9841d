# SPDX-License-Identifier: Apache-2.0
"""Tidemark compared with Apache Kafka: produce, consume, end to end; three brokers each on loopback, RF 3, acks=all.

`python -m bench compare [--rounds 5] [--seconds 4] [--cores 0,1]`: medians of the rounds, and of their ratios with an
interval. The first round warms both up and does not count. In each round every phase runs once on either side, on the
same cores, and each round swaps the order; a phase takes about `--seconds`.

Use an idle machine. A round that other programs disturbed is repeated; with fewer than three undisturbed
rounds there is no ratio (`bench/measuring/disturbance.py` has the limits).

- `produce_all_100b_64k`, `produce_all_100b_256k`, `produce_all_1k` (64 KiB): columns through the Arrow API, with
  batches of this size; peer: Kafka's ProducerPerformance with batches of the same size.
- `produce_records_python`: a `send` for each record; peer: confluent-kafka, and aiokafka if installed.
- `consume_arrow_per_s`: `Consumer.batches()` over the records of the first phase; peer: Kafka's ConsumerPerformance.
- `consume_records_per_s`: lists of records, each value read: `poll_records`; peers: confluent-kafka's `consume`,
  aiokafka's `getmany`.
- `e2e_p50_ms`, `e2e_p99_ms`: one record at a time, from `send` until a consumer has the record; peer: confluent-kafka.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidemark.client import AdminClient
from tidemark.client.aio import Consumer
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.local.cluster import LocalCluster

from bench import latency, produce
from bench.measuring import disturbance
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.rounds import Interval, median_of
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
        await anext(consumer)  # the time to connect is not measured, as for the peers
        found = size_bytes = 0
        started_s = time.perf_counter()
        while found + 1 < load.written and time.perf_counter() - started_s < load.seconds:
            for record in await consumer.poll_records(POLL_S, clients.CONSUME_MAX):
                found += 1
                size_bytes += len(record.value or b"")
        return found / (time.perf_counter() - started_s)


POLL_S = 0.5
WRITTEN = "produce_all_100b_64k"
"""The phase whose records the consumers read."""
BATCHES = {
    WRITTEN: (SMALL_BYTES, 64 << 10),
    "produce_all_100b_256k": (SMALL_BYTES, 256 << 10),
    "produce_all_1k": (LARGE_BYTES, 64 << 10),
}
E2E = "e2e"
WARM_UP_S = 4.0
UNDISTURBED_MIN = 3
"""Number of undisturbed rounds that a ratio needs."""


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
    """The measured values by figure and side, one for each undisturbed round.

    Attributes:
        disturbed: the reasons of the rounds that do not count.
    """

    def __init__(self, cluster: LocalCluster, peer: KafkaPeer | None, seconds: float) -> None:
        self.found: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.disturbed: list[str] = []
        self._best_per_s: dict[tuple[str, str], float] = {}
        self._cluster, self._peer, self._seconds = cluster, peer, min(WARM_UP_S, seconds)
        self._phases = [our_phases(cluster.bootstrap), [] if peer is None else their_phases(peer)]
        self._run = int(time.time())
        self._run_round(0)
        self.found.clear()
        self._seconds = seconds

    def run(self, number: int) -> bool:
        """Run one round; returns whether it counts."""
        kept = {key: list(values) for key, values in self.found.items()}
        before = disturbance.read()
        self._run_round(number)
        reasons = disturbance.between(before, disturbance.read()).reasons
        if reasons:
            self.found = defaultdict(list, kept)
            self.disturbed.append(" and ".join(reasons))
            print(f"  the round does not count: {self.disturbed[-1]}", flush=True)
        return not reasons

    def _run_round(self, number: int) -> None:
        """Measure every phase, then delete the topics."""
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


def figures_of(found: Mapping[tuple[str, str], list[float]], disturbed: str = "") -> dict[str, Figure]:
    """Medians, and the interval of the rounds' ratios; aiokafka has separate figures.

    Args:
        found: values of the rounds, by figure and side.
        disturbed: why no ratio is stated.
    """
    figures = {}
    for (name, side), ours in found.items():
        if side != "tidemark":
            continue
        times = name.endswith("_ms")
        for peer, key in (("kafka", name), ("aiokafka", f"{name}_aiokafka")):
            theirs = found.get((name, peer))
            if theirs is None and peer == "aiokafka":
                continue
            figures[key] = Figure(
                statistics.median(ours),
                "ms" if times else "records/s",
                None if theirs is None else statistics.median(theirs),
                times,
                None if theirs is None else _ratios(ours, theirs, lower_is_better=times),
                disturbed if theirs is not None else "",
            )
    return figures


def _ratios(ours: Sequence[float], theirs: Sequence[float], *, lower_is_better: bool) -> Interval:
    """Ratios of the same rounds: noise that lasts for a round is in both values."""
    pairs = zip(theirs, ours, strict=True) if lower_is_better else zip(ours, theirs, strict=True)
    return median_of([above / below for above, below in pairs])


def main() -> int:
    parser = flags_of("compare", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds for the medians (5)")
    parser.add_argument("--seconds", type=float, default=4, help="duration of each phase of a round on either side (4)")
    parser.add_argument("--cores", default="", help="comma-separated cores for both sides (all that are allowed)")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})  # brokers and peers inherit the cores
    disturbance.adopt_orphans()
    started_s = time.monotonic()
    with (
        kafka_peer(fetch=True) as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        print("warming up", flush=True)
        rounds = Rounds(cluster, peer, options.seconds)
        number = counted = 0
        while counted < options.rounds and number < 2 * options.rounds:
            number += 1
            print(f"round {number}, {counted} of {options.rounds} count", flush=True)
            counted += rounds.run(number)
    print(f"{time.monotonic() - started_s:.0f} s in all, {len(rounds.disturbed)} disturbed rounds")
    if not counted:
        print(f"the machine was disturbed in every round: {rounds.disturbed[-1]}", file=sys.stderr)
        return 1
    few = counted < min(UNDISTURBED_MIN, options.rounds)
    disturbed = f"{counted} of {number} rounds were undisturbed: {rounds.disturbed[-1]}" if few else ""
    report("compare", figures_of(rounds.found, disturbed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
