# SPDX-License-Identifier: Apache-2.0
"""Versions of topics' schemas: first and later ones, conflicts, retries, and refusals (rule S2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from tidemark.admin import schemas as schemas_module
from tidemark.admin.configs import Alteration, ConfigAdministration
from tidemark.admin.requests import AnsweredOnce
from tidemark.admin.schema_requests import alter_schema
from tidemark.admin.schemas import SchemaAdministration
from tidemark.admin.servicer import AdminServicer
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.schemas.text import from_text
from tidemark.model import ErrorCode, SchemaText, TidemarkError
from tidemark.v1.topic_schemas_pb2 import AlterTopicSchemaRequest, AlterTopicSchemaResponse, DescribeTopicSchemasRequest

from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper, ManualClock
from tests.refusals import raises_code
from tests.unit.admin.test_configs import Caller

CARRIER = {"name": "carrier", "type": "string", "nullable": False}
DELAY = {"name": "delay", "type": "int32"}
PRICE = {"name": "price", "type": "decimal(10,2)"}


def document(*columns: Mapping[str, Any], **facts: Any) -> str:
    return json.dumps({"columns": columns, **facts})


FIRST = document(CARRIER, DELAY, key=["carrier"])


class Admin:
    """The parts of an admin service that deal with schemas."""

    def __init__(self, zookeeper: FakeZooKeeper, store: FakeMetadataStore, clock: ManualClock) -> None:
        self.zookeeper, self.store, self.clock = zookeeper, store, clock
        self.schemas = SchemaAdministration(store, clock)
        self.requests = AnsweredOnce(store, clock)

    async def create(self, first: str = FIRST, **configs: str) -> None:
        """The topic `flights`, initialised by a controller."""
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        schema = self.schemas.first(first, configs)
        versions = {} if schema is None else {1: schema}
        topic = await self.store.create_topic(replace(topic_of(), schemas=versions, configs=configs))
        await self.store.write_states(await elected(self.store), [write_of(topic, 0, -1)])

    async def alter(self, schema: str, **facts: Any) -> AlterTopicSchemaResponse:
        request = AlterTopicSchemaRequest(topic="flights", schema=schema, **facts)
        return await alter_schema(self.schemas, self.requests, request, timeout_s=5)

    async def refusal(self, schema: str, **facts: Any) -> TidemarkError:
        with pytest.raises(TidemarkError) as refused:
            await self.alter(schema, **facts)
        return refused.value

    async def versions(self) -> Mapping[int, SchemaText]:
        return (await self.schemas.describe("flights")).schemas


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    clock = ManualClock()
    zookeeper = FakeZooKeeper(clock)
    store = zookeeper.store()
    await store.start()
    yield Admin(zookeeper, store, clock)
    await store.stop()


async def test_a_change_becomes_the_next_version_with_its_differences_and_its_time(admin: Admin) -> None:
    await admin.create()
    admin.clock.advance(5_000)
    done = await admin.alter(document(CARRIER, DELAY, PRICE, key=["carrier"]), expected_version=1)
    assert (done.changed, done.schema.version) == (True, 2)
    assert done.schema.created_at_ms == admin.clock.now_ms()
    assert any("price" in one for one in done.differences)
    versions = await admin.versions()
    assert versions[2] == SchemaText(done.schema.text, done.schema.created_at_ms)
    first, second = (from_text(versions[number].text) for number in (1, 2))
    assert [one.id for one in second.columns] == [1, 2, 3]
    assert second.key == first.key == (1,)


async def test_the_same_columns_make_no_version(admin: Admin) -> None:
    await admin.create()
    same = await admin.alter(FIRST, expected_version=1, request_id="r")
    assert (same.changed, same.schema.version, list(same.differences)) == (False, 1, [])
    assert same.schema.text == (await admin.versions())[1].text


async def test_a_dry_run_tells_the_version_and_writes_nothing(admin: Admin) -> None:
    await admin.create()
    planned = await admin.alter(document(CARRIER, DELAY, PRICE, key=["carrier"]), validate_only=True, request_id="r")
    assert (planned.changed, planned.schema.version) == (True, 2)
    assert from_text(planned.schema.text).version == 2
    assert set(await admin.versions()) == {1}


async def test_the_second_of_two_concurrent_changes_is_refused_with_the_newest_version(admin: Admin) -> None:
    await admin.create()
    wanted = [document(CARRIER, DELAY, {"name": name, "type": "int64"}, key=["carrier"]) for name in ("a", "b")]
    results = await asyncio.gather(*(admin.alter(one, expected_version=1) for one in wanted), return_exceptions=True)
    (lost,) = [one for one in results if isinstance(one, TidemarkError)]
    assert lost.code is ErrorCode.SCHEMA_CONFLICT
    assert lost.metadata["version"] == "2"
    assert set(await admin.versions()) == {1, 2}
    again = await admin.alter(wanted[results.index(lost)], validate_only=True, expected_version=2)
    assert again.schema.version == 3


async def test_a_change_that_comes_in_between_is_not_undone_though_no_version_is_expected(admin: Admin) -> None:
    await admin.create(schema_compatibility="none")
    ours, theirs = (document(CARRIER, {"name": name, "type": "int64"}, key=["carrier"]) for name in ("a", "b"))

    async def meddle() -> None:
        store = admin.zookeeper.store()
        await store.start()
        await Admin(admin.zookeeper, store, admin.clock).alter(theirs)
        await store.stop()

    admin.store.session.before_commit(meddle)
    refused = await admin.refusal(ours)
    assert (refused.code, refused.metadata["version"]) == (ErrorCode.SCHEMA_CONFLICT, "2")
    assert set(await admin.versions()) == {1, 2}
    assert (await admin.alter(ours)).schema.version == 3


@pytest.mark.parametrize("request_id", ["", "r-1"])
async def test_a_change_whose_answer_was_lost_is_made_once(admin: Admin, request_id: str) -> None:
    await admin.create()
    admin.store.session.lose_answers(1, applied=True)
    wider = document(CARRIER, DELAY, PRICE, key=["carrier"])
    done = await admin.alter(wider, expected_version=1, request_id=request_id)
    assert (done.changed, done.schema.version) == (True, 2)
    assert done.schema.text == (await admin.versions())[2].text
    admin.store.session.lose_answers(1, applied=False)
    wider = document(CARRIER, DELAY, PRICE, {"name": "miles", "type": "int64"}, key=["carrier"])
    assert (await admin.alter(wider, expected_version=2, request_id=request_id and "r-2")).schema.version == 3


async def test_a_retry_with_the_request_id_gets_the_first_answer_after_other_changes(admin: Admin) -> None:
    await admin.create()
    wider = document(CARRIER, DELAY, PRICE, key=["carrier"])
    first = await admin.alter(wider, expected_version=1, request_id="r")
    await admin.alter(document(CARRIER, DELAY, PRICE, {"name": "x", "type": "bool"}, key=["carrier"]))
    assert await admin.alter(wider, expected_version=1, request_id="r") == first
    reused = await admin.refusal(FIRST, request_id="r")
    assert reused.code is ErrorCode.REQUEST_ID_REUSED


async def test_changed_settings_are_read_again_before_the_write(admin: Admin) -> None:
    """The current rule of the topic decides, not the rule at the time of the plan."""
    await admin.create(schema_compatibility="none")
    resource = ConfigResource(ConfigKind.TOPIC, "flights")

    async def meddle() -> None:
        other = admin.zookeeper.store()
        await other.start()
        assert await other.write_configs(resource, {"schema.compatibility": "full"}, version=0)
        await other.stop()

    admin.store.session.before_commit(meddle)
    renamed_type = document(CARRIER, {"name": "delay", "type": "string"}, key=["carrier"])
    refused = await admin.refusal(renamed_type)
    assert refused.code is ErrorCode.INCOMPATIBLE_SCHEMA
    assert set(await admin.versions()) == {1}


async def test_the_topics_compatibility_decides(admin: Admin) -> None:
    await admin.create()
    not_null = document(CARRIER, DELAY, {"name": "gate", "type": "string", "nullable": False}, key=["carrier"])
    refused = await admin.refusal(not_null)
    assert refused.code is ErrorCode.INCOMPATIBLE_SCHEMA
    assert refused.message.startswith("topic flights: version 2 cannot follow version 1: column gate: ")
    assert refused.metadata["topic"] == "flights"
    assert await admin.store.write_configs(
        ConfigResource(ConfigKind.TOPIC, "flights"), {"schema.compatibility": "none"}, version=0
    )
    assert (await admin.alter(not_null)).schema.version == 2


async def test_a_topic_without_a_schema_stays_so(admin: Admin) -> None:
    await admin.create("")
    refused = await admin.refusal(FIRST)
    assert refused.code is ErrorCode.INVALID_SCHEMA
    assert "created without a schema" in refused.message
    assert await admin.versions() == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"columns":[]}', '{"columns":[{"name":"a","type":"uint8"}]}'])
async def test_a_document_that_states_no_schema_is_refused(admin: Admin, text: str) -> None:
    await admin.create()
    assert (await admin.refusal(text)).code is ErrorCode.INVALID_SCHEMA
    if text:
        with raises_code(ErrorCode.INVALID_SCHEMA):
            admin.schemas.first(text, {})


async def test_an_unknown_topic_is_refused(admin: Admin) -> None:
    assert (await admin.refusal(FIRST)).code is ErrorCode.UNKNOWN_TOPIC


async def test_a_typed_topic_without_a_key_is_never_compacted(admin: Admin) -> None:
    keyless = document(CARRIER, DELAY)
    with raises_code(ErrorCode.INVALID_SCHEMA, "no key columns"):
        admin.schemas.first(keyless, {"cleanup.policy": "compact,delete"})
    await admin.create(keyless)
    configs = ConfigAdministration(admin.store)
    alteration = Alteration(ConfigResource(ConfigKind.TOPIC, "flights"), {"cleanup.policy": "compact"})
    with raises_code(ErrorCode.INVALID_CONFIG, "no key columns"):
        await configs.plan(alteration)


async def test_the_versions_of_a_topic_have_a_bound_of_bytes(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await admin.create()
    monkeypatch.setattr(schemas_module, "TEXTS_BYTES_MAX", 2_000)
    long = document(CARRIER, DELAY, {"name": "note", "type": "string", "doc": "x" * 2_000}, key=["carrier"])
    refused = await admin.refusal(long)
    assert refused.code is ErrorCode.INVALID_SCHEMA
    assert int(refused.metadata["size_bytes"]) > 2_000


async def test_after_a_damaged_version_none_can_follow(admin: Admin) -> None:
    await admin.create()
    admin.zookeeper.corrupt("/config/topics/flights/1", b"{")
    refused = await admin.refusal(document(CARRIER, DELAY, PRICE, key=["carrier"]))
    assert refused.code is ErrorCode.INTERNAL
    assert "version 1" in refused.message


async def test_while_the_topic_has_no_leader_the_change_waits_and_then_tells_why(admin: Admin) -> None:
    schema = admin.schemas.first(FIRST, {})
    assert schema is not None
    topic = await admin.store.create_topic(replace(topic_of(), schemas={1: schema}))
    request = AlterTopicSchemaRequest(topic="flights", schema=document(CARRIER, DELAY, PRICE, key=["carrier"]))
    with raises_code(ErrorCode.REQUEST_TIMED_OUT, "no leader yet"):
        await alter_schema(admin.schemas, admin.requests, request, timeout_s=0.05)
    waiting = asyncio.create_task(alter_schema(admin.schemas, admin.requests, request, timeout_s=5))
    await asyncio.sleep(0.03)
    await admin.store.write_states(await elected(admin.store), [write_of(topic, 0, -1)])
    assert (await waiting).schema.version == 2


async def test_a_schema_that_no_node_can_hold_is_refused_in_a_dry_run_too(admin: Admin) -> None:
    await admin.create()
    long = document(CARRIER, DELAY, {"name": "note", "type": "string", "doc": "x" * 470_000}, key=["carrier"])
    for validate_only in (True, False):
        refused = await admin.refusal(long, validate_only=validate_only)
        assert refused.code is ErrorCode.INVALID_SCHEMA
        assert "size_bytes_max" in refused.metadata
    with pytest.raises(TidemarkError, match="ZooKeeper node"):
        admin.schemas.first(long, {})


async def test_each_change_writes_an_audit_line_with_version_and_differences(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    await admin.create()
    caplog.set_level("INFO", "tidemark.audit")
    absent = cast("Any", None)
    servicer = AdminServicer(
        absent,
        absent,
        descriptions=absent,
        configs=absent,
        requests=admin.requests,
        reassignments=absent,
        partitions=absent,
        brokers=absent,
        log_dirs=absent,
        acls=absent,
        quotas=absent,
        schemas=admin.schemas,
        audit_lines=absent,
        of_callers=absent,
        request_timeout_ms=1000,
    )
    caller = cast("Any", Caller())
    wider = document(CARRIER, DELAY, PRICE, key=["carrier"])
    request = AlterTopicSchemaRequest(topic="flights", schema=wider, expected_version=1, validate_only=True)
    await servicer.AlterTopicSchema(request, caller)
    request.validate_only = False
    await servicer.AlterTopicSchema(request, caller)
    with pytest.raises(TidemarkError):
        await servicer.AlterTopicSchema(
            AlterTopicSchemaRequest(topic="flights", schema=FIRST, expected_version=1), caller
        )
    done, refused = [vars(record) for record in caplog.records if record.name == "tidemark.audit"]
    assert (done["outcome"], done["topic"], done["version"]) == ("OK", "flights", 2)
    assert any("price" in one for one in done["diff"])
    assert (refused["outcome"], refused["expected_version"]) == ("SCHEMA_CONFLICT", 1)
    described = await servicer.DescribeTopicSchemas(DescribeTopicSchemasRequest(topic="flights"), caller)
    assert [one.version for one in described.schemas] == [1, 2]
    assert described.compatibility == "backward"
