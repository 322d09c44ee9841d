# SPDX-License-Identifier: Apache-2.0
"""Topic settings and schemas that the controller sends to a broker."""

from __future__ import annotations

import pytest
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.messages import NewSchemas
from tidemark.core.schemas.model import Column, Primitive, TopicSchema
from tidemark.core.schemas.text import to_text


def test_the_listener_gets_only_topics_whose_settings_changed() -> None:
    changes: list[frozenset[str]] = []
    table = TopicTable()
    table.listen(changes.append)
    table.update({"flights": {}, "orders": {"segment.ms": "5"}})
    table.update({"flights": {}, "orders": {"segment.ms": "5"}})
    table.update({"flights": {"max.message.bytes": "2048"}, "orders": {"segment.ms": "5"}})
    assert changes == [{"flights", "orders"}, {"flights"}]
    assert table.rules("flights").limits.max_message_bytes == 2048


def test_a_setting_that_does_not_parse_leaves_the_other_settings_in_effect(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise retention would delete records of a topic with unlimited retention that is not compacted any more."""
    table = TopicTable()
    kept = {"retention.ms": "-1", "cleanup.policy": "compact"}
    table.update({"flights": {**kept, "segment.ms": "a week", "from.the.future": "1"}})
    settings = table.rules("flights").settings
    assert (settings.retention_ms, settings.cleanup_policy) == (-1, "compact")
    assert settings.segment_ms == TopicTable().rules("flights").settings.segment_ms
    assert table.configs("flights") == kept
    assert ["segment.ms" in vars(one)["why"] for one in caplog.records] == [True, False]


def schema_text(version: int) -> str:
    column = Column(1, "carrier", Primitive.STRING)
    return to_text(TopicSchema(version, (column,), (), None, 1))


def test_versions_of_a_schema_add_up_and_another_topic_of_the_name_begins_with_none() -> None:
    table = TopicTable()
    assert table.schemas("flights") == {}
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {1: schema_text(1)})})
    first = table.schemas("flights")
    table.update_schemas({"flights": "id-1", "bytes": "id-9"}, {})
    assert table.schemas("flights") is first
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {2: schema_text(2)})})
    assert {version: schema.version for version, schema in table.schemas("flights").items()} == {1: 1, 2: 2}
    assert table.schemas("bytes") == {}
    table.update_schemas({"flights": "id-2"}, {})
    assert table.schemas("flights") == {}
    table.update_schemas({"flights": "id-3"}, {"flights": NewSchemas("id-3", {1: schema_text(1)})})
    assert set(table.schemas("flights")) == {1}
    assert table.schema_texts("flights").topic_id == "id-3"


def test_a_version_that_does_not_parse_is_logged_once_and_the_others_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = TopicTable()
    texts = {1: schema_text(1), 2: "", 3: '{"version":3,"from":"the future"}'}
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", texts)})
    for _ in range(2):
        assert set(table.schemas("flights")) == {1}
    assert [vars(record)["version"] for record in caplog.records] == [2, 3]


def test_a_new_version_leaves_the_others_parsed() -> None:
    table = TopicTable()
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {1: schema_text(1), 2: ""})})
    first = table.schemas("flights")[1]
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {3: schema_text(3)})})
    table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {2: schema_text(2)})})
    assert table.schemas("flights")[1] is first
    assert set(table.schemas("flights")) == {1, 2, 3}
    table.update_schemas({}, {"flights": NewSchemas("id-2", {1: schema_text(1)})})
    assert set(table.schemas("flights")) == {1}
    assert table.schemas("flights")[1] is not first


def test_the_deletion_of_a_topic_leaves_the_settings_of_a_newer_topic_of_its_name() -> None:
    topics = TopicTable()
    topics.update({"orders": {"flush.policy": "group-commit"}})
    topics.update_schemas({"orders": "newer"}, {})
    topics.forget({"orders": "older"})
    assert topics.configs("orders") == {"flush.policy": "group-commit"}
    topics.forget({"orders": "newer"})
    assert topics.configs("orders") == {}
