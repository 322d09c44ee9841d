# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos.flights`: roll up the flights while brokers and drivers are killed.

The first --days of the flights of 2013 go to a topic, day by day, with acks=all. A driver under spark-submit runs
pipelines/rollup.py with --updates into another topic. Each of the --kills ends a broker and then the driver, with kill
-9 in the middle of a micro-batch; both are started again. A last driver reads the rest. A reader with read_committed
must then find in the output the rows that pandas computes, and must find no row twice: each row of a carrier and an
hour has more flights than the row before.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from tidemark.client import AdminClient, Producer, read_table
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark_spark.jobs import flights
from tidemark_spark.jobs.flights_feed import EVENT_TIME, SCHEMA, Day

from tests.chaos.bounded import run_and_tell
from tests.chaos.machine import computing_s, other_load, slowness
from tests.spark.harness.submitted import ROOT, batches, driver

SCRIPT = ROOT / "spark" / "pipelines" / "rollup.py"
SOURCE, TARGET = "flights", "delays"
AT_A_TIME = 8_000
"""Flights of one micro-batch."""
FLIGHTS_A_DAY = 800
"""A day in winter has some more."""
SETTINGS = {"spark.sql.shuffle.partitions": "2"}
"""By default, Spark divides the state into 200 parts, each with a file for each micro-batch."""
BATCHES_BETWEEN = 1
"""Micro-batches that are committed between two kills."""
BATCHES_PER_KILL = 3
"""Full micro-batches that the kill of a broker and of a driver takes; the first are smaller, as the feed starts."""
START_S = 60.0
STEP_S = 180.0
"""Bound of each wait for the rollup."""
ROUND_S = 2400.0
_DELIVERY_MS = 600_000
_POLL_S = 0.02


@dataclass
class Report:
    """Figures of a run; `findings` is empty if there are none."""

    sent: int = 0
    rows: int = 0
    """Rows of the output."""
    windows: int = 0
    """Pairs of carrier and hour."""
    killed: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "all is well" if not self.findings else "\n  ".join(["WRONG:", *self.findings[:20]])
        return (
            f"{self.sent} flights sent, {self.rows} rows of {self.windows} carriers and hours in the output\n"
            f"  killed: {', '.join(self.killed)}\n  {verdict}"
        )


