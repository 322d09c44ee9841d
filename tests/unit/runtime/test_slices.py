# SPDX-License-Identifier: Apache-2.0
"""A burst of work gives the event loop back."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tidemark.runtime import slices
from tidemark.runtime.slices import Pace, SlicedCalls

from tests.turns import turns


@pytest.fixture
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)


async def test_calls_of_a_thread_are_carried_out_in_order() -> None:
    calls = SlicedCalls(asyncio.get_running_loop())
    done: list[int] = []

    def work() -> None:
        for number in range(100):
            calls.call(done.append, number)

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join)
    await turns(3)
    assert done == list(range(100))


@pytest.mark.usefixtures("shortest_slices")
async def test_a_burst_of_calls_lets_others_have_a_turn_after_each_slice() -> None:
    calls = SlicedCalls(asyncio.get_running_loop())
    seen: list[str] = []
    for number in range(3):
        calls.call(seen.append, f"call {number}")
    asyncio.get_running_loop().call_soon(seen.append, "another task")
    await turns(6)
    assert seen == ["call 0", "another task", "call 1", "call 2"]


@pytest.mark.usefixtures("shortest_slices")
async def test_a_call_that_fails_does_not_take_the_others_with_it() -> None:
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    calls = SlicedCalls(loop)
    seen: list[str] = []

    def fail() -> None:
        raise ValueError("no")

    calls.call(fail)
    calls.call(seen.append, "after it")
    await turns(4)
    assert seen == ["after it"]
    assert [str(error) for error in told] == ["no"]


@pytest.mark.usefixtures("shortest_slices")
async def test_a_coroutine_that_goes_through_much_gives_way() -> None:
    seen: list[str] = []
    asyncio.get_running_loop().call_soon(seen.append, "another task")
    pace = Pace()
    for number in range(3):
        if pace.is_due:
            await pace.give_way()
        seen.append(f"step {number}")
    assert seen[0] == "another task"


async def test_a_coroutine_within_its_slice_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
    assert not Pace().is_due


async def test_calls_after_the_end_of_the_loop_are_refused() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        SlicedCalls(loop).call(print)


async def test_work_that_is_not_urgent_pauses_between_slices_and_tells_how_long_it_worked() -> None:
    pace = Pace(0.0, pause_s=0.02)
    began_s = time.perf_counter()
    while not pace.is_due:
        pass
    await pace.give_way()
    assert 0 < pace.worked_s <= time.perf_counter() - began_s - 0.02


async def test_time_in_which_another_process_has_the_processor_is_no_work() -> None:
    pace = Pace()
    time.sleep(0.05)  # noqa: ASYNC251 - simulates another process
    await pace.give_way()
    assert pace.worked_s < 0.02


async def test_computing_is_work() -> None:
    pace = Pace()
    until_s = time.thread_time() + 0.01
    while time.thread_time() < until_s:
        pass
    await pace.give_way()
    assert pace.worked_s >= 0.01
