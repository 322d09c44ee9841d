# SPDX-License-Identifier: Apache-2.0
"""Progress of opening logs: log lines and gauges; no directory waits for another (rule T5)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from tidemark.broker.logs.recovery_progress import RecoveryProgress
from tidemark.broker.logs.recovery_threads import RecoveryThreads
from tidemark.model import TopicPartition
from tidemark.runtime.metrics import Metrics

GIGABYTE = 1_000_000_000
WAIT_S = 10.0


def partition(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


class Logs:
    """Replicas in two directories, by number, each with a gigabyte to scan. Estimates wait for the test's
    permission."""

    directory_ids = ("a", "b")

    def __init__(self) -> None:
        self.on_scanned: Callable[[TopicPartition, int], None] = lambda one, size_bytes: None
        self.estimated = threading.Semaphore(0)
        self.may_estimate = threading.Semaphore(0)

    def directory_of(self, one: TopicPartition) -> int | None:
        return one.partition % 2 if one.partition < 100 else None

    def bytes_to_scan(self, one: TopicPartition) -> int:
        assert self.may_estimate.acquire(timeout=WAIT_S)
        self.estimated.release()
        return GIGABYTE


class World:
    """A progress whose clock is set by the test."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.metrics = Metrics()
        self.now_s = 100.0
        self.progress = RecoveryProgress(self.logs, ["/a", "/b"], self.metrics, lambda: self.now_s)

    def gauge(self, name: str, directory: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"tidemark_log_recovery_{name}", {"directory": directory})

    def submit(self, count: int) -> None:
        for number in range(count):
            self.progress.submitted(partition(number), number % 2)

    def estimate(self, count: int) -> None:
        self.logs.may_estimate.release(count)
        for _ in range(count):
            assert self.logs.estimated.acquire(timeout=WAIT_S)
        self.progress.stop()  # the last estimate is done


def test_gauges_state_the_remaining_logs_and_bytes_of_each_directory() -> None:
    world = World()
    world.submit(5)
    assert (world.gauge("remaining_logs", "/a"), world.gauge("remaining_logs", "/b")) == (3, 2)
    world.estimate(5)
    assert world.gauge("remaining_bytes", "/a") == 3 * GIGABYTE
    world.logs.on_scanned(partition(0), GIGABYTE // 4)
    assert world.gauge("remaining_bytes", "/a") == 2.75 * GIGABYTE
    world.progress.opened(partition(0))  # fewer bytes were scanned than estimated
    assert (world.gauge("remaining_logs", "/a"), world.gauge("remaining_bytes", "/a")) == (2, 2 * GIGABYTE)
    for number in range(1, 5):
        world.logs.on_scanned(partition(number), 2 * GIGABYTE)
        world.progress.opened(partition(number))
    for directory in ("/a", "/b"):
        assert world.gauge("remaining_logs", directory) == 0
        assert world.gauge("remaining_bytes", directory) == 0


def test_a_line_every_second_states_progress_and_remaining_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemark.broker.logs.recovery_progress")
    world = World()
    world.submit(4)
    world.estimate(4)
    world.progress.opened(partition(0))
    assert caplog.messages == []
    world.now_s += 1.0
    world.logs.on_scanned(partition(1), GIGABYTE // 2)
    world.logs.on_scanned(partition(1), GIGABYTE // 4)
    world.now_s += 1.0
    world.logs.on_scanned(partition(1), GIGABYTE // 4)
    world.progress.opened(partition(1))
    assert caplog.messages == [
        "opened 1 of 4 logs, 0.5 of 3.0 GB scanned, about 3 s to go",
        "opened 1 of 4 logs, 1.0 of 3.0 GB scanned, about 4 s to go",
    ]
    world.now_s += 0.5
    for number in (2, 3):
        world.logs.on_scanned(partition(number), GIGABYTE)
        world.progress.opened(partition(number))
    assert caplog.messages[2:] == ["opened all 4 logs in 2.5 s, 3.0 GB scanned"]


def test_an_opening_of_less_than_a_second_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemark.broker.logs.recovery_progress")
    world = World()
    world.submit(4)
    world.estimate(4)
    for number in range(4):
        world.progress.opened(partition(number))
    world.now_s += 60
    world.progress.opened(partition(7))  # never submitted: a new replica
    assert caplog.messages == []


def test_a_log_that_is_open_before_its_estimate_counts_with_its_scanned_bytes() -> None:
    world = World()
    world.submit(1)
    world.logs.on_scanned(partition(0), GIGABYTE // 2)
    world.progress.opened(partition(0))
    world.logs.may_estimate.release()
    world.progress.stop()
    assert world.gauge("remaining_bytes", "/a") == 0


def test_the_logs_of_one_directory_delay_no_other_directory_and_no_new_replica() -> None:
    openers = RecoveryThreads(Logs(), threads_per_directory=1)  # type: ignore[arg-type]
    blocked = threading.Event()
    opened = threading.Semaphore(0)
    started = threading.Event()

    def slow() -> None:
        started.set()
        assert blocked.wait(WAIT_S)

    openers.open(partition(0), slow)
    openers.open(partition(2), slow)
    assert started.wait(WAIT_S)
    openers.open(partition(1), opened.release)
    openers.open(partition(100), opened.release)
    assert opened.acquire(timeout=WAIT_S)
    assert opened.acquire(timeout=WAIT_S)
    blocked.set()
    openers.stop()


def test_a_log_that_could_not_be_opened_is_not_waited_for() -> None:
    world = World()
    world.logs.may_estimate.release()
    openers = RecoveryThreads(world.logs, progress=world.progress)  # type: ignore[arg-type]

    begun = threading.Event()

    def failing() -> None:
        begun.set()
        raise OSError

    openers.open(partition(0), failing)
    assert begun.wait(WAIT_S)
    openers.stop()
    assert world.gauge("remaining_logs", "/a") == 0
