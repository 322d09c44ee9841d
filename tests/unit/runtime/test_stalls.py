# SPDX-License-Identifier: Apache-2.0
"""Lateness of an event loop, measured on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.service import EXIT_OK, run_until_stopped
from tidemark.runtime.stalls import PERIOD_S, WINDOW_S, StallMeter, Tally, WatchedLoop, WatchedSelector, run_watched


class ManualLoop:
    """Runs its only timer when the test requests it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.selector = WatchedSelector()
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Any:
        self._due.append((when_s, callback))
        return asyncio.Handle(callback, (), cast("asyncio.AbstractEventLoop", self))

    def get_debug(self) -> bool:
        return False

    def run_timer(self, *, late_s: float) -> None:
        """Be busy until the meter's timer is this late."""
        meter = self.selector.meter
        assert meter is not None
        self.now_s = meter.due_s + late_s
        assert meter.about_to_wait(None) == 0
        self.run_due()

    def run_due(self) -> None:
        ((when_s, callback),) = self._due
        self._due.clear()
        assert when_s <= self.now_s
        callback()

    def wait(self, timeout_s: float | None, *, took_s: float) -> None:
        """Wait for work; `timeout_s` is when the next timer of the service is due."""
        meter = self.selector.meter
        assert meter is not None
        assert meter.about_to_wait(timeout_s) == timeout_s
        self.now_s += took_s
        meter.woke()

    @property
    def has_timer(self) -> bool:
        return bool(self._due)


def exported(*tallies: Tally) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    for tally in tallies:
        registry.register(tally)
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def meter(loop: ManualLoop) -> Iterator[StallMeter]:
    meter = StallMeter(cast("asyncio.AbstractEventLoop", loop), loop.selector)
    meter.start()
    yield meter
    meter.stop()


def test_how_late_the_timer_ran_is_counted_in_buckets_with_a_sum(loop: ManualLoop, meter: StallMeter) -> None:
    for late_s in (0.0005, 0.004, 0.3):
        loop.run_timer(late_s=late_s)
    told = exported(meter.lateness)
    name = "tidemark_event_loop_stall_seconds"
    assert told[name + "_bucket", "0.001"] == 1
    assert told[name + "_bucket", "0.005"] == 2
    assert told[name + "_bucket", "0.2"] == 2
    assert told[name + "_bucket", "+Inf"] == told[name + "_count", ""] == 3
    assert told[name + "_sum", ""] == pytest.approx(0.3045)


def test_the_longest_of_the_last_minute_is_shown_and_then_forgotten(loop: ManualLoop, meter: StallMeter) -> None:
    name = ("tidemark_event_loop_stall_longest_seconds", "")
    loop.run_timer(late_s=0.04)
    loop.run_timer(late_s=0.07)
    loop.run_timer(late_s=0.02)
    assert exported(meter.lateness)[name] == pytest.approx(0.07)
    began_s = loop.now_s
    while loop.now_s < began_s + WINDOW_S - 1:
        loop.run_timer(late_s=0.0)
    assert exported(meter.lateness)[name] == pytest.approx(0.07)
    while loop.now_s < began_s + WINDOW_S + 1:
        loop.run_timer(late_s=0.0)
    assert exported(meter.lateness)[name] == 0.0


def test_time_in_which_the_process_did_not_run_is_late_but_not_busy(loop: ManualLoop, meter: StallMeter) -> None:
    loop.run_timer(late_s=60.0)  # late by this loop's clock alone: no CPU time was used
    assert meter.lateness.longest_s() == pytest.approx(60.0)
    assert meter.busy.longest_s() < 30.0


def test_a_long_stall_is_logged_with_the_stack_of_the_loop(
    loop: ManualLoop, meter: StallMeter, caplog: pytest.LogCaptureFixture
) -> None:
    loop.run_timer(late_s=0.09)
    assert caplog.records == []
    loop.now_s += PERIOD_S + 0.08
    meter.note_where()  # as the thread would: the stack has this call
    with caplog.at_level(logging.WARNING):
        loop.run_timer(late_s=0.15)
    (told,) = caplog.records
    assert told.getMessage() == "event loop stalled"
    assert told.__dict__["late_ms"] == 150
    assert "runtime/stalls.py" in told.__dict__["where"]
    assert "note_where" in told.__dict__["where"]


