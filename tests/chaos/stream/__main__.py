# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos.stream --load N`: a Spark stream through two kills of brokers and one of its driver.

A producer writes numbers to a topic; a driver under spark-submit copies the topic to Parquet and to another topic.
Two brokers, one after the other, and then the driver are killed with kill -9 in mid-batch, and started again. At the
end every acknowledged number must be in both, and in Parquet once. The topic may have numbers of the killed driver's
micro-batch twice; the report has their count, and the time to the first row.

Spark gives a Python worker 10 s to connect, and no setting changes that: a query whose worker needs longer fails as it
starts. Such a driver is started again, as a restart policy does, and the report has the number of these starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name

from tests.chaos.bounded import run_and_tell
from tests.chaos.machine import LOADS, Burners, computing_s, other_load, slowness
from tests.chaos.stream.numbered_records import Numbers, count_numbers, has_records
from tests.spark.harness.submitted import batches, driver

SCRIPT = Path(__file__).with_name("driver.py")
SOURCE, TARGET, PARTITIONS = "numbers", "copied", 6
AT_A_TIME = 20_000
"""Records of one micro-batch."""
BATCHES_BETWEEN = 3
"""Micro-batches that each query does between two kills."""
SPARK_GAVE_UP = "Python worker failed to connect back"
STARTS_MAX = 5
"""Starts of a driver, if Spark kills a slow worker of each."""
START_S = 30.0
STEP_S = 120.0
"""Bound of each wait for the stream."""
ROUND_S = 900.0
_POLL_S = 0.05


@dataclass
class Report:
    """Figures of a round; `findings` is empty if there are none."""

    acknowledged: int = 0
    in_parquet: int = 0
    starts_again: int = 0
    """Starts of a driver after Spark killed a slow Python worker."""
    duplicates: int = 0
    """Rows of the target topic beyond the first of each number."""
    times_s: dict[str, float] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        times = ", ".join(f"{what} {after_s:.1f} s" for what, after_s in self.times_s.items())
        verdict = "all is well" if not self.findings else "\n  ".join(["WRONG:", *self.findings[:20]])
        return (
            f"{self.acknowledged} acknowledged, {self.in_parquet} rows in Parquet, {self.duplicates} duplicates in the "
            f"topic\n  {times}\n  killed: {', '.join(self.killed)}\n"
            f"  {self.starts_again} more starts: Spark gave up on a Python worker after 10 s\n  {verdict}"
        )


class DriverEndedError(AssertionError):
    """A driver ended by itself."""


