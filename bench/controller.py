# SPDX-License-Identifier: Apache-2.0
"""Thousands of partitions, RF 2, over three brokers on loopback: what the controller and the brokers need for each.

`broker_failure_s`: a broker is killed with -9: from its detection by the controller until every partition that it led
    has a leader at work.
`controller_failover_s`: the active controller is killed with -9: from its successor's election, which the end of its
    session in ZooKeeper brings at once, until that has read everything, decided, and every broker has answered.
`controlled_shutdown_s`: SIGTERM to a broker until its process has ended.
`restart_s`: from its start until no partition is under-replicated.
`create_1000_s`, `delete_1000_s`: a topic of 1,000 partitions, until every leader is at work, until its nodes are gone;
    medians, while all others are there.
`idle_rss_mb`, `idle_cpu_percent`: of the broker that needs most, with nothing going on.
`simulated_200k_decide_s`, `simulated_200k_rss_mb`: the controller's core alone; see `_controller_core`.

Apache Kafka goes before us where there is one, with what `_kafka_controller` can see of it.
ISR changes run beside the three that end a process: a fourth broker, which has replicas of one more topic, has just
answered again after a silence that took it out of their ISRs, and is taken in again.

`--partitions N` (10,000), `--no-simulation`; ROUNDS of each, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import ElectionKind

from bench._kafka_controller import kafka_figures
from bench.figures import Figure, report
from bench.watching import LogLines, scrape, usage, wait_until

BROKERS = 3
TOPIC_PARTITIONS = 1000
BESIDE = 3
"""The broker whose replicas leave ISRs and come back."""
BESIDE_PARTITIONS = 400
LAG_MS = 1500
SILENCE_S = 2.0
"""Beyond `LAG_MS`, so that leaders change ISRs, and short of a missed heartbeat, so that nobody is suspected: with two
of four suspected the controller would rather doubt itself (rule C6)."""
ROUNDS = 3
TIMEOUT_S = 120.0
IDLE_S = 20.0
SETTLE_S = 3.0
CONFIGS = {"min.insync.replicas": "1"}
"""Kafka's default for both: the ISR that is left can go on alone."""
SETTINGS = {"broker": {"replica.lag.time.max.ms": str(LAG_MS)}}
OBSERVED = "tidemark_replica_observed_total"
UNDER_REPLICATED = "tidemark_replica_under_replicated"
LEADING = "tidemark_replica_leader_count"
DECIDED_S = "tidemark_controller_event_duration_seconds_sum"
DECIDED = "tidemark_controller_event_duration_seconds_count"


