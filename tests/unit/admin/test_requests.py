# SPDX-License-Identifier: Apache-2.0
"""Idempotent requests: retries, reused ids, and attempts that crashed; the store is the suite's fake."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tidemark.admin import requests
from tidemark.admin.requests import KEPT_MS, AnsweredOnce, Facts
from tidemark.core.security.authorizer import Authorizer
from tidemark.core.security.principals import Principal
from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import AdminRequest
from tidemark.rpc.security.access import CURRENT, Access
from tidemark.rpc.security.audit import Audit
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.zookeeper import requests as zookeeper_requests
from tidemark.zookeeper.session_port import NodeRead

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.refusals import raises_code

DELETION = pb.DeleteTopicRequest(topic="flights", request_id="r1")
START_US = 1_700_000_000_000_000


class SetClock:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    def wall_us(self) -> int:
        return START_US + self.at_ms * 1000


class Work:
    """Counts its runs; refuses or crashes if the test requests this."""

    def __init__(self) -> None:
        self.seen: list[Facts] = []
        self.fails: list[BaseException] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, facts: Facts) -> pb.CreateTopicResponse:
        self.seen.append(facts)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if self.fails:
            raise self.fails.pop(0)
        response = pb.CreateTopicResponse()
        response.topic.topic = f"done {len(self.seen)}"
        return response


class Admin:
    """Successive admin processes on the same ZooKeeper."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self.store = store
        self.clock = SetClock()
        self.requests = AnsweredOnce(store, self.clock)
        self.work = Work()
        self.looks = 0

    async def look(self) -> Facts:
        self.looks += 1
        return {"topic_id": f"id-{self.looks}"}

    async def call(self, request: pb.DeleteTopicRequest = DELETION, method: str = "DeleteTopic") -> str:
        response = await self.requests.once(method, request, pb.CreateTopicResponse, self.work, self.look)
        return response.topic.topic


@pytest.fixture
async def admin() -> Admin:
    store = FakeZooKeeper().store()
    await store.start()
    return Admin(store)


async def test_repeated_request_gets_the_stored_response(admin: Admin) -> None:
    assert [await admin.call() for _ in range(3)] == ["done 1"] * 3
    assert (admin.work.seen, admin.looks) == ([{"topic_id": "id-1"}], 1)


async def test_responses_without_request_id_or_change_are_not_stored(admin: Admin) -> None:
    for request in (
        pb.DeleteTopicRequest(topic="flights"),
        pb.DeleteTopicRequest(topic="flights", validate_only=True, request_id="r1"),
    ):
        admin.work.seen.clear()
        assert [await admin.call(request) for _ in range(2)] == ["done 1", "done 2"]
    assert await admin.store.kept_request("r1") is None


async def test_request_id_with_another_request_is_refused(admin: Admin) -> None:
    await admin.call()
    for request, method in (
        (pb.DeleteTopicRequest(topic="orders", request_id="r1"), "DeleteTopic"),
        (DELETION, "CreateTopic"),
    ):
        with raises_code(ErrorCode.REQUEST_ID_REUSED):
            await admin.call(request, method)
    assert len(admin.work.seen) == 1


async def test_too_long_request_id_of_a_stored_request_is_refused(admin: Admin) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await admin.call(pb.DeleteTopicRequest(topic="flights", request_id="r" * 129))
    assert admin.work.seen == []


async def test_attempt_after_a_crash_uses_the_facts_of_the_first_attempt(admin: Admin) -> None:
    admin.work.fails = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await admin.call()
    again = Admin(admin.store)
    again.looks = 5
    assert await again.call() == "done 1"
    assert again.work.seen == [{"topic_id": "id-1"}]
    with raises_code(ErrorCode.REQUEST_ID_REUSED):
        await again.call(pb.DeleteTopicRequest(topic="orders", request_id="r1"))


async def test_refusal_is_not_stored(admin: Admin) -> None:
    admin.work.fails = [TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no topic flights")]
    with pytest.raises(TidemarkError):
        await admin.call()
    assert await admin.call(pb.DeleteTopicRequest(topic="orders", request_id="r1")) == "done 2"


async def test_unfinished_request_is_resumed_by_the_same_request_only(admin: Admin) -> None:
    admin.work.fails = [TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "not yet")]
    with pytest.raises(TidemarkError):
        await admin.call()
    assert await admin.call() == "done 2"
    assert admin.looks == 1


