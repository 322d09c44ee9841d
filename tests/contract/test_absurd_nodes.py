# SPDX-License-Identifier: Apache-2.0
"""Well-formed nodes with unusable content are refused when they are read, without an effect on other nodes."""

from __future__ import annotations

import json
import logging

import pytest
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import ErrorCode, SchemaText, TopicPartition
from tidemark.zookeeper import codecs

from tests.contract.conftest import Cluster
from tests.contract.test_metadata_store import STATE, elected, topic_of, write_of
from tests.refusals import raises_code

HEALTHY = {"version": 1, "topic_id": "id", "partitions": {"0": [0, 1]}, "incarnations": {"0": "i0"}}
LATER = {"version": 1, "topic_id": "id", "partitions": {"0": [0]}, "incarnations": {"0": "i"}, "later": {"x": [1]}}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("a b", HEALTHY),
        ("é", HEALTHY),
        ("x" * 250, HEALTHY),
        ("t", {**HEALTHY, "topic_id": "../../x"}),
        ("t", {**HEALTHY, "incarnations": {"0": "a/b"}}),
        ("t", {**HEALTHY, "partitions": {}}),
        ("t", {**HEALTHY, "partitions": {"0": [0], "99999999999": [1]}}),
        ("t", {**HEALTHY, "partitions": {"-1": [0]}}),
        ("t", {**HEALTHY, "partitions": {"1": [0]}}),
        ("t", {**HEALTHY, "partitions": {"00": [0]}}),
        ("t", {**HEALTHY, "partitions": {"0": []}}),
        ("t", {**HEALTHY, "partitions": {"0": [0, 0]}}),
        ("t", {**HEALTHY, "partitions": {"0": [-5]}}),
        ("t", {**HEALTHY, "partitions": {"0": [1 << 40]}}),
        ("t", {**HEALTHY, "partitions": {"9" * 5000: [0]}}),
        ("t", {**HEALTHY, "adding": {"0": [1 << 31]}}),
    ],
)
async def test_an_absurd_topic_is_unreadable_and_the_others_are_read(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, name: str, fields: dict[str, object]
) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of("well"))
    session = store._session
    await session.commit(lambda multi: multi.create(f"/brokers/topics/{name}", json.dumps(fields).encode()))
    unreadable: set[str] = set()
    with caplog.at_level(logging.ERROR):
        assert set(await store.topics(unreadable=unreadable)) == {"well"}
    assert unreadable == {name}
    (line,) = [vars(record) for record in caplog.records]
    assert f"/brokers/topics/{name}" in line["why"]
    assert len(line["why"]) < 1000


async def test_unknown_fields_of_a_topic_are_ignored(cluster: Cluster) -> None:
    store = await cluster.store()
    session = store._session
    await session.commit(lambda multi: multi.create("/brokers/topics/t", json.dumps(LATER).encode()))
    assert (await store.topics())["t"].partitions == {0: (0,)}


async def test_a_topic_without_incarnations_can_be_configured(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of("t", topic_id="id"))
    data = json.dumps({**HEALTHY, "incarnations": {}}).encode()
    await store._session.commit(lambda multi: multi.set_data("/brokers/topics/t", data, -1))
    resource = ConfigResource(ConfigKind.TOPIC, "t")
    assert await store.write_configs(resource, {"retention.ms": "9"}, version=0, topic_id="id")


