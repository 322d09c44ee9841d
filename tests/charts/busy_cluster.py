# SPDX-License-Identifier: Apache-2.0
"""A busy cluster for dashboards: producers, a group, a throttled reassignment, a streaming query of Spark."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import ADMIN, LocalCluster, broker_name, controller_name
from tidemark.model import ElectionKind, PartitionReassignment, TopicPartition
from tidemark_spark.progress_metrics import MetricsListener

BROKERS: Final = 3
CONTROLLERS: Final = 2
TOPIC: Final = "flights"
MOVED: Final = "archive"
GROUP: Final = "readers"
_MOVED_BYTES: Final = 24 << 20
_THROTTLE_BYTES_S: Final = 400 << 10
_CHUNK: Final = bytes(64 << 10)


def targets(cluster: LocalCluster) -> dict[str, dict[str, str]]:
    """Addresses to scrape of a local cluster, by component and name."""
    return {
        "broker": {broker_name(n): cluster.metrics_address(broker_name(n)) for n in range(BROKERS)},
        "controller": {controller_name(n): cluster.metrics_address(controller_name(n)) for n in range(CONTROLLERS)},
        "admin": {ADMIN: cluster.metrics_address(ADMIN)},
    }


class BusyCluster:
    """Runs the load while its context is entered."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory, brokers=BROKERS, controllers=CONTROLLERS)
        self._held = ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.spark: MetricsListener | None = None

    def __enter__(self) -> BusyCluster:
        with ExitStack() as held:
            held.enter_context(self.cluster)
            self.spark = MetricsListener("127.0.0.1", 0)
            held.callback(self.spark.close)
            with AdminClient(self.cluster.admin_address) as admin:
                admin.create_topic(TOPIC, partitions=4, replication_factor=3, configs={"flush.policy": "group-commit"})
                admin.create_topic(MOVED, partitions=1, replication_factor=2)
            held.callback(self._end)
            for work in (self._produce, self._consume, self._stream, self._administer):
                self._threads.append(threading.Thread(target=work, name=work.__name__))
                self._threads[-1].start()
            self._move()
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def targets(self) -> dict[str, dict[str, str]]:
        """Addresses to scrape."""
        assert self.spark is not None
        return targets(self.cluster) | {"spark": {"driver": f"127.0.0.1:{self.spark.port}"}}

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _move(self) -> None:
        """Run a reassignment that is slow enough to be visible for half a minute or more.

        A throttle must exceed the produce rate of the leader, so the other replica becomes leader first.
        """
        with Producer(self.cluster.bootstrap) as producer:
            for _ in range(_MOVED_BYTES // len(_CHUNK)):
                producer.send(MOVED, _CHUNK, partition=0)
            producer.flush(30)
        where = TopicPartition(MOVED, 0)
        with AdminClient(self.cluster.admin_address) as admin:
            first, second = admin.describe_topics([MOVED])[0].partitions[0].assigned_replicas
            self._begin(admin, PartitionReassignment(where, (second, first)))
            [elected] = admin.elect_leaders(ElectionKind.PREFERRED, [where])
            assert elected.error is None, elected.error
            third = next(broker for broker in range(BROKERS) if broker not in (first, second))
            self._begin(admin, PartitionReassignment(where, (second, third)), _THROTTLE_BYTES_S)

    def _begin(self, admin: AdminClient, move: PartitionReassignment, throttle_bytes_per_s: int = 0) -> None:
        begun = admin.alter_partition_reassignments([move], throttle_bytes_per_s=throttle_bytes_per_s)
        refused = [outcome.error for outcome in begun.outcomes if outcome.error is not None]
        assert not refused, refused
        if not throttle_bytes_per_s:
            for _ in admin.watch_partition_reassignments([move.partition]):
                pass

    def _produce(self) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            number = 0
            while not self._stop.wait(0.02):
                for _ in range(20):
                    producer.send(TOPIC, bytes(200), key=str(number).encode())
                    number += 1

    def _consume(self) -> None:
        with Consumer(self.cluster.bootstrap, group=GROUP, auto_commit_interval_ms=500) as consumer:
            consumer.subscribe([TOPIC])
            while not self._stop.is_set():
                consumer.poll(0.2)

    def _administer(self) -> None:
        """Create and delete topics, so that leaders are elected and the admin service has calls."""
        with AdminClient(self.cluster.admin_address) as admin:
            number = 0
            while not self._stop.wait(1.0):
                admin.create_topic(f"short-{number}", replication_factor=3)
                admin.delete_topic(f"short-{number}")
                number += 1

    def _stream(self) -> None:
        """The metrics that Spark would report for a query that reads the topic; other tests run Spark."""
        assert self.spark is not None
        metrics = self.spark.metrics
        metrics.started("q", "copy", time.time())
        before = 0
        while not self._stop.wait(0.5):
            metrics.progressed(_progress(before, before + 10), time.time())
            before += 10


def _progress(start: int, end: int) -> dict[str, Any]:
    def offsets(offset: int) -> str:
        partitions = {str(index): {"offset": offset, "leaderEpoch": 0, "incarnation": "i"} for index in range(4)}
        return json.dumps({"version": 1, "cluster": "c", "topics": {TOPIC: {"id": "t", "partitions": partitions}}})

    source = {"numInputRows": 4 * (end - start), "startOffset": offsets(start), "endOffset": offsets(end)}
    phases = {"triggerExecution": 400, "addBatch": 300, "latestOffset": 50, "walCommit": 50}
    return {"id": "q", "name": "copy", "durationMs": phases, "sources": [source | {"latestOffset": offsets(end + 100)}]}
