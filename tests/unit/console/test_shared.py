# SPDX-License-Identifier: Apache-2.0
"""Shared answers, sightings and streams of updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.console.page import Refused
from tidemark.console.queries import shared, sightings
from tidemark.console.queries.shared import Answer, SharedQueries, SharedQuery
from tidemark.console.queries.sightings import Sightings
from tidemark.console.responses import events
from tidemark.model import ErrorCode, TidemarkError

from tests.turns import turns
from tests.unit.console.conftest import Clock

GONE = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")


class Source:
    """Counts its calls; `failure` is raised, `hangs` is waited for."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: Exception | None = None
        self.hangs: asyncio.Event | None = None

    async def __call__(self) -> int:
        self.calls += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.failure is not None:
            raise self.failure
        return self.calls


async def test_an_answer_is_shared_for_its_life(clock: Clock) -> None:
    source = Source()
    query = SharedQuery(source, 2_000, 2_000, clock)
    assert (await query.answer(1)).value == 1
    clock.ms += 1_999
    assert (await query.answer(1)).value == 1
    clock.ms += 1
    assert await query.answer(1) == Answer(2, clock.ms)


async def test_an_answer_is_not_shared_for_longer_after_the_clock_was_set_back(clock: Clock) -> None:
    """Otherwise the pages would show the old state of the cluster until the clock has the earlier time again."""
    query = SharedQuery(Source(), 2_000, 2_000, clock)
    assert (await query.answer(1)).value == 1
    clock.ms -= 3_600_000
    assert (await query.answer(1)).value == 2
    assert (await query.answer(1)).value == 2


async def test_a_call_during_which_the_clock_is_set_forward_counts_as_a_long_one(clock: Clock) -> None:
    source = Source()

    async def call() -> int:
        clock.ms += 3_600_000
        return await source()

    query = SharedQuery(call, 2_000, 2_000, clock)
    assert (await query.answer(1)).value == 1
    clock.ms += shared.SHARE_MAX * shared.CALL_MS_MAX
    assert (await query.answer(1)).value == 2


async def test_answers_that_no_page_asks_for_are_dropped(clock: Clock) -> None:
    queries = SharedQueries(2_000, clock, lambda kind, good: None)
    used, unused, slow = Source(), Source(), Source()
    slow.hangs = asyncio.Event()
    await queries.ask("topics", "left user", unused, patience_s=1)
    await queries.ask("topics", "slow user", slow, patience_s=0)
    for _ in range(shared.IDLE_SWEEPS + 1):
        await queries.ask("topics", "user", used, patience_s=1)
        queries.drop_idle()
    for key, source in (("user", used), ("left user", unused), ("slow user", slow)):
        await queries.ask("topics", key, source, patience_s=0)
    assert (used.calls, unused.calls, slow.calls) == (1, 2, 1)
    await queries.close()


async def test_an_older_answer_is_given_while_a_newer_one_takes_long(clock: Clock) -> None:
    source = Source()
    query = SharedQuery(source, 2_000, 2_000, clock)
    first = await query.answer(1)
    clock.ms += shared.YOUNG_MS
    source.hangs = asyncio.Event()
    assert await query.answer(5) == first
    source.hangs.set()
    assert (await query.answer(1)).value == 2


async def test_an_answer_that_is_not_young_is_waited_for(clock: Clock) -> None:
    source = Source()
    query = SharedQuery(source, 2_000, 2_000, clock)
    await query.answer(1)
    clock.ms += shared.YOUNG_MS + 1
    source.hangs = asyncio.Event()
    page = asyncio.create_task(query.answer(0))
    await asyncio.wait({page}, timeout=2 * shared.YOUNG_S)
    assert not page.done()
    source.hangs.set()
    assert (await page).value == 2


async def test_an_old_answer_is_given_in_the_end_with_the_time_of_the_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "OLD_S", 0.01)
    source = Source()
    query = SharedQuery(source, 2_000, 2_000, clock)
    first = await query.answer(1)
    assert first.waiting_since_ms == 0
    clock.ms += 60_000
    asked_ms, source.hangs = clock.ms, asyncio.Event()
    await query.answer(1)
    clock.ms += 500
    late = await query.answer(1)
    assert (late.value, late.read_at_ms, late.waiting_since_ms) == (1, first.read_at_ms, asked_ms)
    source.hangs.set()
    assert (await query.answer(1)).waiting_since_ms == 0


async def test_a_failing_question_delays_no_page_longer_than_its_patience(clock: Clock) -> None:
    source = Source()
    query = SharedQuery(source, 2_000, 2_000, clock)
    await query.answer(1)
    clock.ms += 60_000
    source.failure = GONE
    await query.answer(1)
    clock.ms += 60_000
    source.hangs = asyncio.Event()
    assert (await query.answer(0)).error is GONE
    await query.close()


async def test_an_expensive_answer_lives_for_a_multiple_of_its_cost(clock: Clock) -> None:
    async def slow() -> int:
        clock.ms += 1_000
        return clock.ms

    query = SharedQuery(slow, 2_000, 2_000, clock)
    first = await query.answer(1)
    clock.ms += shared.SHARE_MAX * 1_000 - 1_001
    assert await query.answer(1) == first
    clock.ms += 1
    assert await query.answer(1) != first


