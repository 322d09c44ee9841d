# SPDX-License-Identifier: Apache-2.0
"""A topic that an admin service of 0.1.0 creates: the service ignores the schema of the request."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.client.aio import AdminClient
from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode
from tidemark.rpc.codecs.metadata import topic_to_proto
from tidemark.v1 import admin_service_pb2 as pb

from tests.refusals import raises_code


def answer_with(monkeypatch: pytest.MonkeyPatch, schema_version: int) -> None:
    made = TopicView("t", "id", schema_version=schema_version)

    async def call(connection: AdminConnection, method: object, request: Any) -> pb.CreateTopicResponse:
        return pb.CreateTopicResponse(topic=topic_to_proto(made))

    monkeypatch.setattr(AdminConnection, "call", call)


@pytest.mark.parametrize(
    ("validate_only", "sentence"),
    [
        (False, "created without its schema.*delete the topic, upgrade the admin service, and create the topic again"),
        (True, "would be created without its schema.*upgrade the admin service first"),
    ],
)
async def test_a_typed_topic_that_an_older_admin_service_made_of_bytes_is_an_error(
    monkeypatch: pytest.MonkeyPatch, validate_only: bool, sentence: str
) -> None:
    """A topic never becomes typed later, so its producer must not find that out."""
    answer_with(monkeypatch, 0)
    admin = AdminClient(admin="127.0.0.1:1")
    with raises_code(ErrorCode.INVALID_REQUEST, sentence):
        await admin.create_topic("t", schema="a INT", validate_only=validate_only)
    assert (await admin.create_topic("t")).topic == "t"
    answer_with(monkeypatch, 1)
    assert (await admin.create_topic("t", schema="a INT")).schema_version == 1
