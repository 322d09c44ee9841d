# SPDX-License-Identifier: Apache-2.0
"""Descriptions by the admin service: 2,000 calls at a concurrency of 50, with the admin service on one core.

`describe_cluster_per_s`, `describe_topics_per_s` (all topics): calls/s of DescribeCluster and DescribeTopics, with
    `_p50_ms` and `_p99_ms`: the times of a call, and `_cpu_us`: CPU time of the admin service for a call.
`get_metadata_...`: GetMetadata of a broker, for comparison.
`..._500_...`: the same with 500 topics, which DescribeTopics describes all in each call.

Each run starts after one call that does not count. Medians of ROUNDS. Client processes send and receive bytes. On a
machine with more than one core, they do not run on the core of the admin service. The peer: describeCluster and
describeTopics of Apache Kafka, by confluent-kafka.

`--calls N` (2,000), `--concurrency N` (50), `--processes N` (2), `--rounds N` (3), `--topics N` (500).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tidemark.client import AdminClient
from tidemark.local.cluster import ADMIN, LocalCluster, broker_name
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import broker_service_pb2 as broker_pb

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import usage
from bench.peers import KafkaPeer, confluent_is_there, kafka_peer

FEW_TOPICS = 5
FEW_PARTITIONS = 3
MANY_PARTITIONS = 1
TIMEOUT_S = 120.0
CORE = max(os.sched_getaffinity(0))
PINNED = [
    sys.executable,
    "-c",
    f"import os, sys; os.sched_setaffinity(0, {{{CORE}}}); os.execvp(sys.argv[1], sys.argv[1:])",
]


class Target(NamedTuple):
    """A method to call.

    Attributes:
        process: name of the process that serves it; empty for the peer.
    """

    name: str
    address: str
    method: str
    request: bytes = b""
    process: str = ""
    topics: tuple[str, ...] = ()


class Clients:
    """The processes that call."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._calls = options.calls // options.processes
        self._concurrency = options.concurrency // options.processes
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.jobs.admin_calls"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(options.processes)
        ]

    def run(self, target: Target) -> list[dict[str, Any]]:
        """The result of each process."""
        run = {
            "address": target.address,
            "method": target.method,
            "request": target.request.hex(),
            "topics": target.topics,
            "peer": not target.process,
            "calls": self._calls,
            "concurrency": self._concurrency,
        }
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(run) + "\n")
            process.stdin.flush()
        found = []
        for process in self._processes:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline() or '{"error": "a client process ended"}'))
        failed = [one["error"] for one in found if "error" in one]
        if failed:
            raise RuntimeError(f"{target.method} failed: {failed[0]}")
        return found

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


