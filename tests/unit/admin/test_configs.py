# SPDX-License-Identifier: Apache-2.0
"""Changes of settings by the admin service, also concurrent ones; the store is the suite's fake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from grpc.aio import ServicerContext
from tidemark.admin.configs import EVERY_BROKER, Alteration, ConfigAdministration
from tidemark.admin.requests import AnsweredOnce
from tidemark.admin.servicer import AdminServicer
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import BrokerId, ErrorCode, SchemaText, TidemarkError, TopicDescription
from tidemark.rpc.codecs.config import change_from_proto, resource_to_proto
from tidemark.rpc.request_limits import CONFIG_RESOURCES_MAX
from tidemark.runtime import slices
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.configuration.entries import ConfigChange, ConfigSource
from tidemark.v1 import admin_configs_pb2 as pb

from tests.fakes.contexts import PlainContext
from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.refusals import raises_code
from tests.turns import counted_turns

FLIGHTS = ConfigResource(ConfigKind.TOPIC, "flights")
BROKER_0 = ConfigResource(ConfigKind.BROKER, "0")


class Calls(AdminServicer):
    """The servicer with its administration of settings, without a server."""

    def __init__(self, store: FakeMetadataStore) -> None:
        absent: Any = None
        super().__init__(
            absent,
            absent,
            descriptions=absent,
            configs=ConfigAdministration(store),
            requests=AnsweredOnce(store, SystemClock()),
            reassignments=absent,
            partitions=absent,
            brokers=absent,
            log_dirs=absent,
            acls=absent,
            quotas=absent,
            schemas=absent,
            audit_lines=absent,
            of_callers=absent,
            request_timeout_ms=1000,
        )

    async def alter(self, resource: ConfigResource, request_id: str = "", **set_: str) -> list[ConfigChange]:
        configs = {name.replace("_", "."): value for name, value in set_.items()}
        request = pb.AlterConfigsRequest(resource=resource_to_proto(resource), set=configs, request_id=request_id)
        return [change_from_proto(change) for change in (await self._alter_configs(request)).changes]


@pytest.fixture
async def store() -> FakeMetadataStore:
    store = FakeZooKeeper().store()
    await store.start()
    two = (BrokerId(0), BrokerId(1))
    await store.create_topic(
        TopicDescription("flights", "id", {0: two}, {0: "i"}, configs={"segment.ms": "5", "from.the.future": "1"})
    )
    return store


async def test_change_keeps_other_keys_and_returns_its_changes(store: FakeMetadataStore) -> None:
    assert await Calls(store).alter(FLIGHTS, retention_ms="7") == [ConfigChange("retention.ms", None, "7")]
    assert (await store.configs([FLIGHTS]))[FLIGHTS].configs == {
        "segment.ms": "5",
        "from.the.future": "1",
        "retention.ms": "7",
    }


async def test_unknown_key_with_an_override_can_be_deleted(store: FakeMetadataStore) -> None:
    plan = await ConfigAdministration(store).plan(Alteration(FLIGHTS, deleted=frozenset({"from.the.future"})))
    assert plan.changes == [ConfigChange("from.the.future", "1", None)]


@pytest.mark.parametrize("name", ["-1", "007", "1.0", "2147483648", "9" * 5_000, "0" * 5_000 + "1", "None", ""])
async def test_a_name_that_is_no_broker_id_is_refused(store: FakeMetadataStore, name: str) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "is not a broker: give a broker id, or 'default'"):
        await ConfigAdministration(store).plan(Alteration(ConfigResource(ConfigKind.BROKER, name)))


async def test_deleting_an_unknown_key_without_override_is_refused(store: FakeMetadataStore) -> None:
    with raises_code(ErrorCode.UNKNOWN_CONFIG, r"did you mean retention.ms"):
        await ConfigAdministration(store).plan(Alteration(FLIGHTS, deleted=frozenset({"retention.msec"})))


async def test_concurrent_changes_are_both_applied(store: FakeMetadataStore) -> None:
    calls = Calls(store)

    async def another_service_is_faster() -> None:
        await calls.alter(FLIGHTS, segment_ms="6")

    store.session.before_commit(another_service_is_faster)
    assert await calls.alter(FLIGHTS, "r1", retention_ms="7") == [ConfigChange("retention.ms", None, "7")]
    configs = (await store.configs([FLIGHTS]))[FLIGHTS].configs
    assert (configs["segment.ms"], configs["retention.ms"]) == ("6", "7")


async def test_concurrent_attempts_of_one_request_change_once(store: FakeMetadataStore) -> None:
    calls = Calls(store)

    async def the_other_try() -> None:
        await calls.alter(BROKER_0, "r1", log_level="debug")

    store.session.before_commit(the_other_try)
    assert await calls.alter(BROKER_0, "r1", log_level="debug") == [ConfigChange("log.level", None, "debug")]
    assert (await store.configs([BROKER_0]))[BROKER_0].version == 0


@pytest.mark.parametrize("applied", [True, False])
async def test_retry_after_a_lost_response_changes_once(store: FakeMetadataStore, applied: bool) -> None:
    calls = Calls(store)
    store.session.lose_answers(1, applied=applied)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await calls.alter(BROKER_0, "r1", log_level="debug")
    assert await calls.alter(BROKER_0, "r1", log_level="debug") == [ConfigChange("log.level", None, "debug")]
    assert (await store.configs([BROKER_0]))[BROKER_0].version == 0


async def test_request_without_changes_stays_without_changes_on_retry(store: FakeMetadataStore) -> None:
    calls = Calls(store)
    assert await calls.alter(FLIGHTS, "r1", segment_ms="5") == []
    await calls.alter(FLIGHTS, segment_ms="6")
    assert await calls.alter(FLIGHTS, "r1", segment_ms="5") == []
    assert (await store.configs([FLIGHTS]))[FLIGHTS].configs["segment.ms"] == "6"


async def test_schema_compatibility_of_a_topic_without_a_schema_is_refused(store: FakeMetadataStore) -> None:
    """A broker of 0.1.0 does not know the setting, and would use the defaults for all settings of the topic."""
    with raises_code(ErrorCode.INVALID_CONFIG, "only a typed topic has schema.compatibility"):
        await Calls(store).alter(FLIGHTS, schema_compatibility="none")
    description = (await store.topics(["flights"]))["flights"]
    await store.create_topic(replace(description, topic="typed", schemas={1: SchemaText("{}")}))
    typed = ConfigResource(ConfigKind.TOPIC, "typed")
    changes = await Calls(store).alter(typed, schema_compatibility="none")
    assert changes == [ConfigChange("schema.compatibility", None, "none")]


async def test_min_insync_replicas_above_replication_factor_is_refused(store: FakeMetadataStore) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        await Calls(store).alter(FLIGHTS, min_insync_replicas="3")
    assert "replication factor" in refused.value.message


@pytest.mark.parametrize(
    "alteration", [{"set_": {"cleanup.policy": "delete"}}, {"deleted": frozenset({"cleanup.policy"})}]
)
async def test_ending_compaction_of_a_topic_is_refused(store: FakeMetadataStore, alteration: Any) -> None:
    calls = Calls(store)
    await calls.alter(FLIGHTS, cleanup_policy="compact")
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        await ConfigAdministration(store).plan(Alteration(FLIGHTS, **alteration))
    assert "compact,delete" in refused.value.message
    changes = await calls.alter(FLIGHTS, cleanup_policy="compact,delete")
    assert changes == [ConfigChange("cleanup.policy", "compact", "compact,delete")]


async def test_replicas_being_removed_do_not_count_for_min_insync_replicas(store: FakeMetadataStore) -> None:
    three = (BrokerId(0), BrokerId(1), BrokerId(2))
    leaving = {0: (BrokerId(2),)}
    await store.create_topic(
        TopicDescription("moving", "id-2", {0: three, 1: three}, {0: "i", 1: "j"}, removing=leaving)
    )
    moving = ConfigResource(ConfigKind.TOPIC, "moving")
    assert await Calls(store).alter(moving, min_insync_replicas="2")
    with raises_code(ErrorCode.INVALID_CONFIG):
        await Calls(store).alter(moving, min_insync_replicas="3")


@pytest.mark.parametrize("name", ["", "-1", "01", "2147483648", "x", "٣", "defaults"])
async def test_name_that_is_no_broker_id_is_refused(store: FakeMetadataStore, name: str) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        await Calls(store).alter(ConfigResource(ConfigKind.BROKER, name), log_level="info")


async def test_offline_broker_is_described_by_its_overrides_only(store: FakeMetadataStore) -> None:
    calls = Calls(store)
    await calls.alter(BROKER_0, log_level="debug")
    await calls.alter(EVERY_BROKER, log_level="error", replica_fetch_max_bytes="2048")
    entries = {entry.key: entry for entry in await ConfigAdministration(store).describe(BROKER_0, [])}
    assert (entries["log.level"].value, entries["log.level"].source) == ("debug", ConfigSource.BROKER)
    fetch = entries["replica.fetch.max.bytes"]
    assert (fetch.value, fetch.source) == ("2048", ConfigSource.CLUSTER)
    lag = entries["replica.lag.time.max.ms"]
    assert (lag.value, lag.source, lag.default_value) == (None, ConfigSource.UNKNOWN, "10000")


async def test_settings_of_many_resources_are_described_in_slices_and_of_too_many_not(
    store: FakeMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    calls, caller = Calls(store), Caller()
    request = pb.DescribeConfigsRequest(resources=[resource_to_proto(FLIGHTS)] * CONFIG_RESOURCES_MAX)
    request.keys.extend(["segment.ms"] * 10_000)
    async with counted_turns() as turns:
        response = await calls.DescribeConfigs(request, caller)
    assert len(turns) > CONFIG_RESOURCES_MAX // 2
    assert len(response.resources) == CONFIG_RESOURCES_MAX
    assert {tuple(entry.key for entry in one.entries) for one in response.resources} == {("segment.ms",)}
    request.resources.append(resource_to_proto(FLIGHTS))
    with raises_code(ErrorCode.INVALID_REQUEST, "at most 1000 resources, this one 1001"):
        await calls.DescribeConfigs(request, caller)


class Caller(PlainContext):
    """A gRPC context with the methods that the servicer uses."""

    def peer(self) -> str:
        return "ipv4:10.0.0.7:51234"

    def time_remaining(self) -> None:
        return None


async def test_each_change_writes_one_audit_line_with_peer_and_outcome(
    store: FakeMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidemark.audit")
    calls, caller = Calls(store), cast("ServicerContext[Any, Any]", Caller())
    request = pb.AlterConfigsRequest(resource=resource_to_proto(FLIGHTS), set={"segment.ms": "6"}, request_id="r1")
    await calls.AlterConfigs(request, caller)
    request.set["segment.ms"] = "soon"
    request.request_id = "r2"
    with pytest.raises(TidemarkError):
        await calls.AlterConfigs(request, caller)
    request.validate_only = True
    with pytest.raises(TidemarkError):
        await calls.AlterConfigs(request, caller)
    done, refused = [vars(record) for record in caplog.records if record.name == "tidemark.audit"]
    assert (done["peer"], done["outcome"], done["resource"]) == (caller.peer(), "OK", "topic flights")
    assert done["diff"] == [{"key": "segment.ms", "before": "5", "after": "6"}]
    assert (refused["outcome"], refused["set"], refused["request_id"]) == (
        "INVALID_CONFIG",
        {"segment.ms": "soon"},
        "r2",
    )


@pytest.mark.parametrize("kind", [3, 77, -5])
async def test_unknown_kind_of_resource_is_refused_and_audited(kind: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidemark.audit")
    request = pb.AlterConfigsRequest(resource=pb.ConfigResource(name="flights"), set={"segment.ms": "6"})
    request.resource.type = cast(Any, kind)
    with raises_code(ErrorCode.INVALID_REQUEST):
        await Calls(FakeZooKeeper().store()).AlterConfigs(request, cast("ServicerContext[Any, Any]", Caller()))
    (line,) = [vars(record) for record in caplog.records if record.name == "tidemark.audit"]
    assert (line["resource"], line["outcome"]) == (f"{kind} flights", "INVALID_REQUEST")
