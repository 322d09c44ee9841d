# SPDX-License-Identifier: Apache-2.0
"""A user loses a right while a query reads: the query fails, and continues at its offsets once the right is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tidemark.client import AdminClient, Producer, acls
from tidemark.core.security.visible_views import hidden_topic
from tidemark.errors import UnknownTopicError
from tidemark.local.cluster import LocalCluster
from tidemark.model import TidemarkError, unknown_topic
from tidemark_spark.topics import is_gone

from tests.integration.harness.waiting import wait_for
from tests.spark.harness.reading import batch_reader, needs_read_limits, next_end, places, planned, stream_reader
from tests.spark.harness.secure import WITH_TOKEN, with_token

MakeTopic = Callable[..., str]
MAY_NOT = "UNKNOWN_TOPIC: .*topic '.*' does not exist, or User:token:dev may not DESCRIBE it"


def options_of(cluster: LocalCluster, **more: str) -> dict[str, str]:
    return {**with_token(cluster), "startingOffsets": "earliest", "failOnDataLoss": "false", **more}


def append(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"v", partition=0).result(30)


class Right:
    """The right of the user with the token to see a topic; a rule denies it until the end of the test."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._taken: list[str] = []

    def take(self, topic: str) -> None:
        self._alter(topic, is_taken=True)

    def give_back(self, topic: str) -> None:
        self._alter(topic, is_taken=False)

    def give_all_back(self) -> None:
        for topic in tuple(self._taken):
            self.give_back(topic)

    def _alter(self, topic: str, *, is_taken: bool) -> None:
        allowed = acls.allow_rule(WITH_TOKEN, acls.Operation.DESCRIBE, acls.topic(topic))
        rule = allowed._replace(permission=acls.Permission.DENY)
        with AdminClient(self._cluster.admin_address) as admin:
            admin.alter_acls(**{"add" if is_taken else "remove": [rule]})
        (self._taken.append if is_taken else self._taken.remove)(topic)
        wait_for(lambda: all(self._is_hidden(one, topic) is is_taken for one in self._brokers()), "the rule")

    def _brokers(self) -> list[str]:
        return self._cluster.token_bootstrap.split(",")

    def _is_hidden(self, broker: str, topic: str) -> bool:
        found = batch_reader({**options_of(self._cluster, subscribePattern=f"{topic}.*"), "tidemark.bootstrap": broker})
        try:
            return not list(found.partitions())
        except UnknownTopicError:  # the rule came after the broker had listed the topic
            return True


@pytest.fixture
def right(cluster: LocalCluster) -> Iterator[Right]:
    made = Right(cluster)
    yield made
    made.give_all_back()


@needs_read_limits
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("chosen", ["subscribe", "subscribePattern"])
def test_a_query_that_lost_a_right_fails_and_later_continues_at_its_place(
    cluster: LocalCluster, topic: MakeTopic, right: Right, chosen: str
) -> None:
    kept, taken = topic(f"kept-{chosen}", partitions=1), topic(f"taken-{chosen}", partitions=1)
    for name in (kept, taken):
        append(cluster, name)
    names = {"subscribe": f"{kept},{taken}", "subscribePattern": f"(kept|taken)-{chosen}"}[chosen]
    options = options_of(cluster, **{chosen: names})
    start = next_end(stream_reader(options), stream_reader(options).initialOffset())
    right.take(taken)
    append(cluster, kept)
    with pytest.raises(TidemarkError, match=MAY_NOT):
        next_end(stream_reader(options), start)
    right.give_back(taken)
    reader = stream_reader(options)
    tasks, _ = planned(reader, start)
    assert places(reader, tasks) == [(kept, 0, 1)]


@pytest.mark.usefixtures("impatient")
def test_a_task_that_lost_a_right_fails_instead_of_skipping_its_rows(
    cluster: LocalCluster, topic: MakeTopic, right: Right
) -> None:
    name = topic("seen-no-more", partitions=1)
    append(cluster, name)
    reader = batch_reader(options_of(cluster, subscribe=name))
    tasks = reader.partitions()
    right.take(name)
    with pytest.raises(TidemarkError, match=MAY_NOT):
        places(reader, tasks)


def test_a_hidden_topic_is_not_gone() -> None:
    assert is_gone(unknown_topic("flights"))
    assert not is_gone(hidden_topic("User:a", "flights", "no rule allows it"))
