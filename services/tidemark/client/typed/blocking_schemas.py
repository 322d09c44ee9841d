# SPDX-License-Identifier: Apache-2.0
"""The versions of a topic's schema that brokers know, for clients without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.typed.topic_schemas import versions_of
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest, GetTopicSchemasResponse


def schemas_of(cluster: BlockingCluster, topic: str, versions: Sequence[int] = ()) -> dict[int, TopicSchema]:
    """Return versions of a topic's schema, by default all that a leader knows; empty for a topic without a schema.

    A leader knows the version of each batch that it stores. Another broker may not know the newest version yet
    (rule S4).

    Raises:
        TidemarkError: UNKNOWN_TOPIC; REQUEST_TIMED_OUT at the deadline, also for a version that no broker knows; the
            errors of `BlockingCluster.topics`.
    """
    check_topic_name(topic)

    def ask() -> dict[int, TopicSchema]:
        cluster.refresh([topic])
        view = cluster.known(topic)
        if not view.schema_version:
            return {}
        request = GetTopicSchemasRequest(topic=topic, topic_id=view.topic_id, versions=versions)
        addresses = {broker: one.address for broker, one in cluster.view.brokers.items()}
        leaders = {one.leader for one in view.partitions.values()} & set(addresses)
        if versions or not leaders:
            return versions_of(_of_any(cluster, list(addresses.values()), request))
        answers = [cluster.call(addresses[leader], _schemas_method, request) for leader in sorted(leaders)]
        known = {one.version: one for answer in answers for one in answer.schemas}
        return versions_of(GetTopicSchemasResponse(schemas=known.values()))

    return cluster.retrying(ask)


def _of_any(cluster: BlockingCluster, addresses: Sequence[str], request: GetTopicSchemasRequest) -> Any:
    """The first response; after a retriable error of one address, the next address is asked."""
    failure = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")
    for address in addresses:
        try:
            return cluster.call(address, _schemas_method, request)
        except TidemarkError as error:
            if not error.retriable:
                raise
            failure = error
    raise failure


def _schemas_method(channel: grpc.Channel) -> Any:
    return BrokerServiceStub(channel).GetTopicSchemas
