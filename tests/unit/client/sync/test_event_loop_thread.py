# SPDX-License-Identifier: Apache-2.0
"""Calls that end before the event loop has begun them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code


@pytest.fixture
def held() -> tuple[BackgroundLoop, threading.Event]:
    """A loop that does nothing until the event is set."""
    loop, has_begun, go_on = BackgroundLoop(), threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        go_on.wait(60)

    loop._loop.call_soon_threadsafe(hold)
    assert has_begun.wait(60)
    return loop, go_on


async def work() -> int:
    return 1


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning")
@pytest.mark.parametrize(
    "moment", [(BackgroundLoop, "_refusal"), (asyncio, "run_coroutine_threadsafe"), (Future, "result")]
)
def test_an_interrupted_call_that_has_not_begun_leaves_no_warning(
    held: tuple[BackgroundLoop, threading.Event], monkeypatch: pytest.MonkeyPatch, moment: tuple[Any, str]
) -> None:
    loop, go_on = held

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    called = work()
    with monkeypatch.context() as patch:
        patch.setattr(*moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.call(called)
    assert inspect.getcoroutinestate(called) == inspect.CORO_CLOSED
    go_on.set()
    loop.start(asyncio.sleep(0)).result(60)
    gc.collect()
    assert loop.call(work()) == 1


class Interrupted(threading.Condition):
    """An interrupt comes when the wait has ended, and before it has the lock again."""

    def wait(self, timeout: float | None = None) -> bool:
        self.release()
        raise KeyboardInterrupt


def test_an_interrupt_as_a_wait_takes_its_lock_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python hides it behind the RuntimeError "cannot release un-acquired lock", which a command printed."""
    loop = BackgroundLoop()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.call(asyncio.sleep(60))
    assert loop.call(work()) == 1


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning")
def test_a_call_that_has_not_begun_at_its_timeout_is_timed_out(
    held: tuple[BackgroundLoop, threading.Event],
) -> None:
    loop, go_on = held
    threading.Timer(0.2, go_on.set).start()
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        loop.call(work(), timeout_s=0.05)
    gc.collect()
    assert loop.call(work()) == 1


def test_an_error_of_the_coroutine_does_not_wait_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> int:
        raise TidemarkError(ErrorCode.UNKNOWN_TOPIC, "no such topic")

    waits: list[object] = []
    monkeypatch.setattr(BackgroundLoop, "_wait_for_loop", waits.append)
    with raises_code(ErrorCode.UNKNOWN_TOPIC):
        BackgroundLoop().call(fail())
    assert not waits


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_loop_of_all_blocking_clients_survives_an_exit_in_a_callback() -> None:
    """Every later call of every client of the process would wait without end."""
    loop, called = BackgroundLoop(), threading.Event()

    def leave() -> None:
        called.set()
        sys.exit(1)

    loop._loop.call_soon_threadsafe(leave)
    assert called.wait(60)
    assert loop.call(work(), timeout_s=10) == 1
