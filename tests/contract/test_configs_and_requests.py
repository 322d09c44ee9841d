# SPDX-License-Identifier: Apache-2.0
"""Settings written conditionally and requests answered once: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource, VersionedConfigs
from tidemark.model import ErrorCode
from tidemark.ports import AdminRequest, StoreEvent

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.fakes.metadata_store import FakeMetadataStore
from tests.refusals import raises_code

FLIGHTS = ConfigResource(ConfigKind.TOPIC, "flights")
BROKER_3 = ConfigResource(ConfigKind.BROKER, "3")
EVERY_BROKER = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)
NOON_MS = 1_700_000_000_000
REQUEST = AdminRequest("deploy/7 of ./today", "AlterConfigs", "0123abcd", NOON_MS, {"topic_id": "77"})


async def test_a_resource_without_settings_reads_as_empty(cluster: Cluster) -> None:
    store = await cluster.store()
    nothing = VersionedConfigs({}, -1)
    assert await store.configs([BROKER_3, FLIGHTS]) == {BROKER_3: nothing, FLIGHTS: nothing}


async def test_settings_of_a_topic_are_those_it_was_created_with_then_those_written(cluster: Cluster) -> None:
    store = await cluster.store()
    created = await store.create_topic(replace(topic_of("flights"), configs={"segment.ms": "7"}))
    found = (await store.configs([FLIGHTS]))[FLIGHTS]
    assert found == VersionedConfigs({"segment.ms": "7"}, 0)
    assert await store.write_configs(FLIGHTS, {"retention.ms": "9"}, version=found.version)
    assert (await store.configs([FLIGHTS]))[FLIGHTS] == VersionedConfigs({"retention.ms": "9"}, 1)
    topic = (await store.topics(["flights"]))["flights"]
    assert topic.configs == {"retention.ms": "9"}
    assert (topic.modified_zxid, topic.version) == (created.modified_zxid, created.version)
    assert topic.configs_zxid > created.configs_zxid


async def test_one_of_two_writers_with_the_same_version_succeeds(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.write_configs(BROKER_3, {"log.level": "debug"}, version=-1)
    assert not await store.write_configs(BROKER_3, {"log.level": "error"}, version=-1)
    assert await store.write_configs(BROKER_3, {"log.level": "info"}, version=0)
    assert not await store.write_configs(BROKER_3, {"log.level": "error"}, version=0)
    assert (await store.configs([BROKER_3]))[BROKER_3] == VersionedConfigs({"log.level": "info"}, 1)


async def test_settings_of_a_topic_that_does_not_exist_are_refused(cluster: Cluster) -> None:
    store = await cluster.store()
    with raises_code(ErrorCode.UNKNOWN_TOPIC):
        await store.write_configs(FLIGHTS, {"retention.ms": "9"}, version=-1, receipt=REQUEST)
    assert await store.kept_request(REQUEST.request_id) is None


async def test_settings_for_an_earlier_topic_of_the_name_are_not_written(cluster: Cluster) -> None:
    store = await cluster.store()
    before = await store.create_topic(topic_of("flights"))
    found = (await store.configs([FLIGHTS]))[FLIGHTS]
    await store.delete_topic(await elected(store), before)
    after = await store.create_topic(topic_of("flights", topic_id="id-2"))
    for _ in range(2):
        assert not await store.write_configs(
            FLIGHTS, {"cleanup.policy": "compact"}, version=found.version, topic_id="id-1", receipt=REQUEST
        )
        await store.write_states(await elected(store), [write_of(after, 0, -1)])
    assert (await store.topics(["flights"]))["flights"].configs == after.configs
    assert await store.kept_request(REQUEST.request_id) is None
    assert await store.write_configs(FLIGHTS, {"retention.ms": "9"}, version=found.version, topic_id="id-2")


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_settings_are_not_written_to_a_topic_that_is_created_at_that_moment(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    assert isinstance(store, FakeMetadataStore)
    before = await store.create_topic(topic_of("flights"))
    term = await elected(store)
    await store.write_states(term, [write_of(before, 0, -1)])

    async def recreated() -> None:
        await other.delete_topic(term, before)
        await other.create_topic(topic_of("flights", topic_id="id-2"))

    store.session.before_commit(recreated)
    wanted = {"cleanup.policy": "compact"}
    assert not await store.write_configs(FLIGHTS, wanted, version=0, topic_id="id-1")
    assert (await store.configs([FLIGHTS]))[FLIGHTS].configs != wanted


@pytest.mark.parametrize("resource", [BROKER_3, EVERY_BROKER])
async def test_a_watch_on_settings_reports_the_first_and_every_later_write(
    cluster: Cluster, resource: ConfigResource
) -> None:
    store = await cluster.store()
    ear = Ear(store)
    version = -1
    for level in ("debug", "info"):
        await store.configs([BROKER_3, EVERY_BROKER], watch=True)
        assert await store.write_configs(resource, {"log.level": level}, version=version)
        await ear.hears(StoreEvent.CONFIGS)
        version += 1


async def test_a_watch_on_a_topic_reports_new_settings(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of("flights"))
    ear = Ear(store)
    await store.topics(watch=True)
    assert await store.write_configs(FLIGHTS, {"retention.ms": "9"}, version=0)
    await ear.hears(StoreEvent.TOPICS)


async def test_an_answer_is_kept_with_the_settings_it_is_about_or_neither_is(cluster: Cluster) -> None:
    store = await cluster.store()
    receipt = replace(REQUEST, answer=b"done")
    assert await store.write_configs(BROKER_3, {"log.level": "debug"}, version=-1, receipt=receipt)
    assert await store.kept_request(REQUEST.request_id) == replace(receipt, version=0)
    assert not await store.write_configs(BROKER_3, {"log.level": "info"}, version=0, receipt=receipt)
    assert (await store.configs([BROKER_3]))[BROKER_3].configs == {"log.level": "debug"}
    other = replace(receipt, request_id="another")
    assert not await store.write_configs(BROKER_3, {"log.level": "info"}, version=7, receipt=other)
    assert await store.kept_request("another") is None


async def test_retries_find_the_first_attempt_of_a_request(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.kept_request(REQUEST.request_id) is None
    begun = await store.begin_request(REQUEST)
    assert begun == replace(REQUEST, version=0)
    assert await store.begin_request(replace(REQUEST, method="DeleteTopic", at_ms=NOON_MS + 1)) == begun
    finished = await store.finish_request(replace(begun, answer=b"\x00\xff" * 50))
    assert finished.answer == b"\x00\xff" * 50
    assert await store.begin_request(REQUEST) == finished
    assert await store.finish_request(replace(begun, answer=b"a later one")) == finished


async def test_ids_that_look_like_paths_are_ids(cluster: Cluster) -> None:
    store = await cluster.store()
    ids = [".", "..", "a/b", "/", "é ü", "%2F", "a b\n", "id-"]
    for request_id in ids:
        await store.begin_request(replace(REQUEST, request_id=request_id))
    for request_id in ids:
        found = await store.kept_request(request_id)
        assert found is not None
        assert found.request_id == request_id


async def test_an_answer_larger_than_a_znode_is_not_kept(cluster: Cluster) -> None:
    store = await cluster.store()
    begun = await store.begin_request(REQUEST)
    noise = b"".join(index.to_bytes(4, "big") + bytes(str(index * index), "ascii") for index in range(60_000))
    assert (await store.finish_request(replace(begun, answer=noise))).answer == noise
    assert await store.kept_request(REQUEST.request_id) == begun


async def test_an_answer_is_kept_of_a_request_that_has_expired_meanwhile(cluster: Cluster) -> None:
    store = await cluster.store()
    begun = await store.begin_request(REQUEST)
    await store.forget_request(begun)
    await store.finish_request(replace(begun, answer=b"late"))
    found = await store.kept_request(REQUEST.request_id)
    assert found is not None
    assert found.answer == b"late"


async def test_an_unanswered_request_is_forgotten(cluster: Cluster) -> None:
    store = await cluster.store()
    begun = await store.begin_request(REQUEST)
    answered = await store.finish_request(replace(begun, answer=b"done"))
    await store.forget_request(begun)
    assert await store.kept_request(REQUEST.request_id) == answered
    await store.forget_request(answered)
    await store.forget_request(answered)
    assert await store.kept_request(REQUEST.request_id) is None


async def test_old_and_unreadable_requests_expire(cluster: Cluster) -> None:
    store = await cluster.store()
    for index in range(5):
        await store.begin_request(replace(REQUEST, request_id=f"r{index}", at_ms=NOON_MS + index))
    await cluster.corrupt("/admin/requests/id-r4", b"{")
    assert await store.expire_requests(NOON_MS + 2) == 3
    assert await store.expire_requests(NOON_MS + 2) == 0
    for request_id, is_kept in (("r0", False), ("r1", False), ("r2", True), ("r3", True), ("r4", False)):
        assert (await store.kept_request(request_id) is not None) is is_kept
