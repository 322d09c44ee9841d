# SPDX-License-Identifier: Apache-2.0
"""A typed topic in a whole cluster: created, changed, known to every broker, deleted and created again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest
from tidemark.client import AdminClient, SchemaError, UnknownTopicError
from tidemark.core.schemas.text import from_text
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.errors import from_rpc_error
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest

from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

FIRST = "carrier STRING NOT NULL, delay INT, PRIMARY KEY (carrier)"
SECOND = "carrier STRING NOT NULL, delay BIGINT, miles INT DEFAULT 0, PRIMARY KEY (carrier)"


class Broker:
    """One broker, as a client asks it for schemas."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)
        self._stub = BrokerServiceStub(self.channel)

    def get(self, topic: str, *versions: int, topic_id: str = "") -> list[int]:
        """The numbers of the versions, which all parse."""
        request = GetTopicSchemasRequest(topic=topic, topic_id=topic_id, versions=versions)
        try:
            found = self._stub.GetTopicSchemas(request, timeout=20).schemas
        except grpc.RpcError as error:
            raise from_rpc_error(error, address=self.address) from None
        assert [from_text(one.text).version for one in found] == [one.version for one in found]
        return [one.version for one in found]

    def knows(self, topic: str, version: int) -> bool:
        try:
            return self.get(topic, version) == [version]
        except (SchemaError, UnknownTopicError):
            return False

    def newest(self, topic: str) -> int:
        """The newest version in the metadata for clients."""
        found: pb.GetMetadataResponse = self._stub.GetMetadata(pb.GetMetadataRequest(topics=[topic]), timeout=20)
        return found.metadata.topics[0].schema_version


@pytest.fixture
def brokers(cluster: LocalCluster) -> Iterator[list[Broker]]:
    found = [Broker(address) for address in cluster.bootstrap.split(",")]
    yield found
    for one in found:
        one.channel.close()


def test_every_broker_knows_each_version_within_a_second(admin: AdminClient, brokers: list[Broker]) -> None:
    created = admin.create_topic("typed", partitions=2, replication_factor=1, schema=FIRST)
    assert created.schema_version == 1
    done = admin.alter_topic_schema("typed", SECOND, expected_version=1)
    written_s = time.monotonic()
    assert (done.schema.version, done.changed) == (2, True)
    wait_for(lambda: all(one.knows("typed", 2) for one in brokers), "version 2 at every broker")
    took_s = time.monotonic() - written_s
    wait_for(lambda: all(one.newest("typed") == 2 for one in brokers), "version 2 in the metadata of every broker")
    assert all(one.get("typed") == [1, 2] for one in brokers)
    described = admin.describe_topic_schemas("typed")
    assert [one.schema.version for one in described.versions] == [1, 2]
    assert described.compatibility == "backward"
    assert described.versions[1].schema == done.schema
    (view,) = admin.describe_topics(["typed"])
    assert view.schema_version == 2
    assert took_s < 10, f"{took_s:.2f} s"


def test_a_recreated_topic_gets_no_version_of_the_one_before(admin: AdminClient, brokers: list[Broker]) -> None:
    first = admin.create_topic("again", replication_factor=3, schema=FIRST)
    admin.alter_topic_schema("again", SECOND)
    wait_for(lambda: all(one.knows("again", 2) for one in brokers), "version 2 at every broker")
    admin.delete_topic("again")
    other = admin.create_topic("again", replication_factor=3, schema="carrier BINARY")
    assert other.topic_id != first.topic_id
    wait_for(lambda: all(one.newest("again") == 1 for one in brokers), "the new topic at every broker")
    wait_for(lambda: all(one.knows("again", 1) for one in brokers), "its first version at every broker")
    for one in brokers:
        assert one.get("again", topic_id=other.topic_id) == [1]
        with raises_code(ErrorCode.UNKNOWN_TOPIC_ID):
            one.get("again", topic_id=first.topic_id)
    admin.delete_topic("again")
    untyped = admin.create_topic("again", replication_factor=3)
    assert untyped.schema_version == 0
    wait_for(lambda: all(one.newest("again") == 0 for one in brokers), "the topic without a schema at every broker")
    wait_for(lambda: all(_is_empty(one, untyped.topic_id) for one in brokers), "no versions at any broker")
    with pytest.raises(SchemaError) as refused:
        admin.alter_topic_schema("again", FIRST)
    assert refused.value.code is ErrorCode.INVALID_SCHEMA


def _is_empty(broker: Broker, topic_id: str) -> bool:
    try:
        return broker.get("again", topic_id=topic_id) == []
    except TidemarkError:
        return False


def test_unknown_topics_and_versions_are_refused(admin: AdminClient, brokers: list[Broker]) -> None:
    with pytest.raises(UnknownTopicError):
        brokers[0].get("no-such-topic")
    admin.create_topic("few", schema=FIRST)
    wait_for(lambda: all(one.knows("few", 1) for one in brokers), "version 1 at every broker")
    for version in (2, 0, -1, 2047, 2**31 - 1):
        with pytest.raises(SchemaError) as refused:
            brokers[0].get("few", version)
        assert refused.value.code is ErrorCode.UNKNOWN_SCHEMA_VERSION
        assert refused.value.retriable
    with pytest.raises(SchemaError) as refused:
        admin.alter_topic_schema("few", SECOND, expected_version=7)
    assert (refused.value.code, refused.value.metadata["version"]) == (ErrorCode.SCHEMA_CONFLICT, "1")
    with pytest.raises(SchemaError):
        admin.create_topic("bad", schema={"columns": [{"name": "a", "type": "uint8"}]})
    with pytest.raises(SchemaError, match="topic bad: key and event_time name columns") as no_key:
        admin.create_topic("bad", schema="a INT", key=["b"])
    assert no_key.value.metadata["topic"] == "bad"
    assert "bad" not in admin.list_topics()
