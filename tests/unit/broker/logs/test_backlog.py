# SPDX-License-Identifier: Apache-2.0
"""A backlog runs all calls, in order and on few threads, until it stops."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from tidemark.broker.logs.backlog import Backlog

WAIT_S = 30.0


def test_one_thread_runs_the_calls_in_order_even_after_one_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    backlog, done, seen = Backlog(1, "test"), threading.Event(), list[int]()
    backlog.add(lambda: [][0])
    for number in range(100):
        backlog.add(partial(seen.append, number))
    backlog.add(done.set)
    assert done.wait(WAIT_S)
    backlog.stop()
    assert seen == list(range(100))
    assert [record.message for record in caplog.records] == ["a call failed"]


def test_calls_run_beside_each_other_on_as_many_threads_as_allowed() -> None:
    backlog, together = Backlog(2, "test"), threading.Barrier(3)
    for _ in range(2):
        backlog.add(lambda: together.wait(WAIT_S) and None)
    together.wait(WAIT_S)
    backlog.stop()


def test_no_call_is_left_behind_when_threads_end_while_others_queue() -> None:
    backlog, ran = Backlog(2, "test"), threading.Semaphore(0)
    count = 2000
    for _ in range(count):
        backlog.add(ran.release)
    for _ in range(count):
        assert ran.acquire(timeout=WAIT_S)
    backlog.stop()


def test_a_stopped_backlog_drops_queued_calls_and_waits_for_running_ones() -> None:
    backlog, started, go_on, seen = Backlog(1, "test"), threading.Event(), threading.Event(), list[str]()

    def running() -> None:
        started.set()
        go_on.wait(WAIT_S)
        seen.append("running")

    backlog.add(running)
    backlog.add(partial(seen.append, "queued"))
    assert started.wait(WAIT_S)
    backlog.drop()
    threading.Timer(0.01, go_on.set).start()
    backlog.stop()
    assert seen == ["running"]
    with pytest.raises(RuntimeError):
        backlog.add(running)