async def test_concurrent_attempts_get_the_response_stored_first(admin: Admin) -> None:
    other = Admin(admin.store)
    admin.work.meanwhile = other.call
    other.work.seen.append({})
    assert await admin.call() == "done 2", "the other's second"
    assert await admin.call() == "done 2"


async def test_response_that_cannot_be_stored_is_returned(admin: Admin) -> None:
    async def lose_the_next() -> None:
        admin.store.session.lose_answers(1, applied=False)

    admin.work.meanwhile = lose_the_next
    assert await admin.call() == "done 1"
    assert await admin.call() == "done 2", "the work converges"


async def test_request_ids_expire_after_a_day(admin: Admin) -> None:
    await admin.call()
    await admin.call(pb.DeleteTopicRequest(topic="flights", request_id="r2"))
    admin.clock.at_ms += KEPT_MS
    assert await admin.call() == "done 1", "kept to the last"
    admin.clock.at_ms += 1
    assert await admin.call(pb.DeleteTopicRequest(topic="orders", request_id="r1")) == "done 3"
    admin.clock.at_ms += 3_600_000
    await admin.call(pb.DeleteTopicRequest(topic="orders", request_id="r1"))
    assert await admin.store.kept_request("r2") is None


async def test_response_that_is_not_final_is_not_stored(admin: Admin) -> None:
    finals = iter([False, True])
    for expected in ("done 1", "done 2", "done 2"):
        response = await admin.requests.once(
            "DeleteTopic", DELETION, pb.CreateTopicResponse, admin.work, is_final=lambda _: next(finals)
        )
        assert response.topic.topic == expected


async def test_stored_responses_have_a_bounded_size(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_requests, "KEPT_BYTES_MAX", 100 << 10)
    monkeypatch.setattr(requests, "_EXPIRE_EVERY_BYTES", 10 << 10)
    for number in range(300):
        admin.clock.at_ms += 1
        await admin.call(pb.DeleteTopicRequest(topic="flights", request_id=f"r{number}"))
    kept = [number for number in range(300) if await admin.store.kept_request(f"r{number}") is not None]
    assert 30 < len(kept) < 110
    assert kept == list(range(300 - len(kept), 300)), "the newest are kept"


async def test_requests_of_a_caller_displace_no_response_of_another(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_requests, "KEPT_BYTES_MAX", 100 << 10)
    monkeypatch.setattr(requests, "_EXPIRE_EVERY_BYTES", 10 << 10)
    authorizer = Authorizer(["User:token:alice", "User:token:mallory"])

    async def call_of(name: str, request_id: str) -> str:
        CURRENT.set(Access(authorizer, Audit(), Principal(name), "127.0.0.1", ""))
        return await admin.call(pb.DeleteTopicRequest(topic="flights", request_id=request_id))

    assert await call_of("User:token:alice", "r1") == "done 1"
    for number in range(300):
        admin.clock.at_ms += 1
        await call_of("User:token:mallory", f"r{number}")
    assert await call_of("User:token:alice", "r1") == "done 1"


async def test_another_thread_decodes_the_responses_that_may_be_removed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.call(DELETION)
    decode, threads = zookeeper_requests._decode, []

    def noted(path: str, node: NodeRead) -> AdminRequest:
        threads.append(threading.current_thread())
        return decode(path, node)

    monkeypatch.setattr(zookeeper_requests, "_decode", noted)
    assert await admin.store.expire_requests(START_US // 1000 + 1) == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_many_old_responses_are_removed_together(admin: Admin) -> None:
    for number in range(1_200):
        await admin.store.begin_request(AdminRequest(f"r{number}", "DeleteTopic", "digest", number))
    commits, commit = 0, admin.store.session.commit

    async def counted(build: Callable[[object], None]) -> list[object]:
        nonlocal commits
        commits += 1
        return await commit(build)

    admin.store.session.commit = counted
    assert await admin.store.expire_requests(1_100) == 1_100
    assert commits < 10
