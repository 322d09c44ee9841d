# SPDX-License-Identifier: Apache-2.0
"""Times of controller and brokers with thousands of partitions, RF 2, on three brokers on loopback.

`broker_failure_s`: a broker is killed with -9: from the failure detection of the controller until every partition that
    the broker led has a working leader.
`controller_failover_s`: the active controller is killed with -9: from the election of its successor, at the end of the
    old ZooKeeper session, until the new one has read the state, decided, and every broker has answered.
`controlled_shutdown_s`: from SIGTERM to a broker until its process has ended.
`restart_s`: from its start until no partition is under-replicated.
`create_1000_s`, `delete_1000_s`: a topic of 1,000 partitions, until every leader works, and until its nodes are
    deleted; medians, while all other topics exist.
`idle_rss_mb`, `idle_cpu_percent`: the largest values of a broker without load.
`simulated_200k_decide_s`, `simulated_200k_rss_mb`: the controller's core alone; see `_controller_core`.

If Apache Kafka is installed, it runs first, with the figures that `_kafka_controller` can measure.
ISR changes run at the same time as the three failures. A fourth broker has replicas of one more topic. The broker was
silent, so leaders have just removed it from their ISRs; the broker answers again, and rejoins them.

`--partitions N` (10,000), `--no-simulation`; ROUNDS of each, medians. `--slow N`: the services, ZooKeeper and the peer
have 1/N of the CPU (`bench.measuring.slowdown`). A table has the work of each event, which should not depend on N.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import ElectionKind

from bench.measuring import cluster_counters
from bench.measuring.cluster_counters import LEADING, is_in_sync
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.slowdown import Slowdown, slowed
from bench.measuring.watching import LogLines, scrape, usage, wait_until
from bench.peers.kafka_controller import kafka_figures

BROKERS = 3
TOPIC_PARTITIONS = 1000
BESIDE = 3
"""The broker whose replicas leave their ISRs and rejoin."""
BESIDE_PARTITIONS = 400
LAG_MS = 1500
SILENCE_S = 2.0
"""Longer than `LAG_MS`, so that leaders change ISRs, but shorter than a missed heartbeat, so that no broker is
suspected: with two of four brokers suspected, the controller assumes that it is partitioned itself (rule C6)."""
HEARTBEAT_TIMEOUT_MS = 5000
"""The default is 2500: the last answer may be 500 ms older than the silence, so that limit could pass."""
ROUNDS = 3
TIMEOUT_S = 120.0
IDLE_S = 20.0
SETTLE_S = 3.0
LOOK_S = 10.0
"""Time after which all replicas are checked even while they change.

A check takes 0.1 s of CPU time with 10,000 partitions.
"""
CONFIGS = {"min.insync.replicas": "1"}
"""Kafka's default for both: the remaining ISR can continue alone."""
SETTINGS = {
    "broker": {"replica.lag.time.max.ms": str(LAG_MS)},
    "controller": {"controller.heartbeat.timeout.ms": str(HEARTBEAT_TIMEOUT_MS)},
}
OBSERVED = "tidemark_replica_observed_total"
REPLICAS = "tidemark_replica_count"
DECIDED_S = "tidemark_controller_event_duration_seconds_sum"
DECIDED = "tidemark_controller_event_duration_seconds_count"


