# SPDX-License-Identifier: Apache-2.0
"""Overloaded brokers, whose answers take longer than the first timeout of an attempt: clients wait longer each time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark.client import aio
from tidemark.client.consuming import offset_lookup
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.group import coordinator
from tidemark.client.metadata import blocking_cluster, cluster, coordinator_calls
from tidemark.client.metadata.backoff import ATTEMPT_S_MAX, AttemptTimeout
from tidemark.client.producing import sender
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.v1 import group_service_pb2 as pb

from tests.integration.harness.fake_broker import TOPIC, FakeCluster

FIRST_S = 0.1
LATE_S = 0.35
"""Three timeouts of attempts: the first two attempts time out."""
WHERE = TopicPartition(TOPIC, 0)
REFUSED = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "refused in time")
TIMED_OUT = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "late")


@pytest.fixture(autouse=True)
def _short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_METADATA_S", FIRST_S)
    monkeypatch.setattr(offset_lookup, "_ATTEMPT_S", FIRST_S)
    monkeypatch.setattr(blocking_cluster, "_METADATA_S", FIRST_S)
    monkeypatch.setattr(blocking_cluster, "CALL_S", FIRST_S)
    monkeypatch.setattr(coordinator_calls, "_FIND_TIMEOUT_S", FIRST_S)
    monkeypatch.setattr(coordinator_calls, "_CALL_TIMEOUT_S", FIRST_S)


@pytest.mark.parametrize("stopped", [False, True], ids=["all are late", "the other broker is stopped"])
async def test_a_consumer_starts_at_late_brokers(stopped: bool) -> None:
    async with FakeCluster() as brokers:
        brokers.late_s = LATE_S
        if stopped:
            await brokers.stop_broker(1)
        async with aio.Consumer(brokers.bootstrap, request_timeout_ms=8000) as consumer:
            await consumer.assign(TOPIC, start="latest")
            assert consumer.position(WHERE) == 0


@pytest.mark.parametrize("stopped", [False, True], ids=["all are late", "the other broker is stopped"])
async def test_a_range_reader_gets_the_bounds_of_late_brokers(stopped: bool) -> None:
    async with FakeCluster() as brokers:
        brokers.late_s = LATE_S
        if stopped:
            await brokers.stop_broker(1)

        def bounds() -> int:
            with RangeReader(brokers.bootstrap, deadline_s=8) as reader:
                return reader.bounds(TOPIC, [0])[0].latest

        assert await asyncio.to_thread(bounds) == 0


async def test_a_producer_gets_its_id_from_late_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_CALL_S", FIRST_S)
    async with FakeCluster() as brokers:
        brokers.late_s = LATE_S
        await brokers.stop_broker(1)
        async with aio.Producer(brokers.bootstrap) as producer:
            handle = await producer.send(TOPIC, b"x", partition=0)
            async with asyncio.timeout(20):
                await handle


async def test_a_group_gets_the_answer_of_a_late_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        """A coordinator at the one address; each of its answers is late."""

        headers = ()

        def addresses(self) -> tuple[str, ...]:
            return ("a:1",)

        def used(self, address: str) -> None: ...

        def refresh(self) -> None: ...

        async def answer(self, response: object, options: dict[str, Any]) -> object:
            if options["timeout"] < LATE_S:
                raise TIMED_OUT
            return response

        async def FindCoordinator(self, request: object, **options: Any) -> object:  # noqa: N802
            found = pb.GroupCoordinator(group_id="g", host="a", port=1)
            return await self.answer(pb.FindCoordinatorResponse(coordinators=[found]), options)

        async def GroupHeartbeat(self, request: object, **options: Any) -> object:  # noqa: N802
            return await self.answer(pb.GroupHeartbeatResponse(member_id="m"), options)

    late = Late()
    monkeypatch.setattr(coordinator, "group_stub", lambda *_: late)
    found = coordinator.Coordinator(late, "g")  # type: ignore[arg-type]
    answer = await found.call(lambda stub: stub.GroupHeartbeat, pb.GroupHeartbeatRequest(), timeout_s=8)
    assert answer.member_id == "m"


def test_an_attempt_that_timed_out_doubles_the_next_timeout_up_to_a_maximum() -> None:
    attempt = AttemptTimeout(2.0)
    attempt.note([REFUSED])
    assert attempt.within(100.0) == 2.0
    timeouts_s = []
    for _ in range(6):
        timeouts_s.append(attempt.within(100.0))
        attempt.note([REFUSED, TIMED_OUT, REFUSED])
    assert timeouts_s == [2.0, 4.0, 8.0, 16.0, ATTEMPT_S_MAX, ATTEMPT_S_MAX]
    assert attempt.within(5.0) == 5.0
    attempt.reset()
    assert attempt.within(100.0) == 2.0