def test_many_stalls_are_not_many_lines(loop: ManualLoop, meter: StallMeter, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        loop.run_timer(late_s=0.12)
    assert len(caplog.records) == 20
    loop.now_s += WINDOW_S
    loop.run_timer(late_s=WINDOW_S)
    assert len(caplog.records) == 21


def test_pauses_for_garbage_are_counted(meter: StallMeter) -> None:
    gc.collect()
    told = exported(meter.collections)
    assert told["tidemark_gc_pause_seconds_count", ""] >= 1


def test_an_idle_loop_counts_its_timers_and_does_not_run_them(loop: ManualLoop, meter: StallMeter) -> None:
    loop.wait(10.0, took_s=PERIOD_S * 8.5)
    loop.wait(None, took_s=PERIOD_S * 8.5)
    assert not loop.has_timer
    told = exported(meter.lateness)
    assert told["tidemark_event_loop_stall_seconds_count", ""] == 17
    assert told["tidemark_event_loop_stall_seconds_sum", ""] == 0
    assert exported(meter.busy)["tidemark_event_loop_stall_busy_seconds_count", ""] == 17


def test_a_process_that_is_stopped_while_its_loop_waits_is_late(loop: ManualLoop, meter: StallMeter) -> None:
    loop.wait(PERIOD_S * 4.5, took_s=3.0)
    loop.run_due()
    assert meter.lateness.longest_s() == pytest.approx(3.0 - PERIOD_S * 5)


def test_a_loop_that_waits_is_not_overdue(
    loop: ManualLoop, meter: StallMeter, caplog: pytest.LogCaptureFixture
) -> None:
    assert meter.about_to_wait(0.1) == 0.1
    loop.now_s += 1.0
    meter.note_where()
    meter.woke()
    with caplog.at_level(logging.WARNING):
        loop.run_due()
    (told,) = caplog.records
    assert told.__dict__["where"] == ""


def test_a_busy_loop_runs_the_timer_after_the_input_that_is_ready() -> None:
    async def main() -> int:
        loop = cast("WatchedLoop", asyncio.get_running_loop())
        meter = StallMeter(loop, loop.selector)
        reader, writer = os.pipe()
        order: list[float] = []

        def read() -> None:
            os.read(reader, 1)
            time.sleep(PERIOD_S)
            order.append(meter.lateness.longest_s())

        loop.add_reader(reader, read)
        meter.start()
        try:
            os.write(writer, b"x")
            loop.call_soon(time.sleep, PERIOD_S * 3)
            await asyncio.sleep(PERIOD_S * 4)
            order.append(meter.lateness.longest_s())
        finally:
            meter.stop()
            loop.remove_reader(reader)
            os.close(reader)
            os.close(writer)
        assert order[0] == 0
        assert order[1] >= PERIOD_S * 3 - 0.002
        return 7

    assert run_watched(main()) == 7


def test_a_loop_that_waits_once_is_not_woken_by_its_meter() -> None:
    async def main() -> int:
        loop = cast("WatchedLoop", asyncio.get_running_loop())
        meter = StallMeter(loop, loop.selector)
        meter.start()
        try:
            waits = loop.selector.waits.count
            await asyncio.sleep(PERIOD_S * 12)
            return loop.selector.waits.count - waits
        finally:
            meter.stop()

    assert run_watched(main()) <= 2


def test_a_service_shows_its_stalls_as_long_as_it_runs() -> None:
    metrics = Metrics()
    seen: list[str] = []

    async def start() -> None:
        seen.extend(family.name for family in metrics.registry.collect())
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    async def stop() -> None:
        return None

    assert run_watched(run_until_stopped(start, stop, metrics=metrics)) == EXIT_OK
    told = {"tidemark_event_loop_stall_seconds", "tidemark_event_loop_waits", "tidemark_gc_pause_seconds"}
    assert told < set(seen)
    assert "tidemark_event_loop_stall_seconds" not in {family.name for family in metrics.registry.collect()}