class StreamRound:
    """One round, in a directory of its own; `slowness` multiplies the bounds on liveness."""

    def __init__(self, directory: Path, seed: int, rate: int, slow: float) -> None:
        self.report = Report()
        self._place = directory
        self._chance = random.Random(seed)
        self._rate = rate
        self._step_s = STEP_S * slow
        self._start_s = START_S * slow
        self._checkpoints = [directory / "to-parquet", directory / "to-topic"]
        self._log = directory / "driver.log"

    def run(self) -> Report:
        """Start a cluster and the drivers, kill, and compare."""
        cluster = LocalCluster(self._place / "cluster")
        cluster.start(self._start_s)
        try:
            with AdminClient(admin=cluster.admin_address, timeout_s=self._start_s) as admin:
                for topic in (SOURCE, TARGET):
                    configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
                    admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3, configs=configs)
            numbers = Numbers(cluster.bootstrap, SOURCE, PARTITIONS, self._rate)
            numbers.start()
            try:
                self._until_the_driver_is_killed(cluster)
                self._from_the_checkpoint(cluster, numbers)
            finally:
                numbers.finish()
            copied = count_numbers(cluster.bootstrap, TARGET, PARTITIONS, self._step_s)
        finally:
            cluster.kill_all()
        self._compare(numbers, copied)
        return self.report

    def _until_the_driver_is_killed(self, cluster: LocalCluster) -> None:
        with self._driver_after(cluster, lambda process: self._time_first_rows(cluster, process)) as process:
            for broker in self._chance.sample(range(3), 2):
                self._wait_for_batches(process)
                self._kill_broker(cluster, broker_name(broker))
            self._wait_for_batches(process)
            time.sleep(self._chance.uniform(0.0, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            self.report.killed.append("the driver")

    def _from_the_checkpoint(self, cluster: LocalCluster, numbers: Numbers) -> None:
        began_s, before = time.monotonic(), [len(batches(one, "commits")) for one in self._checkpoints]

        def time_next_rows(process: subprocess.Popen[bytes]) -> None:
            for what, checkpoint, count in zip(("Parquet", "the topic"), self._checkpoints, before, strict=True):
                self._wait(process, lambda: len(batches(checkpoint, "commits")) > count, "a micro-batch")  # noqa: B023
                self.report.times_s[f"again in {what} after"] = time.monotonic() - began_s

        with self._driver_after(cluster, time_next_rows) as process:
            self._wait_for_batches(process)
            numbers.finish()
            (self._place / "stop").touch()
            try:
                status = process.wait(self._step_s)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the driver did not copy the rest within {self._step_s:.0f} s") from None
            assert status == 0, f"the driver ended with {status}: {self._tail()}"

    @contextlib.contextmanager
    def _driver_after(
        self, cluster: LocalCluster, first_rows: Callable[[subprocess.Popen[bytes]], None]
    ) -> Iterator[subprocess.Popen[bytes]]:
        for start in range(STARTS_MAX):
            with self._driver(cluster) as process:
                try:
                    first_rows(process)
                except DriverEndedError:
                    if SPARK_GAVE_UP not in self._log.read_text(errors="replace") or start == STARTS_MAX - 1:
                        raise
                    self.report.starts_again += 1
                    continue
                yield process
                return

    def _driver(self, cluster: LocalCluster) -> AbstractContextManager[subprocess.Popen[bytes]]:
        self._log = self._place / f"driver-{len(self.report.killed)}-kills-{self.report.starts_again}.log"
        for name in ("session", "queries"):
            (self._place / name).unlink(missing_ok=True)
        words = (cluster.bootstrap, SOURCE, TARGET, str(self._place), str(AT_A_TIME))
        return driver(self._log, SCRIPT, *words)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _wait(self, process: subprocess.Popen[bytes], holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + self._step_s
        while not holds():
            if process.poll() is not None:
                raise DriverEndedError(f"the driver ended with {process.returncode}: {self._tail()}")
            assert time.monotonic() < until_s, f"no {what} within {self._step_s:.0f} s: {self._tail()}"
            time.sleep(_POLL_S)

    def _time_first_rows(self, cluster: LocalCluster, process: subprocess.Popen[bytes]) -> None:
        """Measure the time of the first driver to its first rows, from its start under spark-submit."""
        began_s = time.monotonic()
        steps: dict[str, Callable[[], bool]] = {
            "session after": (self._place / "session").exists,
            "queries after": (self._place / "queries").exists,
            "planned after": lambda: all(batches(one, "offsets") for one in self._checkpoints),
            "first row in Parquet after": lambda: any((self._place / "parquet" / "_spark_metadata").glob("[0-9]*")),
            "first row in the topic after": lambda: (
                bool(batches(self._checkpoints[1], "offsets"))
                and has_records(cluster.bootstrap, TARGET, PARTITIONS, self._step_s)
            ),
        }

        def note() -> bool:
            for what in tuple(steps):
                if steps[what]():
                    del steps[what]
                    self.report.times_s[what] = time.monotonic() - began_s
            return not steps

        self._wait(process, note, "first row")

    def _wait_for_batches(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until each query has completed more micro-batches, and at least one is in the middle of one."""
        before = [len(batches(one, "commits")) for one in self._checkpoints]

        def in_mid_batch() -> bool:
            done = [batches(one, "commits") for one in self._checkpoints]
            planned = [batches(one, "offsets") for one in self._checkpoints]
            more = all(len(one) >= count + BATCHES_BETWEEN for one, count in zip(done, before, strict=True))
            return more and all(have - one for have, one in zip(planned, done, strict=True))

        self._wait(process, in_mid_batch, f"{BATCHES_BETWEEN} micro-batches and the middle of another")

    def _kill_broker(self, cluster: LocalCluster, name: str) -> None:
        cluster.kill(name)
        self.report.killed.append(name)
        time.sleep(self._chance.uniform(0.5, 5.0))
        cluster.restart(name, self._start_s)

    def _compare(self, numbers: Numbers, copied: Counter[int]) -> None:
        report = self.report
        rows = read_parquet(self._place / "parquet")
        report.acknowledged, report.in_parquet = len(numbers.acknowledged), sum(rows.values())
        report.duplicates = sum(copied.values()) - len(copied)
        report.findings += numbers.failures
        for where, found in (("Parquet", rows), ("the topic", copied)):
            missing = sorted(numbers.acknowledged - found.keys())
            if missing:
                report.findings.append(f"{len(missing)} acknowledged numbers are not in {where}: {missing[:20]}")
            if invented := sorted(found.keys() - range(numbers.sent)):
                report.findings.append(f"{where} has numbers that were never sent: {invented[:20]}")
        if twice := sorted(number for number, count in rows.items() if count > 1):
            report.findings.append(f"{len(twice)} numbers are twice in Parquet: {twice[:20]}")
        if report.duplicates > AT_A_TIME:
            report.findings.append(f"{report.duplicates} duplicates, more than the killed driver's one micro-batch")


def read_parquet(path: Path) -> Counter[int]:
    """How often each number is in the files that the log of Spark's file sink lists.

    Without Spark: the start of a JVM forks, which gRPC in this process does not survive.
    """
    entries = [
        json.loads(line)
        for log in (path / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]  # the first line is a version
    ]
    found: Counter[int] = Counter()
    for name in {Path(entry["path"]).name for entry in entries if entry["action"] == "add"}:
        found.update(map(int, pq.read_table(path / name, columns=["value"]).column("value").to_pylist()))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: the round had no finding; 1: it had, and its directory is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.stream", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--load", type=int, default=LOADS[-1], metavar="N", help="processes that compute during the round (20)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the kills and their times")
    parser.add_argument(
        "--rate", type=int, help="records a second that are produced (1000, or as the machine is slower)"
    )
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    directory = Path(tempfile.mkdtemp(prefix="tidemark-stream-"))
    name = f"stream, seed {seed}, load {given.load}"
    with Burners(given.load):
        busy = other_load()
        slow = slowness(busy, computing_s())
        print(f"{name}: {busy:.0f} busy threads at the start", flush=True)
        # A faster producer would send more than the stream can copy on a busy machine.
        round_ = StreamRound(directory, seed, given.rate or round(1000 / slow), slow)
        return run_and_tell(round_.run, round_.report, ROUND_S * slow, name, directory)


if __name__ == "__main__":
    sys.exit(main())
