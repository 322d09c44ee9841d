# SPDX-License-Identifier: Apache-2.0
"""Records of a deleted topic fail after the topic was missing for 2 s without interruption."""

from __future__ import annotations

from typing import Any

from tidemark.client.producing.deleted_topics import DeletedTopics
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.errors import unknown_topic
from tidemark.model import ErrorCode, TopicPartition

T0 = TopicPartition("t", 0)


class Missing:
    """A cluster without the topic."""

    view = ClusterView(topics={"t": TopicView("t", "", error=unknown_topic("t"))})

    def topic_now(self, topic: str) -> None:
        assert topic == "t"


def test_records_that_wait_later_do_not_fail_for_an_earlier_absence() -> None:
    cluster: Any = Missing()
    topics = DeletedTopics(cluster)
    assert topics.verdict(T0, "id", 100.0) is None
    topics.keep(())
    assert topics.verdict(T0, "id", 160.0) is None
    topics.keep((T0,))
    error = topics.verdict(T0, "id", 163.0)
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC
