# SPDX-License-Identifier: Apache-2.0
"""Topic settings that the controller sends to a broker."""

from __future__ import annotations

from tidemark.broker.node.topic_settings import TopicTable


def test_the_listener_gets_only_topics_whose_settings_changed() -> None:
    changes: list[frozenset[str]] = []
    table = TopicTable()
    table.listen(changes.append)
    table.update({"flights": {}, "orders": {"segment.ms": "5"}})
    table.update({"flights": {}, "orders": {"segment.ms": "5"}})
    table.update({"flights": {"max.message.bytes": "2048"}, "orders": {"segment.ms": "5"}})
    assert changes == [{"flights", "orders"}, {"flights"}]
    assert table.rules("flights").limits.max_message_bytes == 2048


def test_settings_that_do_not_parse_leave_the_defaults() -> None:
    table = TopicTable()
    table.update({"flights": {"max.message.bytes": "2048"}})
    table.update({"flights": {"max.message.bytes": "2048", "from.the.future": "1"}})
    assert table.rules("flights").limits.max_message_bytes == 1 << 20
