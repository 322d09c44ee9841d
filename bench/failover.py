"""A leader is killed, or stopped, under a steady acks=all load: how long until the next acknowledged record.

`kill_total_s`: from kill -9 to the acknowledgement of a record of its partition that was sent after it.
`kill_after_detection_s`: the part of it after the controller had noticed, by the time in the controller's log.
`stop_total_s`: the same as `kill_total_s`, with SIGSTOP: the leader goes silent and keeps its connections.
Medians of the rounds. No peer is started: peer and ratio are null.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TidemarkError

from bench.figures import Figure, report

ROUNDS = 10
PARTITIONS = 6
TOPIC = "load"
RECORDS_PER_S = 2000
WARM_UP_S = 2.0
TIMEOUT_S = 30.0
DETECTED = "heartbeat broke"


class SteadyLoad:
    """Sends to every partition in turn; keeps what was acknowledged last in each."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load")
        self.failures: list[TidemarkError] = []
        self.acknowledged: list[tuple[int, float, float]] = []
        """(partition, sent, acknowledged), in seconds of the wall clock."""

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def first_after(self, partition: int, sent_after_s: float) -> float:
        """When the first record of `partition` that was sent after that time was acknowledged."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            times = [
                acked for where, sent, acked in list(self.acknowledged) if where == partition and sent >= sent_after_s
            ]
            if times:
                return min(times)
            time.sleep(0.01)
        raise RuntimeError(f"nothing acknowledged in partition {partition} within {TIMEOUT_S:.0f} s")

    def _send(self) -> None:
        started_s, index = time.monotonic(), 0
        while not self._ended.wait(max(0.0, started_s + index / RECORDS_PER_S - time.monotonic())):
            partition = index % PARTITIONS
            done = functools.partial(self._done, partition, time.time())
            self._producer.send(TOPIC, bytes(100), partition=partition).add_done_callback(done)
            index += 1

    def _done(self, partition: int, sent_s: float, handle: SendHandle) -> None:
        try:
            handle.result()
        except TidemarkError as error:
            self.failures.append(error)
        else:
            self.acknowledged.append((partition, sent_s, time.time()))


def detected_s(cluster: LocalCluster, broker: int, after_s: float) -> float:
    """When a controller first noticed, wall clock."""
    times = []
    for name in cluster.names:
        if not name.startswith("controller"):
            continue
        for line in cluster.process(name).log.read_text().splitlines():
            told = json.loads(line)
            when_s = datetime.fromisoformat(told["time"]).timestamp()
            # The log has milliseconds.
            if told["message"] == DETECTED and told.get("broker") == broker and when_s >= after_s - 0.001:
                times.append(when_s)
    return min(times)


def kill_round(cluster: LocalCluster, admin: AdminClient, load: SteadyLoad) -> tuple[float, float]:
    """(total, after detection), in seconds; the cluster is whole again afterwards."""
    leader = _leader_at_work(admin)
    killed_s = time.time()
    cluster.kill(broker_name(leader))
    next_s = load.first_after(0, killed_s)
    noticed_s = detected_s(cluster, leader, killed_s)
    cluster.restart(broker_name(leader))
    _wait_until_in_sync(admin)
    print(f"broker {leader} killed: {next_s - killed_s:.3f} s, of it {next_s - noticed_s:.3f} s after detection")
    return next_s - killed_s, next_s - noticed_s


def stop_round(cluster: LocalCluster, admin: AdminClient, load: SteadyLoad) -> float:
    """Total, in seconds; the cluster is whole again afterwards."""
    leader = _leader_at_work(admin)
    stopped_s = time.time()
    cluster.pause(broker_name(leader))
    next_s = load.first_after(0, stopped_s)
    cluster.resume(broker_name(leader))
    _wait_until_in_sync(admin)
    print(f"broker {leader} stopped: {next_s - stopped_s:.3f} s")
    return next_s - stopped_s


def _leader_at_work(admin: AdminClient) -> int:
    time.sleep(WARM_UP_S)
    return admin.describe_topics([TOPIC])[0].partitions[0].leader


def _wait_until_in_sync(admin: AdminClient) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(
        len(partition.in_sync_replicas) < len(partition.assigned_replicas)
        for partition in admin.describe_topics([TOPIC])[0].partitions.values()
    ):
        if time.monotonic() > deadline_s:
            raise RuntimeError("the restarted broker did not come back into the ISR")
        time.sleep(0.1)


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with Producer(cluster.bootstrap, acks="all") as producer, SteadyLoad(producer) as load:
            kills = [kill_round(cluster, admin, load) for _ in range(ROUNDS)]
            stops = [stop_round(cluster, admin, load) for _ in range(ROUNDS)]
    if load.failures:
        raise RuntimeError(f"{len(load.failures)} sends failed; the first: {load.failures[0]}")
    figures = {
        "kill_total_s": Figure(statistics.median(total for total, _ in kills), "s", lower_is_better=True),
        "kill_after_detection_s": Figure(statistics.median(after for _, after in kills), "s", lower_is_better=True),
        "stop_total_s": Figure(statistics.median(stops), "s", lower_is_better=True),
    }
    report("failover", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
