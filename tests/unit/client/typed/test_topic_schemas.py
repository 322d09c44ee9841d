# SPDX-License-Identifier: Apache-2.0
"""Versions of schemas at a client: each is requested once, from any broker, and never kept for a recreated topic."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.used_topics import IDLE_S, UsedTopics
from tidemark.client.typed.topic_schemas import SchemaPendingError, TopicPendingError, TopicSchemas
from tidemark.core.cluster_view import TopicView
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.text import to_text
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.errors import DOMAIN
from tidemark.v1 import topic_schemas_pb2 as pb

from tests.refusals import raises_code
from tests.turns import turns

FIRST = first_version(draft_from_ddl("a INT"))
SECOND = next_version(FIRST, draft_from_ddl("a BIGINT"), Compatibility.BACKWARD)
TEXTS = {1: to_text(FIRST), 2: to_text(SECOND)}


def refused_call(error: TidemarkError) -> AioRpcError:
    """A refused call, as gRPC raises it."""
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message=error.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN))
    trailing = Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), trailing, details=error.message)


class Brokers:
    """A cluster of two brokers: the first answers nothing, the second has the versions up to `newest`.

    The brokers in `first` get the first requests: one of them lags, at version 1.
    """

    def __init__(self) -> None:
        self.topic_id = "id-1"
        self.announced = 1
        self.newest = 1
        self.asked: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lost = False
        self.first: tuple[str, ...] = ()
        self.used_topics = UsedTopics()

    async def topic(self, topic: str, *, timeout_s: float) -> TopicView:
        found = self.topic_now(topic)
        assert found is not None
        return found

    def topic_now(self, topic: str) -> TopicView | None:
        if self.lost:
            return None
        return TopicView(topic, self.topic_id, schema_version=0 if topic == "bytes" else self.announced)

    def addresses(self) -> tuple[str, ...]:
        return (*self.first, "silent:1", "knowing:2")

    def stub(self, address: str) -> Any:
        return _Stub(self, address)

    ask_in_turn = Cluster.ask_in_turn
    headers = ()


class _Stub:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers = brokers
        self._address = address

    async def GetTopicSchemas(  # noqa: N802
        self, request: pb.GetTopicSchemasRequest, **_: object
    ) -> pb.GetTopicSchemasResponse:
        brokers = self._brokers
        if self._address == "silent:1":
            raise refused_call(TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "silent"))
        brokers.asked.append(list(request.versions))
        await brokers.gate.wait()
        newest = 1 if self._address == "lagging:3" else brokers.newest
        wanted = list(request.versions) or range(1, newest + 1)
        if max(wanted) > newest:
            raise refused_call(TidemarkError(ErrorCode.UNKNOWN_SCHEMA_VERSION, "not yet"))
        schemas = [pb.SchemaVersion(version=version, text=TEXTS[version]) for version in wanted]
        return pb.GetTopicSchemasResponse(topic_id=request.topic_id, schemas=schemas)


@pytest.fixture
async def brokers() -> Brokers:
    return Brokers()


def schemas_of(brokers: Brokers, changed: list[str] | None = None) -> TopicSchemas:
    return TopicSchemas(cast(Cluster, brokers), (changed if changed is not None else []).append)


async def some_turns() -> None:
    """Let the event loop run some turns, enough for a request: the brokers of this file do no I/O."""
    await turns(50)


async def test_a_topic_without_a_schema_needs_no_request(brokers: Brokers) -> None:
    schemas = schemas_of(brokers)
    assert schemas.now("bytes") is None
    assert await schemas.load("bytes", timeout_s=1) is None
    assert brokers.asked == []


async def test_versions_are_asked_for_once_by_all_callers(brokers: Brokers) -> None:
    changed: list[str] = []
    schemas = schemas_of(brokers, changed)
    with pytest.raises(SchemaPendingError):
        schemas.now("t")
    brokers.gate.clear()
    loads = [asyncio.create_task(schemas.load("t", timeout_s=5)) for _ in range(5)]
    await asyncio.sleep(0)
    brokers.gate.set()
    found = await asyncio.gather(*loads)
    assert [known.newest for known in found if known is not None] == [FIRST] * 5
    assert (brokers.asked, changed) == ([[1]], ["t"])
    known = schemas.now("t")
    assert known is not None
    assert known.newest is known.versions[1]


async def test_a_version_that_no_broker_knows_yet_is_awaited(brokers: Brokers) -> None:
    schemas = schemas_of(brokers)
    await schemas.load("t", timeout_s=5)
    loading = asyncio.create_task(schemas.load("t", timeout_s=5, version=2))
    await some_turns()
    assert brokers.asked[-1] == [2]
    brokers.newest = 2
    known = await loading
    assert known is not None
    assert known.versions == {1: FIRST, 2: SECOND}
    with raises_code(ErrorCode.UNKNOWN_SCHEMA_VERSION):
        await schemas.load("t", timeout_s=0.05, version=3)


async def test_a_broker_with_fewer_versions_than_metadata_name_leaves_the_request_to_the_next_one(
    brokers: Brokers,
) -> None:
    brokers.first = ("lagging:3",)
    brokers.announced = brokers.newest = 2
    schemas = schemas_of(brokers)
    known = await schemas.load("t", timeout_s=0)
    assert known is not None
    assert known.versions == {1: FIRST, 2: SECOND}
    assert brokers.asked == [[1, 2], [1, 2]]


async def test_metadata_with_a_newer_version_load_it_in_the_background(brokers: Brokers) -> None:
    changed: list[str] = []
    schemas = schemas_of(brokers, changed)
    schemas.in_background()
    await schemas.load("t", timeout_s=5)
    brokers.announced = brokers.newest = 2
    schemas.in_background()
    await some_turns()
    assert changed == ["t", "t"]
    known = schemas.now("t")
    assert known is not None
    assert known.newest == SECOND
    assert brokers.asked == [[1], [2]]


async def test_metadata_without_the_topic_say_nothing_about_its_schema(brokers: Brokers) -> None:
    """A broker answers that it does not know a new topic, after another broker has answered with the topic."""
    schemas = schemas_of(brokers)
    brokers.lost = True
    with pytest.raises(TopicPendingError):
        schemas.now("t")
    brokers.lost = False
    known = await schemas.load("t", timeout_s=5)
    brokers.lost = True
    assert schemas.now("t") is known is schemas.known["t"]


async def test_a_look_for_a_newer_version_is_rare(brokers: Brokers) -> None:
    schemas = schemas_of(brokers)
    assert not await schemas.look_for_newer("t")
    await schemas.load("t", timeout_s=5)
    brokers.newest = 2
    assert await schemas.look_for_newer("t")
    asked = len(brokers.asked)
    assert not await schemas.look_for_newer("t")
    assert len(brokers.asked) == asked


async def test_a_recreated_topic_has_none_of_the_versions_before(brokers: Brokers) -> None:
    schemas = schemas_of(brokers)
    brokers.announced = brokers.newest = 2
    await schemas.load("t", timeout_s=5)
    brokers.topic_id, brokers.announced, brokers.newest = "id-2", 1, 1
    with pytest.raises(SchemaPendingError):
        schemas.now("t")
    known = await schemas.load("t", timeout_s=5)
    assert known is not None
    assert (known.topic_id, known.versions) == ("id-2", {1: FIRST})


async def test_versions_of_an_idle_topic_are_forgotten(brokers: Brokers) -> None:
    schemas = schemas_of(brokers)
    brokers.used_topics.use("t", 0.0)
    await schemas.load("t", timeout_s=1)
    await schemas.look_for_newer("t")
    brokers.used_topics.use("other", IDLE_S)
    assert (schemas.known, schemas._looked_s, schemas._loading) == ({}, {}, {})
