# SPDX-License-Identifier: Apache-2.0
"""Calls that share a run: how fresh their answers are, and how errors and cancellations reach them."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.shared_calls import SharedCall, SharedCalls

from tests.fakes.metadata_store import ManualClock
from tests.turns import turns


class Work:
    """Runs that the test ends."""

    def __init__(self) -> None:
        self.runs: list[asyncio.Future[str]] = []
        self.began = asyncio.Event()

    async def run(self) -> str:
        self.runs.append(asyncio.get_running_loop().create_future())
        self.began.set()
        return await self.runs[-1]


def calls_of(shared: SharedCall[str], count: int) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(shared.result()) for _ in range(count)]


async def test_calls_during_a_run_share_the_run_after_it() -> None:
    work = Work()
    shared = SharedCall(work.run)
    first = calls_of(shared, 1)
    await turns()
    later = calls_of(shared, 50)
    await turns()
    work.runs[0].set_result("old")
    await turns()
    assert await first[0] == "old"
    assert len(work.runs) == 2
    assert not any(call.done() for call in later)
    work.runs[1].set_result("new")
    assert await asyncio.gather(*later) == ["new"] * 50
    calls_of(shared, 1)
    await turns()
    assert len(work.runs) == 3


async def test_calls_in_the_pause_between_two_runs_share_the_second_and_a_single_call_never_pauses() -> None:
    work = Work()
    shared = SharedCall(work.run, pause_ms=20)
    first = calls_of(shared, 1)
    await turns()
    during = calls_of(shared, 1)
    await turns()
    work.runs[0].set_result("old")
    await turns()
    in_pause = calls_of(shared, 1)
    await turns()
    assert len(work.runs) == 1
    work.began.clear()
    async with asyncio.timeout(10):
        await work.began.wait()
    work.runs[1].set_result("new")
    assert [await call for call in (*first, *during, *in_pause)] == ["old", "new", "new"]
    await turns()
    calls_of(shared, 1)
    await turns()
    assert len(work.runs) == 3


async def test_the_end_of_the_event_loop_cancels_the_calls_that_wait() -> None:
    work = Work()
    shared = SharedCall(work.run)
    first = calls_of(shared, 1)
    await turns()
    waiting = calls_of(shared, 1)
    await turns()
    assert shared._task is not None
    shared._task.cancel()
    await asyncio.wait([*first, *waiting])
    assert first[0].cancelled()
    assert waiting[0].cancelled()


async def test_an_answer_serves_other_calls_until_its_age_is_over_the_bound() -> None:
    work, clock = Work(), ManualClock()
    shared = SharedCall(work.run, max_age_ms=500, now_ms=clock.now_ms)
    first = calls_of(shared, 1)
    await turns()
    clock.advance(400)
    joined = calls_of(shared, 1)
    await turns()
    work.runs[0].set_result("first")
    assert [await first[0], await joined[0]] == ["first", "first"]
    clock.advance(100)
    assert await shared.result() == "first"
    clock.advance(1)
    last = calls_of(shared, 1)
    await turns()
    work.runs[1].set_result("second")
    assert await last[0] == "second"


async def test_a_run_older_than_the_bound_serves_no_later_call_even_while_it_runs() -> None:
    work, clock = Work(), ManualClock()
    shared = SharedCall(work.run, max_age_ms=500, now_ms=clock.now_ms)
    first = calls_of(shared, 1)
    await turns()
    clock.advance(501)
    later = calls_of(shared, 1)
    await turns()
    work.runs[0].set_result("old")
    await turns()
    work.runs[1].set_result("new")
    assert [await first[0], await later[0]] == ["old", "new"]


async def test_a_failed_run_fails_the_calls_that_wait_for_the_run_after_it_and_no_later_call() -> None:
    work, clock = Work(), ManualClock()
    shared = SharedCall(work.run, max_age_ms=500, now_ms=clock.now_ms)
    first = calls_of(shared, 2)
    await turns()
    clock.advance(501)
    waiting = calls_of(shared, 2)
    await turns()
    work.runs[0].set_exception(TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no answer"))
    for call in (*first, *waiting):
        with pytest.raises(TidemarkError, match="no answer"):
            await call
    after = calls_of(shared, 1)
    await turns()
    work.runs[1].set_result("fine")
    assert await after[0] == "fine"


async def test_a_cancelled_call_ends_neither_the_run_nor_its_neighbours() -> None:
    work = Work()
    shared = SharedCall(work.run)
    one, other = calls_of(shared, 2)
    await turns()
    one.cancel()
    await turns()
    assert one.cancelled()
    work.runs[0].set_result("fine")
    await turns()
    work.runs[1].set_result("fine too")  # the second call came during the first one's run
    assert await other == "fine too"


async def test_keys_do_not_share_and_idle_ones_are_forgotten() -> None:
    clock = ManualClock()
    shared: SharedCalls[str, str] = SharedCalls(500, clock)
    made: list[str] = []

    async def ask(key: str) -> str:
        made.append(key)
        return key

    assert [await shared.result(key, lambda key=key: ask(key)) for key in ("a", "b", "a")] == ["a", "b", "a"]  # type: ignore[misc]
    assert made == ["a", "b"]
    clock.advance(501)
    assert await shared.result("c", lambda: ask("c")) == "c"
    assert list(shared._calls) == ["c"]