@pytest.mark.parametrize(
    "changed",
    [
        {"leader": 1 << 31},
        {"leader_epoch": 1 << 40},
        {"isr": [[-1, 0]]},
        {"isr": [[1 << 31, 0]]},
        {"elr": [[0, 1 << 63]]},
        {"min_isr": 1 << 31},
        {"lineage": 1 << 63},
        {"controller_epoch": -(1 << 31) - 1},
    ],
)
async def test_a_state_with_numbers_that_no_message_holds_is_unreadable(
    cluster: Cluster, changed: dict[str, object]
) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=2))
    await store.write_states(await elected(store), [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    data = json.dumps({**json.loads(codecs.encode_state(STATE)), **changed}).encode()
    session = store._session
    await session.commit(lambda multi: multi.set_data("/brokers/topics/flights/1/leaderAndISR", data, -1))
    unreadable: set[TopicPartition] = set()
    partitions = [TopicPartition("flights", index) for index in range(2)]
    assert set(await store.states(partitions, unreadable=unreadable)) == {partitions[0]}
    assert unreadable == {partitions[1]}


@pytest.mark.parametrize("name", ["9" * 5000, "99999999999", "٣", "07"])
async def test_a_node_with_an_absurd_number_as_its_name_is_ignored_or_refused(cluster: Cluster, name: str) -> None:
    """Regression: a name of thousands of digits ended every controller."""
    store = await cluster.store()
    topic = await store.create_topic(topic_of("t"))
    session = store._session
    for path in ("/admin/partitions_add/t", "/admin/partitions_remove/t", "/admin/draining_brokers"):
        await session.ensure(path)
        await session.commit(lambda multi, path=path: multi.create(f"{path}/{name}", b'{"replicas":[1]}'))  # type: ignore[misc]
    await session.commit(lambda multi: multi.create(f"/config/topics/t/{name}", b"{}"))
    found = await store.topics(unreadable=set())
    assert (set(found), found["t"].schemas) == ({"t"}, {})
    requests = await store.partition_requests()
    assert (requests.added, requests.removed) == ({}, {})
    assert [one.error.code for one in requests.malformed] == [ErrorCode.INVALID_REQUEST] * 2
    assert all(len(one.error.message) < 1000 for one in requests.malformed)
    assert not await store.draining_brokers()
    await store.finish_partition_requests(await elected(store), refused=requests.malformed)
    assert not (await store.partition_requests()).malformed
    await store.request_topic_deletion("t")
    await store.delete_topic(await elected(store), topic)
    assert await store.topics(unreadable=set()) == {}


@pytest.mark.parametrize("text", [b"\\ud800", "\ud800".encode("utf-8", "surrogatepass")])
@pytest.mark.parametrize(
    "path", ["/config/topics/t", "/config/topics/t/1", "/brokers/ids/7", "/controller", "/admin/refusals"]
)
async def test_text_that_no_message_holds_is_damage(cluster: Cluster, path: str, text: bytes) -> None:
    """Regression: each controller ended when it sent such text to a broker."""
    store = await cluster.store()
    await store.create_topic(topic_of("t", topic_id="id"))
    session = store._session
    documents = {
        "/config/topics/t": b'{"config":{"retention.ms":"%s"}}',
        "/config/topics/t/1": b'{"topic_id":"id","schema":{"doc":"%s"}}',
        "/brokers/ids/7": b'{"host":"%s","port":1,"broker_epoch":0}',
        "/controller": b'{"id":7,"address":"%s"}',
        "/admin/refusals": b'{"refusals":[{"kind":"%s"}]}',
    }
    data = documents[path] % text
    if path == "/config/topics/t":
        await session.commit(lambda multi: multi.set_data(path, data, -1))
    else:
        await session.commit(lambda multi: multi.create(path, data, ephemeral=path == "/controller"))
    unreadable: set[str] = set()
    found = await store.topics(unreadable=unreadable)
    assert unreadable == ({"t"} if path == "/config/topics/t" else set())
    if path == "/config/topics/t/1":
        assert found["t"].schemas == {1: SchemaText("")}
    assert not await store.live_brokers()
    assert not await store.refusals()
    if path == "/controller":
        with raises_code(ErrorCode.INTERNAL, "cannot be understood"):
            await store.controller()


@pytest.mark.parametrize("text", ["é", "\\u00e9", "\\ud83d\\ude00", "\U0001f600"])
async def test_any_other_text_is_read(cluster: Cluster, text: str) -> None:
    store = await cluster.store()
    data = f'{{"host":"{text}","port":1,"broker_epoch":0}}'.encode()
    await store._session.commit(lambda multi: multi.create("/brokers/ids/7", data))
    assert [one.host for one in (await store.live_brokers()).values()] == [json.loads(f'"{text}"')]