async def test_failures_are_repeated_at_the_same_pace_and_keep_their_beginning(clock: Clock) -> None:
    source = Source()
    query = SharedQuery(source, 60_000, 2_000, clock)
    await query.answer(1)
    clock.ms += 60_000
    began_ms, source.failure = clock.ms, GONE
    assert (await query.answer(1)).error is GONE
    await query.answer(1)
    assert source.calls == 2
    clock.ms += 2_000
    answer = await query.answer(1)
    assert source.calls == 3
    assert (answer.value, answer.failing_since_ms) == (1, began_ms)
    source.failure = None
    clock.ms += 2_000
    assert await query.answer(1) == Answer(4, clock.ms)


async def test_a_fault_in_a_question_is_an_internal_error(clock: Clock) -> None:
    source = Source()
    source.failure = ValueError("secret")
    answer = await SharedQuery(source, 2_000, 2_000, clock).answer(1)
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == (ErrorCode.INTERNAL, "the console failed: ValueError")


async def test_a_page_that_is_left_does_not_cancel_the_call_of_the_others(clock: Clock) -> None:
    source = Source()
    source.hangs = asyncio.Event()
    query = SharedQuery(source, 2_000, 2_000, clock)
    left, stays = (asyncio.create_task(query.answer(5)) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    source.hangs.set()
    assert (await stays).value == 1


async def test_the_oldest_questions_are_dropped_beyond_the_limit(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ENTRIES_MAX", 2)
    queries, source = SharedQueries(2_000, clock, lambda kind, good: None), Source()
    for key in ("a", "b", "a", "c", "a", "b"):
        await queries.ask("kind", key, source, patience_s=1)
    assert source.calls == 4
    await queries.close()


def test_a_sighting_keeps_the_time_of_the_last_change(clock: Clock) -> None:
    seen = Sightings(clock)
    first_ms = clock.ms
    assert seen.note("controller", 100) == (100, first_ms, None)
    clock.ms += 5
    assert seen.note("controller", 100) == (100, first_ms, None)
    assert seen.note("controller", 101) == (101, clock.ms, 100)


def test_sightings_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "ENTRIES_MAX", 1)
    seen = Sightings(clock)
    seen.note("a", 1)
    seen.note("b", 1)
    assert seen.note("a", 2).before is None


async def lines_of(stream: Any) -> AsyncIterator[str]:
    async for chunk in stream.body_iterator:
        yield chunk


async def test_a_stream_sends_a_part_only_when_it_has_changed() -> None:
    parts, counts, stopping = ["one\ntwo", "one\ntwo", "three"], [], asyncio.Event()

    async def render() -> str:
        part = parts.pop(0)
        if not parts:
            stopping.set()
        return part

    sent = [event async for event in lines_of(events(render, 0.0, stopping, counts.append))]
    assert [event for event in sent if "part" in event] == [
        "event: part\ndata: one\ndata: two\n\n",
        "event: part\ndata: three\n\n",
    ]
    assert sent.count("event: alive\ndata: \n\n") == 3
    assert counts == [1, -1]


def test_a_stream_asks_a_proxy_to_pass_each_update_on() -> None:
    async def render() -> str:
        return "part"

    response = events(render, 0.001, asyncio.Event(), lambda change: None)
    assert response.headers["x-accel-buffering"] == "no"  # nginx would keep small updates until it has some kilobytes
    assert response.media_type == "text/event-stream"


async def test_a_stream_holds_a_place_from_its_first_part_on_only() -> None:
    """A caller with a made-up token waits for the refusal of the cluster, and must not hold a place meanwhile."""
    places: list[int] = []
    known, stopping = asyncio.Event(), asyncio.Event()

    async def render() -> str:
        await known.wait()
        raise Refused(401, "the token is unknown")

    stream = lines_of(events(render, 0.001, stopping, places.append))
    first = asyncio.create_task(anext(stream))
    await turns(5)
    assert places == []
    known.set()
    assert "the token is unknown" in str(await first)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert places == []


async def test_a_stream_beyond_the_limit_ends_with_the_reason_and_holds_no_place() -> None:
    def counted(change: int) -> None:
        raise Refused(503, "too many")

    async def render() -> str:
        return "part"

    sent = [event async for event in lines_of(events(render, 0.001, asyncio.Event(), counted))]
    assert sent == ["event: refused\ndata: too many\n\n"]


async def test_a_stream_ends_with_the_reason_when_its_page_is_refused() -> None:
    async def render() -> str:
        raise Refused(404, "no such topic")

    sent = [event async for event in lines_of(events(render, 0.0, asyncio.Event(), lambda change: None))]
    assert sent == ["event: refused\ndata: no such topic\n\n"]


@pytest.mark.parametrize("status", [503, 504])
async def test_a_stream_without_an_answer_of_the_cluster_ends_so_that_the_browser_connects_again(status: int) -> None:
    """A browser repeats a stream that ends, but not after the event `refused`."""
    parts = iter(["part"])

    async def render() -> str:
        for part in parts:
            return part
        raise Refused(status, "the leader does not answer")

    places: list[int] = []
    sent = [event async for event in lines_of(events(render, 0.0, asyncio.Event(), places.append))]
    assert sent == ["event: part\ndata: part\n\n", "event: alive\ndata: \n\n"]
    assert sum(places) == 0