class Run(NamedTuple):
    """The figures of one run."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def measure(clients: Clients, target: Target, pid: int | None) -> Run:
    """One run of 2,000 calls."""
    before_s = 0.0 if pid is None else usage(pid).cpu_s
    found = clients.run(target)
    used_s = 0.0 if pid is None else usage(pid).cpu_s - before_s
    took_s = sorted(time_s for one in found for time_s in one["took_s"])
    elapsed_s = max(one["ended_s"] for one in found) - min(one["began_s"] for one in found)
    run = Run(
        per_s=len(took_s) / elapsed_s,
        p50_ms=took_s[len(took_s) // 2] * 1000,
        p99_ms=took_s[len(took_s) * 99 // 100] * 1000,
        cpu_us=used_s / len(took_s) * 1e6,
    )
    busy = [round(one["cpu_s"] / elapsed_s * 100) for one in found]
    print(
        f"  {target.name}: {run.per_s:,.0f}/s, p50 {run.p50_ms:.1f} ms, p99 {run.p99_ms:.1f} ms, "
        f"{run.cpu_us:.0f} us of CPU a call, {found[0]['size_bytes']:,} bytes; clients {busy} % of a core; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return run


def medians(runs: list[Run]) -> Run:
    return Run(*(statistics.median(values) for values in zip(*runs, strict=True)))


def create(admin: AdminClient, names: list[str], partitions: int) -> None:
    """Create topics, each with 3 replicas."""
    for name in names:
        admin.create_topic(name, partitions=partitions, replication_factor=3)


def targets(cluster: LocalCluster, suffix: str) -> list[Target]:
    """The methods under measurement."""
    service = "/tidemark.v1.AdminService/"
    return [
        Target(
            f"get_metadata{suffix}",
            cluster.address(broker_name(0)),
            "/tidemark.v1.BrokerService/GetMetadata",
            broker_pb.GetMetadataRequest(all_topics=True).SerializeToString(),
            broker_name(0),
        ),
        Target(
            f"describe_topics{suffix}",
            cluster.admin_address,
            service + "DescribeTopics",
            pb.DescribeTopicsRequest().SerializeToString(),
            ADMIN,
        ),
        Target(
            f"describe_cluster{suffix}",
            cluster.admin_address,
            service + "DescribeCluster",
            pb.DescribeClusterRequest().SerializeToString(),
            ADMIN,
        ),
    ]


def of_tidemark(options: argparse.Namespace, clients: Clients) -> dict[str, Run]:
    """Medians by method, with few and with many topics."""
    found: dict[str, Run] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), launchers={ADMIN: PINNED}) as cluster,
        AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S) as admin,
    ):
        create(admin, [f"few-{index}" for index in range(FEW_TOPICS)], FEW_PARTITIONS)
        for suffix in ("", f"_{options.topics}"):
            if suffix:
                create(admin, [f"many-{index}" for index in range(options.topics - FEW_TOPICS)], MANY_PARTITIONS)
            time.sleep(1.0)
            print(f"{len(admin.list_topics())} topics")
            for target in targets(cluster, suffix):
                pid = cluster.process(target.process).pid
                found[target.name] = medians([measure(clients, target, pid) for _ in range(options.rounds)])
    return found


def of_the_peer(options: argparse.Namespace, clients: Clients) -> dict[str, Run]:
    """The same of Apache Kafka; empty without a peer."""
    with kafka_peer() as peer:
        if peer is None or not confluent_is_there():
            return {}
        address = os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]
        few = tuple(f"few-{int(time.time())}-{index}" for index in range(FEW_TOPICS))
        _create_at_the_peer(peer, few, FEW_PARTITIONS)
        found: dict[str, Run] = {}
        for method in ("describe_topics", "describe_cluster"):
            target = Target(method, address, method, topics=few)
            found[method] = medians([measure(clients, target, None) for _ in range(options.rounds)])
        peer.call("delete", "few-.*")
        return found


def _create_at_the_peer(peer: KafkaPeer, names: tuple[str, ...], partitions: int) -> None:
    for name in names:
        peer.call("topic", name, str(partitions), "3")


def figures(found: dict[str, Run], peer: dict[str, Run]) -> dict[str, Figure]:
    """The figures of the report."""
    shown: dict[str, Figure] = {}
    for name, run in found.items():
        of_peer = peer.get(name)
        shown[f"{name}_per_s"] = Figure(run.per_s, "calls/s", None if of_peer is None else of_peer.per_s)
        for part in ("p50_ms", "p99_ms"):
            value = None if of_peer is None else getattr(of_peer, part)
            shown[f"{name}_{part}"] = Figure(getattr(run, part), "ms", value, lower_is_better=True)
        shown[f"{name}_cpu_us"] = Figure(run.cpu_us, "us/call", lower_is_better=True)
    return shown


def main() -> int:
    parser = flags_of("admin", __doc__)
    parser.add_argument("--calls", type=int, default=2000, metavar="N", help="of a run")
    parser.add_argument("--concurrency", type=int, default=50, metavar="N", help="calls at the same time")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="client processes")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each method; medians count")
    parser.add_argument("--topics", type=int, default=500, metavar="N", help="in the second part")
    options = parser.parse_args()
    clients = Clients(options)
    try:
        found = of_tidemark(options, clients)
        peer = of_the_peer(options, clients)
    finally:
        clients.end()
    print(f"load {os.getloadavg()}; {os.cpu_count()} cores")
    report("admin", figures(found, peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
