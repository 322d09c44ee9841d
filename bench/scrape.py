# SPDX-License-Identifier: Apache-2.0
"""Time of a scrape of a broker with 3,000 partitions, and the stall of its event loop.

Three brokers, each with a replica of every partition and a batch in each replica. One scraper keeps its connection and
accepts gzip, like Prometheus; brokers take turns.

`scrape_ms`, `scrape_max_ms`: from the request until the complete answer, median and longest; `first_ms`: the first
    scrape of a broker, which has no labels cached yet.
`scrape_cpu_ms`: CPU time of a broker for a scrape, which is the duration on an idle machine.
`without_partitions_ms`, `without_partitions_cpu_ms`: the same with metrics.partitions=false.
`stall_ms`: the longest stall of these brokers' event loops during the scrapes; `stall_busy_ms`: the most of it that was
    the broker's own work. Upper bounds of a histogram's buckets, up to 25 ms too low.
`series`, `size_kb`, `zipped_kb`: size of one answer.

`--partitions N` (3,000), `--scrapes N` of each broker (20).
"""

from __future__ import annotations

import gzip
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidemark.client import AdminClient, Producer
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster, broker_name

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import scrape, wait_until
from bench.stalls import BUSY, LATENESS, histogram, share_ms

BROKERS = 3
TOPIC_PARTITIONS = 1000
TIMEOUT_S = 120.0
PAUSE_S = 0.1
CPU = "process_cpu_seconds_total"
IDLE_S = 5.0
PATIENT = {kind: {"zookeeper.session.timeout.ms": "30000"} for kind in ("broker", "controller")}
"""Deadline in which three brokers open thousands of logs, also on a small machine."""
EVERY_BROKER = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)


class Scraper:
    """One connection to one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)

    def scrape(self) -> tuple[float, bytes]:
        """Milliseconds, and the raw answer."""
        began_s = time.perf_counter()
        self._connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        answer = self._connection.getresponse().read()
        return (time.perf_counter() - began_s) * 1000, answer

    def cpu_s(self) -> float:
        """CPU time that the broker has used."""
        return sum(scrape(self.address, CPU).values())

    def longest_ms(self, name: str, before: dict[float, float]) -> float:
        """The highest bucket bound among the new samples of a histogram."""
        now = histogram(self.address, name)
        return share_ms({bound: count - before.get(bound, 0) for bound, count in now.items()}, 1)


def fill(cluster: LocalCluster, partitions: int) -> None:
    """Create topics, and write a batch to each partition."""
    topics = {
        f"topic-{number}": min(TOPIC_PARTITIONS, partitions - number * TOPIC_PARTITIONS)
        for number in range(-(-partitions // TOPIC_PARTITIONS))
    }
    with AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S) as admin, Producer(cluster.bootstrap) as producer:
        for topic, count in topics.items():
            admin.create_topic(topic, partitions=count, replication_factor=BROKERS)
        for topic, count in topics.items():
            for partition in range(count):
                producer.send(topic, b"x" * 100, partition=partition)
        producer.flush(TIMEOUT_S)


class Measured(NamedTuple):
    """Figures of all brokers: first and later times, CPU time of a scrape, the longest stall and its busy part."""

    first_ms: list[float]
    later_ms: list[float]
    cpu_ms: float
    stall_ms: float
    stall_busy_ms: float


def measured(scrapers: list[Scraper], count: int) -> Measured:
    """Scrape in turn, after measuring the CPU time of idle brokers."""
    before_s, began_s = sum(one.cpu_s() for one in scrapers), time.perf_counter()
    time.sleep(IDLE_S)
    used_s, now_s = sum(one.cpu_s() for one in scrapers), time.perf_counter()
    idle_share = (used_s - before_s) / (now_s - began_s)
    stalls = [(one, histogram(one.address, LATENESS), histogram(one.address, BUSY)) for one in scrapers]
    first_ms = [one.scrape()[0] for one in scrapers]
    before_s, began_s = sum(one.cpu_s() for one in scrapers), time.perf_counter()
    later_ms = []
    for _ in range(count):
        for one in scrapers:
            time.sleep(PAUSE_S / len(scrapers))
            later_ms.append(one.scrape()[0])
    used_s = sum(one.cpu_s() for one in scrapers) - before_s - idle_share * (time.perf_counter() - began_s)
    return Measured(
        first_ms,
        later_ms,
        1000 * max(0.0, used_s) / len(later_ms),
        max(one.longest_ms(LATENESS, before) for one, before, _ in stalls),
        max(one.longest_ms(BUSY, before) for one, _, before in stalls),
    )


def run(cluster: LocalCluster, partitions: int, count: int) -> dict[str, Figure]:
    """Measure all figures."""
    fill(cluster, partitions)
    scrapers = [Scraper(cluster.metrics_address(broker_name(broker))) for broker in range(BROKERS)]
    for one in scrapers:
        wait_until(
            "every broker has every replica", _has(one, "tidemark_replica_count", partitions), timeout_s=TIMEOUT_S
        )
    time.sleep(PAUSE_S * 20)  # followers have received the last high watermarks
    everything = measured(scrapers, count)
    zipped = scrapers[0].scrape()[1]
    text = gzip.decompress(zipped)
    with AdminClient(cluster.admin_address) as admin:
        admin.alter_configs(EVERY_BROKER, {"metrics.partitions": "false"})
    for one in scrapers:
        wait_until("series of partitions are switched off", _is_short(one), timeout_s=TIMEOUT_S)
    sums = measured(scrapers, count)
    milliseconds = {
        "scrape_ms": statistics.median(everything.later_ms),
        "scrape_max_ms": max(everything.later_ms),
        "first_ms": max(everything.first_ms),
        "scrape_cpu_ms": everything.cpu_ms,
        "without_partitions_ms": statistics.median(sums.later_ms),
        "without_partitions_cpu_ms": sums.cpu_ms,
        "stall_ms": everything.stall_ms,
        "stall_busy_ms": everything.stall_busy_ms,
    }
    return {name: Figure(value, "ms", lower_is_better=True) for name, value in milliseconds.items()} | {
        "series": Figure(sum(not line.startswith(b"#") for line in text.splitlines()), "series"),
        "size_kb": Figure(len(text) / 1000, "kB"),
        "zipped_kb": Figure(len(zipped) / 1000, "kB"),
    }


def _has(one: Scraper, name: str, value: float) -> Callable[[], bool]:
    return lambda: value in scrape(one.address, name).values()


def _is_short(one: Scraper) -> Callable[[], bool]:
    return lambda: b"tidemark_partition_" not in gzip.decompress(one.scrape()[1])


def main() -> None:
    parser = flags_of("scrape", __doc__)
    parser.add_argument("--partitions", type=int, default=3000)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args(sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), brokers=BROKERS, controllers=1, settings=PATIENT) as cluster,
    ):
        report("scrape", run(cluster, options.partitions, options.scrapes))


if __name__ == "__main__":
    main()
