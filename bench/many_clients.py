# SPDX-License-Identifier: Apache-2.0
"""A thousand producers and a thousand consumers connected to one cluster of three brokers, at a low rate.

Each is a client with its own connections. Producer n sends a record every other second to partition n of one topic with
3 replicas, acks=all, and consumer n reads that partition. A few processes hold the clients.

`clients`: producers and consumers connected at the same time. `missing`: acknowledged records that no consumer read.
`connect_p99_s`: duration of `start()`. `acknowledge_p99_ms`, `deliver_p99_ms`: from `send` to the acknowledgement, and
to the consumer. `broker_rss_mb`: the largest memory of a broker. `broker_kb_per_connection`: its growth since before
the clients connected. `client_kb`: memory of one producer or consumer. `broker_connections`: the most of a broker.

`--pairs N` (1,000), `--processes P` (4), `--seconds S` (20), `--interval S` (2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import usage
from bench.stalls import BUSY, LATENESS, Watch, share_ms

BROKERS = 3
SETTINGS = {"broker": {"max.connections.per.ip": "-1"}}
"""All clients have the address of this machine."""
TOPIC = "many"
TIMEOUT_S = 120.0
SETTLE_S = 2.0


class Workers:
    """The processes of the clients."""

    def __init__(self, bootstrap: str, pairs: int, processes: int, seconds: float, interval_s: float) -> None:
        each = -(-pairs // processes)
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.jobs.many_clients", "--bootstrap", bootstrap, "--topic", TOPIC),
                    *("--first", str(first), "--pairs", str(min(each, pairs - first))),
                    *("--seconds", str(seconds), "--interval", str(interval_s)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in range(0, pairs, each)
        ]

    def results(self) -> list[dict[str, Any]]:
        """The next line of each process."""
        lines = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        if not all(lines):
            raise RuntimeError("a process of clients ended")
        return [json.loads(line) for line in lines]

    def go_on(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def brokers_now(cluster: LocalCluster) -> list[dict[str, float]]:
    """Memory, CPU, sockets and threads of each broker."""
    found = []
    for index in range(BROKERS):
        pid = cluster.process(broker_name(index)).pid
        used = usage(pid)
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        found.append(
            {
                "rss_mb": used.rss_mb,
                "cpu_s": used.cpu_s,
                "sockets": sum(link.startswith("socket:") for link in links),
                "descriptors": len(links),
                "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
            }
        )
        print(f"  broker {index}: {found[-1]}")
    return found


def measure(options: argparse.Namespace, cluster: LocalCluster, admin: AdminClient) -> dict[str, Figure]:
    admin.create_topic(TOPIC, partitions=options.pairs, replication_factor=3)
    time.sleep(SETTLE_S)
    print("before any client is connected:")
    before = brokers_now(cluster)
    watch, began_s = Watch(cluster), time.monotonic()
    workers = Workers(cluster.bootstrap, options.pairs, options.processes, options.seconds, options.interval)
    try:
        connected = workers.results()
        connected_s = time.monotonic() - began_s
        stalls = watch.since()
        print(f"connected after {connected_s:.1f} s; loops' longest, late/busy ms: {longest(stalls)}")
        print(f"clients: {connected}")
        after = brokers_now(cluster)
        watch = Watch(cluster)
        workers.go_on()
        results = workers.results()
        busiest = brokers_now(cluster)
        took_s = max(one["took_s"] for one in results)
        cpu = [(now["cpu_s"] - then["cpu_s"]) / took_s * 100 for then, now in zip(after, busiest, strict=True)]
        print(f"brokers' CPU: {[round(one) for one in cpu]} % of a core")
        print(f"clients: {results}; loops' longest, late/busy ms: {longest(watch.since())}")
        workers.go_on()
        workers.end()
    except BaseException:
        workers.kill()
        raise
    grown = [
        (now["rss_mb"] - then["rss_mb"]) * 1e3 / max(1.0, now["sockets"] - then["sockets"])
        for then, now in zip(before, busiest, strict=True)
    ]
    failures = [one for worker in results for one in worker["failures"]]
    if failures:
        print(f"failures: {failures}")
    lower = {"lower_is_better": True}
    return {
        "clients": Figure(2 * options.pairs, "clients"),
        "records": Figure(sum(one["read"] for one in results), "records"),
        "missing": Figure(sum(one["missing"] for one in results), "records", **lower),
        "failed": Figure(sum(one["sent"] - one["acknowledged"] for one in results), "records", **lower),
        "all_connected_s": Figure(connected_s, "s", **lower),
        "connect_p99_s": Figure(max(one["connect_s"]["p99"] for one in connected), "s", **lower),
        "acknowledge_p99_ms": Figure(max(one["acknowledge_ms"]["p99"] for one in results), "ms", **lower),
        "deliver_p50_ms": Figure(max(one["deliver_ms"]["p50"] for one in results), "ms", **lower),
        "deliver_p99_ms": Figure(max(one["deliver_ms"]["p99"] for one in results), "ms", **lower),
        "broker_rss_mb": Figure(max(one["rss_mb"] for one in busiest), "MB", **lower),
        "broker_kb_per_connection": Figure(max(grown), "kB", **lower),
        "broker_connections": Figure(max(one["sockets"] for one in busiest), "sockets"),
        "broker_cpu_percent": Figure(max(cpu), "%", **lower),
        "client_kb": Figure(sum(one["rss_mb"] for one in results) * 1e3 / (2 * options.pairs), "kB", **lower),
    }


def longest(found: dict[tuple[str, str], dict[float, float]]) -> str:
    """The longest stall of each service."""
    names = dict.fromkeys(name for name, _ in found)
    return ", ".join(
        f"{name} {share_ms(found[name, LATENESS], 1.0):.0f}/{share_ms(found[name, BUSY], 1.0):.0f}" for name in names
    )


def main() -> int:
    parser = flags_of("many_clients", __doc__)
    parser.add_argument("--pairs", type=int, default=1_000, metavar="N", help="producers, and as many consumers")
    parser.add_argument("--processes", type=int, default=4, metavar="P", help="processes of the clients")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="duration of the load")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="seconds between two records of a producer"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), brokers=BROKERS, settings=SETTINGS) as cluster,
        AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S) as admin,
    ):
        report("many_clients", measure(options, cluster, admin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
