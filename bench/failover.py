# SPDX-License-Identifier: Apache-2.0
"""Time until the next acknowledged record when a leader is killed or stopped under a steady acks=all load.

`kill_total_s`: from kill -9 to the acknowledgement of a record of its partition that was sent after it.
`kill_after_detection_s`: the part after the failure detection, by the time in the controller's log.
`stop_total_s`: the same as `kill_total_s`, with SIGSTOP: the leader goes silent and keeps its connections.
Medians of the rounds. The peer runs afterwards: confluent-kafka on Kafka with its defaults, `PEER_ROUNDS` of each.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TidemarkError

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.steady_load import PARTITIONS, SIZE_BYTES, Done, SteadyLoad
from bench.peers import kafka_failover

ROUNDS = 10
PEER_ROUNDS = 3
TOPIC = "load"
WARM_UP_S = 2.0
TIMEOUT_S = 30.0
DETECTED = "heartbeat broke"


def send(producer: Producer, partition: int, done: Done) -> None:
    """Send a record with Tidemark's client."""

    def answered(handle: SendHandle) -> None:
        try:
            handle.result()
        except TidemarkError as error:
            done(error)
        else:
            done(None)

    producer.send(TOPIC, bytes(SIZE_BYTES), partition=partition).add_done_callback(answered)


def detected_s(cluster: LocalCluster, broker: int, after_s: float) -> float:
    """Wall-clock time of the first failure detection of a controller."""
    times = []
    for name in cluster.names:
        if not name.startswith("controller"):
            continue
        for line in cluster.process(name).log.read_text().splitlines():
            fields = json.loads(line)
            when_s = datetime.fromisoformat(fields["time"]).timestamp()
            # The log has milliseconds.
            if fields["message"] == DETECTED and fields.get("broker") == broker and when_s >= after_s - 0.001:
                times.append(when_s)
    return min(times)


def kill_round(cluster: LocalCluster, admin: AdminClient, load: SteadyLoad) -> tuple[float, float]:
    """(total, after detection), in seconds; afterwards the cluster is complete again."""
    leader = _leader_at_work(admin)
    killed_s = time.time()
    cluster.kill(broker_name(leader))
    next_s = load.first_after(killed_s, timeout_s=TIMEOUT_S)
    noticed_s = detected_s(cluster, leader, killed_s)
    cluster.restart(broker_name(leader))
    _wait_until_in_sync(admin)
    print(f"broker {leader} killed: {next_s - killed_s:.3f} s, of it {next_s - noticed_s:.3f} s after detection")
    return next_s - killed_s, next_s - noticed_s


def stop_round(cluster: LocalCluster, admin: AdminClient, load: SteadyLoad) -> float:
    """Total, in seconds; afterwards the cluster is complete again."""
    leader = _leader_at_work(admin)
    stopped_s = time.time()
    cluster.pause(broker_name(leader))
    next_s = load.first_after(stopped_s, timeout_s=TIMEOUT_S)
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
    flags_of("failover", __doc__).parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        with (
            Producer(cluster.bootstrap, acks="all") as producer,
            SteadyLoad(functools.partial(send, producer)) as load,
        ):
            kills = [kill_round(cluster, admin, load) for _ in range(ROUNDS)]
            stops = [stop_round(cluster, admin, load) for _ in range(ROUNDS)]
    if load.failures:
        raise RuntimeError(f"{len(load.failures)} sends failed; the first: {load.failures[0]}")
    peer = kafka_failover.kafka_figures(PEER_ROUNDS)
    found = {
        "kill_total_s": [total for total, _ in kills],
        "kill_after_detection_s": [after for _, after in kills],
        "stop_total_s": stops,
    }
    figures = {
        name: Figure(statistics.median(took), "s", peer.get(name), lower_is_better=True) for name, took in found.items()
    }
    report("failover", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