class Arena:
    """The cluster under measurement, full of partitions."""

    def __init__(self, cluster: LocalCluster, admin: AdminClient, partitions: int, slow: Slowdown) -> None:
        self.cluster = cluster
        self.slow = slow
        self.counted: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
        self.admin = admin
        self.partitions = partitions
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    # -- queries ----------------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """Ids of the brokers with a running process."""
        return [broker for broker in range(BROKERS + 1) if self.cluster.process(broker_name(broker)).running]

    def gauge(self, broker: int, name: str) -> float:
        """A gauge of a broker; -1 if the broker does not answer."""
        return scrape(self.cluster.metrics_address(broker_name(broker)), name).get((name, ()), -1.0)

    def became_leader(self, brokers: list[int]) -> float:
        """Number of leaderships that started in these processes."""
        addresses = [self.cluster.metrics_address(broker_name(broker)) for broker in brokers]
        return sum(scrape(address, OBSERVED).get((OBSERVED, ("became_leader",)), 0.0) for address in addresses)

    def is_in_sync(self, partitions: int) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""
        return is_in_sync(self.cluster, map(broker_name, self.live()), partitions)

    def start_beside(self) -> None:
        """Start the fourth broker, with replicas of one topic."""
        with self.slow.entered():
            self.cluster.restart(broker_name(BESIDE), timeout_s=TIMEOUT_S)
        self.admin.create_topic("beside", partitions=BESIDE_PARTITIONS, replication_factor=3, configs=CONFIGS)
        self.partitions += BESIDE_PARTITIONS
        self.wait_until_in_sync()

    def change_isrs(self) -> None:
        """Let replicas leave their ISRs; they start to rejoin when this returns."""
        self.cluster.pause(broker_name(BESIDE))
        time.sleep(SILENCE_S)
        self.cluster.resume(broker_name(BESIDE))

    def wait_until_in_sync(self, partitions: int | None = None, joining: float = 0) -> float:
        """The wall-clock time at which the condition was true.

        A check of each replica costs a broker 8 µs of CPU time. This waits first until `joining` replicas have joined
        their ISRs, and until no replica changes any more.
        """
        count = self.partitions if partitions is None else partitions
        seen, looked_at, looked_s = self.observed(), None, time.monotonic() if joining else 0.0
        joined = _joined(seen)

        def is_so() -> bool:
            nonlocal seen, looked_at, looked_s
            before, seen = seen, self.observed()
            is_quiet = seen == before != looked_at and _joined(seen) >= joined + joining
            due = is_quiet or time.monotonic() > looked_s + LOOK_S
            if not due:
                return False
            looked_at, looked_s = seen, time.monotonic()
            return self.is_in_sync(count)

        return wait_until("all replicas in sync", is_so, timeout_s=TIMEOUT_S, interval_s=0.1)

    def observed(self) -> list[dict[tuple[str, tuple[str, ...]], float]]:
        """Numbers of the events that replicas have reported, by kind, for each live broker."""
        return [scrape(self.cluster.metrics_address(broker_name(broker)), OBSERVED) for broker in self.live()]

    def active_controller(self) -> str:
        """Name of the active controller process."""
        return controller_name(self.admin.describe_cluster().view.controller_id - 100)

    # -- steps -------------------------------------------------------------------------------------------------

    def create(self, name: str) -> float:
        """Seconds until 1,000 more leaders work."""
        before = self.became_leader(self.live())
        began_s = time.time()
        self.admin.create_topic(name, partitions=TOPIC_PARTITIONS, replication_factor=2, configs=CONFIGS)
        returned_s = time.time() - began_s
        done_s = wait_until(
            "leaders of a new topic",
            lambda: self.became_leader(self.live()) >= before + TOPIC_PARTITIONS,
            timeout_s=TIMEOUT_S,
        )
        print(f"create {name}: {done_s - began_s:.2f} s, create_topic returned after {returned_s:.2f} s")
        return done_s - began_s

    def fill(self) -> None:
        """Create all topics."""
        for index in range(self.partitions // TOPIC_PARTITIONS):
            self.found["create while filling"].append(self.create(f"bench-{index}"))
        self.wait_until_in_sync()

    def create_and_delete(self, number: int) -> None:
        """Create and delete one more topic."""
        name = f"more-{number}"
        self.found["create_1000_s"].append(self.create(name))
        self.wait_until_in_sync(self.partitions + TOPIC_PARTITIONS)
        began_s = time.time()
        self.admin.delete_topic(name)
        self.found["delete_1000_s"].append(time.time() - began_s)
        print(f"delete {name}: {time.time() - began_s:.2f} s")
        self.wait_until_in_sync()

    def idle(self) -> None:
        """Memory and CPU without load."""
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
        """Elect every preferred replica, since a returned broker leads no partition."""
        began_s = time.time()
        moved = sum(one.changed for one in self.admin.elect_leaders(ElectionKind.PREFERRED))
        print(f"{moved} leaderships moved to preferred replicas: {time.time() - began_s:.2f} s")
        self.wait_until_in_sync()

    def kill_broker(self, broker: int) -> None:
        """kill -9, new leaders, and restart."""
        controller = self.active_controller()
        lines = LogLines(self.cluster.process(controller).log)
        survivors = [one for one in self.live() if one != broker]
        led, replicas = self.gauge(broker, LEADING), self.gauge(broker, REPLICAS)
        before = self.became_leader(survivors)
        with self.phases(controller), self.counting("broker_failure_s"):
            self.change_isrs()
            killed_s = time.time()
            self.cluster.kill(broker_name(broker))
            done_s = wait_until(
                "leaders after a broker failure",
                lambda: self.became_leader(survivors) >= before + led,
                timeout_s=TIMEOUT_S,
            )
        noticed_s = min(lines.times_s("heartbeat broke", broker=broker))  # "broker_suspected" is logged later
        print(
            f"broker {broker} killed, which led {led:.0f}: detected after {noticed_s - killed_s:.3f} s, "
            f"the last leader works {done_s - noticed_s:.3f} s later"
        )
        self.found["broker_failure_s"].append(done_s - noticed_s)
        # The end of its session is a second failure event: wait for it, so that it does not disturb the next step.
        wait_until(
            "deregistered",
            lambda: broker not in self.admin.describe_cluster().view.brokers,
            timeout_s=TIMEOUT_S,
            interval_s=1.0,
        )
        self.start_broker(broker, "restart_after_kill_s", replicas)

    def start_broker(self, broker: int, figure: str, replicas: float) -> None:
        """Wait until no partition is under-replicated."""
        began_s = time.time()
        with self.counting(figure):
            with self.slow.entered():
                self.cluster.process(broker_name(broker)).start()
            done_s = self.wait_until_in_sync(joining=replicas)
        self.found[figure].append(done_s - began_s)
        print(f"broker {broker} started: {figure} {done_s - began_s:.2f} s")

    def shut_down_broker(self, broker: int) -> None:
        """SIGTERM, then restart."""
        controller, replicas = self.active_controller(), self.gauge(broker, REPLICAS)
        with self.phases(controller), self.counting("controlled_shutdown_s"):
            self.change_isrs()
            began_s = time.time()
            self.cluster.terminate(broker_name(broker), timeout_s=TIMEOUT_S)
            took_s = time.time() - began_s
        self.found["controlled_shutdown_s"].append(took_s)
        print(f"broker {broker} shut down: {took_s:.2f} s")
        self.start_broker(broker, "restart_s", replicas)

    def kill_controller(self) -> None:
        """kill -9 of the active controller, until every broker has answered the new one."""
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
            "answers of all brokers to the new controller",
            lambda: scrape(address, DECIDED).get(answers, 0.0) >= before + 2 * len(self.live()),
            timeout_s=TIMEOUT_S,
        )
        elected_s = min(lines.times_s("elected"))
        self.found["controller_failover_s"].append(done_s - elected_s)
        print(f"controller killed: every broker has answered the new one {done_s - elected_s:.2f} s after its election")
        with self.slow.entered():
            self.cluster.restart(old, timeout_s=TIMEOUT_S)

    @contextmanager
    def counting(self, figure: str) -> Iterator[None]:
        """Count the events of the processes meanwhile."""
        before = cluster_counters.read(self.cluster)
        yield
        self.counted[figure].append(cluster_counters.between(before, cluster_counters.read(self.cluster)))

    @contextmanager
    def phases(self, controller: str) -> Iterator[None]:
        """Print the time of the controller's event loop for each kind of event.

        BrokerSuspected, BrokersChanged and ControlledShutdownRequested detect and decide. StatesWritten and Tick notify
        brokers.
        """
        address = self.cluster.metrics_address(controller)
        before = scrape(address, DECIDED_S)
        yield
        spent = {
            labels[0]: value - before.get((name, labels), 0.0)
            for (name, labels), value in scrape(address, DECIDED_S).items()
        }
        shown = ", ".join(f"{kind} {took_s:.3f}" for kind, took_s in spent.items() if took_s >= 0.0005)
        print(f"  controller's loop, seconds by event: {shown or 'nothing'}")