class Arena:
    """The cluster under measurement, full of partitions."""

    def __init__(self, cluster: LocalCluster, admin: AdminClient, partitions: int) -> None:
        self.cluster = cluster
        self.admin = admin
        self.partitions = partitions
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    # -- what can be seen --------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """Ids of the brokers whose process lives."""
        return [broker for broker in range(BROKERS + 1) if self.cluster.process(broker_name(broker)).running]

    def gauge(self, broker: int, name: str) -> float:
        """A gauge of a broker; -1 when it does not answer."""
        return scrape(self.cluster.metrics_address(broker_name(broker)), name).get((name, ()), -1.0)

    def became_leader(self, brokers: list[int]) -> float:
        """How many leaderships have begun in these processes."""
        addresses = [self.cluster.metrics_address(broker_name(broker)) for broker in brokers]
        return sum(scrape(address, OBSERVED).get((OBSERVED, ("became_leader",)), 0.0) for address in addresses)

    def is_whole(self, partitions: int) -> bool:
        """Every partition is led, and every one has all its replicas in sync."""
        told = [
            scrape(self.cluster.metrics_address(broker_name(broker)), UNDER_REPLICATED, LEADING)
            for broker in self.live()
        ]
        leading = sum(one.get((LEADING, ()), 0.0) for one in told)
        return leading == partitions and not any(one.get((UNDER_REPLICATED, ()), 1.0) for one in told)

    def start_beside(self) -> None:
        """The fourth broker and a topic that it has replicas of."""
        self.cluster.restart(broker_name(BESIDE))
        self.admin.create_topic("beside", partitions=BESIDE_PARTITIONS, replication_factor=3, configs=CONFIGS)
        self.partitions += BESIDE_PARTITIONS
        self.wait_until_whole()

    def change_isrs(self) -> None:
        """Replicas have left their ISRs, and begin to come back when this returns."""
        self.cluster.pause(broker_name(BESIDE))
        time.sleep(SILENCE_S)
        self.cluster.resume(broker_name(BESIDE))

    def wait_until_whole(self, partitions: int | None = None) -> float:
        """The wall-clock time at which it was."""
        count = self.partitions if partitions is None else partitions
        return wait_until("whole", lambda: self.is_whole(count), timeout_s=TIMEOUT_S, interval_s=0.1)

    def active_controller(self) -> str:
        """Name of the controller process at work."""
        return controller_name(self.admin.describe_cluster().view.controller_id - 100)

    # -- what is done ------------------------------------------------------------------------------------------

    def create(self, name: str) -> float:
        """Seconds until 1,000 more leaders are at work."""
        before = self.became_leader(self.live())
        began_s = time.time()
        self.admin.create_topic(name, partitions=TOPIC_PARTITIONS, replication_factor=2, configs=CONFIGS)
        told_s = time.time() - began_s
        done_s = wait_until(
            "leaders of a new topic",
            lambda: self.became_leader(self.live()) >= before + TOPIC_PARTITIONS,
            timeout_s=TIMEOUT_S,
        )
        print(f"create {name}: {done_s - began_s:.2f} s, create_topic returned after {told_s:.2f} s")
        return done_s - began_s

    def fill(self) -> None:
        """All topics."""
        for index in range(self.partitions // TOPIC_PARTITIONS):
            self.found["create while filling"].append(self.create(f"bench-{index}"))
        self.wait_until_whole()

    def create_and_delete(self, number: int) -> None:
        """One topic more, and no more."""
        name = f"more-{number}"
        self.found["create_1000_s"].append(self.create(name))
        self.wait_until_whole(self.partitions + TOPIC_PARTITIONS)
        began_s = time.time()
        self.admin.delete_topic(name)
        self.found["delete_1000_s"].append(time.time() - began_s)
        print(f"delete {name}: {time.time() - began_s:.2f} s")
        self.wait_until_whole()

    def idle(self) -> None:
        """Memory and CPU with nothing going on."""
        time.sleep(SETTLE_S)
        pids = [self.cluster.process(broker_name(broker)).pid for broker in self.live()]
        before = [usage(pid) for pid in pids]
        began_s = time.monotonic()
        time.sleep(IDLE_S)
        took_s = time.monotonic() - began_s
        after = [usage(pid) for pid in pids]
        shares = [(now.cpu_s - then.cpu_s) / took_s * 100 for then, now in zip(before, after, strict=True)]
        self.found["idle_rss_mb"].append(max(one.rss_mb for one in after))
        self.found["idle_cpu_percent"].append(max(shares))
        print(f"idle: {[round(one.rss_mb) for one in after]} MB, {[round(share, 1) for share in shares]} % of a core")

    def lead_evenly(self) -> None:
        """Every preferred replica leads, as whoever was away leads nothing when it is back."""
        began_s = time.time()
        moved = sum(one.changed for one in self.admin.elect_leaders(ElectionKind.PREFERRED))
        print(f"{moved} leaderships went back to preferred replicas: {time.time() - began_s:.2f} s")
        self.wait_until_whole()

    def kill_broker(self, broker: int) -> None:
        """kill -9, new leaders, and its return."""
        controller = self.active_controller()
        lines = LogLines(self.cluster.process(controller).log)
        survivors = [one for one in self.live() if one != broker]
        led = self.gauge(broker, LEADING)
        before = self.became_leader(survivors)
        with self.phases(controller):
            self.change_isrs()
            killed_s = time.time()
            self.cluster.kill(broker_name(broker))
            done_s = wait_until(
                "leaders after a broker's death",
                lambda: self.became_leader(survivors) >= before + led,
                timeout_s=TIMEOUT_S,
            )
        noticed_s = min(lines.times_s("heartbeat broke", broker=broker))  # "broker_suspected" is told with the decision
        print(
            f"broker {broker} killed, which led {led:.0f}: detected after {noticed_s - killed_s:.3f} s, "
            f"the last leader at work {done_s - noticed_s:.3f} s later"
        )
        self.found["broker_failure_s"].append(done_s - noticed_s)
        # Its session's end is a second failure, of what is left of it; it shall not disturb what comes next.
        wait_until(
            "deregistered",
            lambda: broker not in self.admin.describe_cluster().view.brokers,
            timeout_s=TIMEOUT_S,
            interval_s=1.0,
        )
        self.start_broker(broker, "restart_after_kill_s")

    def start_broker(self, broker: int, figure: str) -> None:
        """Until nothing is under-replicated."""
        began_s = time.time()
        self.cluster.process(broker_name(broker)).start()
        done_s = self.wait_until_whole()
        self.found[figure].append(done_s - began_s)
        print(f"broker {broker} started: {figure} {done_s - began_s:.2f} s")

    def shut_down_broker(self, broker: int) -> None:
        """SIGTERM, then its return."""
        controller = self.active_controller()
        with self.phases(controller):
            self.change_isrs()
            began_s = time.time()
            self.cluster.terminate(broker_name(broker), timeout_s=TIMEOUT_S)
            took_s = time.time() - began_s
        self.found["controlled_shutdown_s"].append(took_s)
        print(f"broker {broker} shut down: {took_s:.2f} s")
        self.start_broker(broker, "restart_s")

    def kill_controller(self) -> None:
        """kill -9 of the active one, until the other has told everybody."""
        old = self.active_controller()
        new = next(name for name in map(controller_name, range(2)) if name != old)
        lines = LogLines(self.cluster.process(new).log)
        address = self.cluster.metrics_address(new)
        answers = (DECIDED, ("ControlAnswered",))
        before = scrape(address, DECIDED).get(answers, 0.0)
        self.change_isrs()
        self.cluster.kill(old)
        # Every broker answers LeaderAndIsr and UpdateMetadata.
        done_s = wait_until(
            "a new controller that told everybody",
            lambda: scrape(address, DECIDED).get(answers, 0.0) >= before + 2 * len(self.live()),
            timeout_s=TIMEOUT_S,
        )
        elected_s = min(lines.times_s("elected"))
        self.found["controller_failover_s"].append(done_s - elected_s)
        print(f"controller killed: the new one has told everybody {done_s - elected_s:.2f} s after its election")
        self.cluster.restart(old)

    @contextmanager
    def phases(self, controller: str) -> Iterator[None]:
        """Prints what the controller's event loop spent on each kind of event meanwhile.

        BrokerSuspected, BrokersChanged and ShutdownWanted are detection and decision; StatesWritten and Tick inform.
        """
        address = self.cluster.metrics_address(controller)
        before = scrape(address, DECIDED_S)
        yield
        spent = {
            labels[0]: value - before.get((name, labels), 0.0)
            for (name, labels), value in scrape(address, DECIDED_S).items()
        }
        told = ", ".join(f"{kind} {took_s:.3f}" for kind, took_s in spent.items() if took_s >= 0.0005)
        print(f"  controller's loop, seconds by event: {told or 'nothing'}")


def simulated() -> dict[str, Figure]:
    """In a process of its own, for its memory."""
    command = [sys.executable, "-m", "bench._controller_core"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {
        "simulated_200k_decide_s": Figure(float(told[0]), "s", lower_is_better=True),
        "simulated_200k_rss_mb": Figure(float(told[1]), "MB", lower_is_better=True),
    }


def measure(partitions: int) -> dict[str, list[float]]:
    """Every figure, as often as there are rounds."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), brokers=BROKERS + 1, settings=SETTINGS) as cluster,
        AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S) as admin,
    ):
        arena = Arena(cluster, admin, partitions)
        cluster.terminate(broker_name(BESIDE))
        arena.fill()
        arena.idle()
        for number in range(ROUNDS):
            arena.create_and_delete(number)
        arena.start_beside()
        for number in range(ROUNDS):
            print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}")
            arena.lead_evenly()
            arena.kill_broker(number % BROKERS)
            arena.lead_evenly()
            arena.shut_down_broker((number + 1) % BROKERS)
            arena.kill_controller()
        arena.idle()
        return arena.found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench controller")
    parser.add_argument("--partitions", type=int, default=10_000, metavar="N", help="a multiple of 1,000")
    parser.add_argument("--no-simulation", action="store_true", help="without the core of 200,000 partitions")
    options = parser.parse_args()
    figures = {} if options.no_simulation else simulated()
    peer = kafka_figures(options.partitions, ROUNDS)
    found = measure(options.partitions)
    units = {"idle_rss_mb": "MB", "idle_cpu_percent": "%"}
    figures |= {
        name: Figure(statistics.median(values), units.get(name, "s"), peer.get(name), lower_is_better=True)
        for name, values in found.items()
        if " " not in name
    }
    filling = [round(took_s, 2) for took_s in found["create while filling"]]
    print(f"load {os.getloadavg()}; while filling, a topic took {filling}")
    report("controller", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