class FlightsRun:
    """One run, in a directory of its own; `slowness` multiplies the bounds on liveness."""

    def __init__(self, directory: Path, seed: int, days: int, kills: int, slow: float) -> None:
        self.report = Report()
        self._place = directory
        self._chance = random.Random(seed)
        self._days, self._table = flights.flights_of(days)
        self._kills = kills
        self._start_s, self._step_s = START_S * slow, STEP_S * slow
        self._checkpoint = directory / "checkpoint"

    def run(self) -> Report:
        """Start a cluster, feed, roll up and kill, and compare."""
        with LocalCluster(self._place / "cluster") as cluster:
            with AdminClient(admin=cluster.admin_address, timeout_s=self._start_s) as admin:
                made = draft_from_ddl(SCHEMA).keyed(event_time=EVENT_TIME), draft_from_ddl(flights.ROLLED_UP)
                for name, schema in zip((SOURCE, TARGET), made, strict=True):
                    configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
                    admin.create_topic(name, partitions=6, replication_factor=3, configs=configs, schema=schema)
            feeding = threading.Thread(target=self._feed, args=(cluster.bootstrap,), name="feed", daemon=True)
            feeding.start()
            for index in range(self._kills):
                self._roll_up_and_kill(cluster, index)
            feeding.join(ROUND_S)
            self._roll_up_the_rest(cluster)
            self._compare(cluster.bootstrap)
        return self.report

    def _feed(self, bootstrap: str) -> None:
        """Send the days one after the other; the driver may lag, because its watermark covers the whole year."""
        try:
            with Producer(bootstrap, acks="all", delivery_timeout_ms=_DELIVERY_MS) as producer:
                for day in self._days:
                    self._send(producer, day)
        except Exception:  # noqa: BLE001 - each error is a finding
            self.report.findings.append(f"the feed ended: {traceback.format_exc()}")

    def _send(self, producer: Producer, day: Day) -> None:
        for handle in [producer.send(SOURCE, record) for record in day.records]:
            handle.result(_DELIVERY_MS / 1000)
        self.report.sent += len(day.records)

    def _roll_up_and_kill(self, cluster: LocalCluster, index: int) -> None:
        log = self._place / f"driver-{index}.log"
        with driver(log, SCRIPT, *self._words(cluster), "--every", "0 seconds", settings=SETTINGS) as process:
            self._wait_until_in_mid_batch(process, log)
            name = broker_name(self._chance.randrange(3))
            cluster.kill(name)
            self.report.killed.append(name)
            time.sleep(self._chance.uniform(0.5, 3.0))
            cluster.restart(name, self._start_s)
            self._wait_until_in_mid_batch(process, log)
            time.sleep(self._chance.uniform(0.0, 1.5))  # the middle of a micro-batch has many steps
            os.killpg(process.pid, signal.SIGKILL)
            self.report.killed.append("the driver")

    def _roll_up_the_rest(self, cluster: LocalCluster) -> None:
        log = self._place / "driver-last.log"
        with driver(log, SCRIPT, *self._words(cluster), settings=SETTINGS) as process:
            status = process.wait(self._step_s * 5)
        assert status == 0, f"the last driver ended with {status}: {_tail(log)}"

    def _words(self, cluster: LocalCluster) -> Sequence[str]:
        return (
            *("--bootstrap", cluster.bootstrap, "--topic", SOURCE, "--to-topic", TARGET, "--time", EVENT_TIME),
            *("--window", "1 hour", "--by", "carrier", "--updates", "--watermark", "400 days"),
            *("--checkpoint", str(self._checkpoint), "--max-offsets", str(AT_A_TIME)),
            *(word for text in flights.AGGREGATES for word in ("--aggregate", text)),
        )

    def _wait_until_in_mid_batch(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until the rollup has committed some more micro-batches, and is in the middle of one."""
        before = len(batches(self._checkpoint, "commits"))

        def in_mid_batch() -> bool:
            done = batches(self._checkpoint, "commits")
            return len(done) >= before + BATCHES_BETWEEN and bool(batches(self._checkpoint, "offsets") - done)

        self._wait(process, log, in_mid_batch)

    def _wait(self, process: subprocess.Popen[bytes], log: Path, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + self._step_s
        while not holds():
            assert process.poll() is None, f"the driver ended with {process.returncode}: {_tail(log)}"
            assert time.monotonic() < until_s, f"no micro-batch within {self._step_s:.0f} s: {_tail(log)}"
            time.sleep(_POLL_S)

    def _compare(self, bootstrap: str) -> None:
        columns = [*flights.COLUMNS, "_partition", "_offset"]
        found = read_table(bootstrap, TARGET, columns=columns, isolation_level="read_committed").read_all().to_pandas()
        found["start"] = found["start"].dt.tz_localize(None)
        expected = flights.delays_by_pandas(self._table)
        found = found.sort_values(["_partition", "_offset"])
        self.report.rows, self.report.windows = len(found), len(expected)
        self.report.findings += repeated(found)
        last = found.drop_duplicates(["start", "carrier"], keep="last")
        self.report.findings += flights.differences(flights.in_order(last), expected)


def repeated(found: pd.DataFrame) -> list[str]:
    """Rows without more flights than the row before of the same carrier and hour: a micro-batch counts twice."""
    more = found.groupby(["start", "carrier"])["flights"].diff()
    wrong = found[more <= 0]
    if not len(wrong):
        return []
    first = wrong.iloc[0]
    return [f"{len(wrong)} rows repeat an earlier one, the first {first['carrier']} at {first['start']}"]


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: the output equals pandas; 1: it does not, and the directory of the run is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.flights", description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=365, metavar="N", help="the first N days of the year (365)")
    parser.add_argument("--kills", type=int, default=5, metavar="N", help="of brokers, and as many of drivers (5)")
    parser.add_argument("--seed", type=int, default=None, help="of the kills and their times")
    given = parser.parse_args(arguments)
    days_min = -(-given.kills * BATCHES_PER_KILL * AT_A_TIME // FLIGHTS_A_DAY)
    if given.days < days_min:
        parser.error(f"{given.kills} kills take the flights of {days_min} days: give --days {days_min} or more")
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    directory = Path(tempfile.mkdtemp(prefix="tidemark-flights-"))
    slow = slowness(other_load(), computing_s())
    run = FlightsRun(directory, seed, given.days, given.kills, slow)
    return run_and_tell(run.run, run.report, ROUND_S * slow, f"flights, seed {seed}, {given.days} days", directory)


if __name__ == "__main__":
    sys.exit(main())