def _joined(observed: list[dict[tuple[str, tuple[str, ...]], float]]) -> float:
    return sum(one.get((OBSERVED, ("isr_expanded",)), 0.0) for one in observed)


def simulated() -> dict[str, Figure]:
    """Run the core in a separate process, to measure its memory."""
    command = [sys.executable, "-m", "bench.jobs.controller_core"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {
        "simulated_200k_decide_s": Figure(float(printed[0]), "s", lower_is_better=True),
        "simulated_200k_rss_mb": Figure(float(printed[1]), "MB", lower_is_better=True),
    }


def measure(partitions: int, times: float) -> dict[str, list[float]]:
    """Measure every figure once in each round, with 1/`times` of the CPU."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-"))
        slow = stack.enter_context(slowed(times))
        with slow.entered():
            cluster = stack.enter_context(LocalCluster(Path(directory), brokers=BROKERS + 1, settings=SETTINGS))
        stack.callback(slow.lift)
        admin = stack.enter_context(AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S))
        arena = Arena(cluster, admin, partitions, slow)
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
        print(cluster_counters.table(arena.counted))
        return arena.found


def main() -> int:
    parser = flags_of("controller", __doc__)
    parser.add_argument("--partitions", type=int, default=10_000, metavar="N", help="a multiple of 1,000")
    parser.add_argument("--no-simulation", action="store_true", help="without the core of 200,000 partitions")
    parser.add_argument(
        "--slow", type=float, default=1, metavar="N", help="1/N of the CPU for all services and the peer"
    )
    options = parser.parse_args()
    figures = {} if options.no_simulation else simulated()
    peer = kafka_figures(options.partitions, ROUNDS, options.slow)
    found = measure(options.partitions, options.slow)
    units = {"idle_rss_mb": "MB", "idle_cpu_percent": "%"}
    figures |= {
        name: Figure(statistics.median(values), units.get(name, "s"), peer.get(name), lower_is_better=True)
        for name, values in found.items()
        if " " not in name
    }
    filling = [round(took_s, 2) for took_s in found["create while filling"]]
    print(f"load {os.getloadavg()}; while filling, a topic took {filling}")
    report("controller" if options.slow == 1 else f"controller_slow_{options.slow:g}", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
