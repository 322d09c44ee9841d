# SPDX-License-Identifier: Apache-2.0
"""Metadata updates are merged (rule K2): late updates, old controllers and recreated topics do not replace newer
metadata.
"""

from __future__ import annotations

import random

import pytest
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, apply, merge_topic
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, LeaderEpoch


def partition(index: int, leader: int, epoch: int, version: int = 0, incarnation: str = "first") -> PartitionView:
    return PartitionView(
        index,
        BrokerId(leader),
        LeaderEpoch(epoch),
        (BrokerId(0), BrokerId(1)),
        (),
        incarnation,
        partition_epoch=version,
    )


def topic(*partitions: PartitionView, topic_id: str = "a", created: int = 1, modified: int = 1) -> TopicView:
    return TopicView("t", topic_id, created, modified, {one.partition: one for one in partitions})


def told(*topics: TopicView, epoch: int = 1, complete: bool = False, deleted: tuple[str, ...] = ()) -> ClusterView:
    return ClusterView(
        "cluster",
        BrokerId(100 + epoch),
        ControllerEpoch(epoch),
        brokers={BrokerId(epoch): BrokerRegistration(BrokerId(epoch), "host", 1)},
        topics={one.topic: one for one in topics},
        deleted_topics=deleted,
        complete=complete,
    )


def leaders(view: ClusterView) -> dict[int, int]:
    return {index: one.leader for index, one in view.topics["t"].partitions.items()}


def test_a_change_replaces_only_the_partitions_it_names() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 0, 0), partition(1, 1, 0)), complete=True))
    view = apply(view, told(topic(partition(1, 0, 1))))
    assert leaders(view) == {0: 0, 1: 0}
    assert view.complete


def test_an_older_epoch_and_an_older_version_of_the_same_epoch_change_nothing() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5, version=9)), complete=True))
    assert leaders(apply(view, told(topic(partition(0, 0, 4, version=10))))) == {0: 1}
    assert leaders(apply(view, told(topic(partition(0, 0, 5, version=8))))) == {0: 1}


def test_a_recreated_topic_replaces_the_old_one_though_its_epochs_are_lower() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5), partition(1, 1, 5)), complete=True))
    view = apply(view, told(topic(partition(0, 0, 0), topic_id="b", created=7, modified=7)))
    assert view.topics["t"].topic_id == "b"
    assert leaders(view) == {0: 0}


def test_a_late_update_of_a_recreated_topic_changes_nothing() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 0, 0), topic_id="b", created=7, modified=7), complete=True))
    view = apply(view, told(topic(partition(0, 1, 5))))
    assert view.topics["t"].topic_id == "b"
    assert leaders(view) == {0: 0}


def test_epochs_are_not_compared_between_incarnations_of_a_partition() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5)), complete=True))
    view = apply(view, told(topic(partition(0, 0, 0, incarnation="second"), modified=2)))
    assert leaders(view) == {0: 0}


def test_updates_of_a_replaced_controller_are_ignored() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5)), epoch=2, complete=True))
    after = apply(view, told(topic(partition(0, 0, 6)), epoch=1, complete=True, deleted=("t",)))
    assert after is view


def test_a_topic_deleted_and_created_again_in_one_change_stays() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5)), complete=True))
    assert apply(view, told(deleted=("t",))).topics == {}
    anew = topic(partition(0, 0, 0), topic_id="b", created=7, modified=7)
    assert apply(view, told(anew, deleted=("t",))).topics["t"].topic_id == "b"


def test_a_complete_view_drops_the_topics_it_does_not_name_and_brokers_are_always_whole() -> None:
    view = apply(ClusterView(), told(topic(partition(0, 1, 5)), complete=True))
    view = apply(view, told(epoch=2, complete=True))
    assert view.topics == {}
    assert set(view.brokers) == {2}


@pytest.mark.parametrize("seed", range(20))
def test_changes_of_one_topic_end_the_same_in_any_order_and_twice(seed: int) -> None:
    changes = [
        told(topic(partition(index % 3, epoch % 2, epoch, version=epoch))) for index in range(3) for epoch in range(4)
    ]
    shuffled = [*changes, *changes]
    random.Random(seed).shuffle(shuffled)
    view = ClusterView()
    for change in shuffled:
        view = apply(view, change)
    assert {index: one.leader_epoch for index, one in view.topics["t"].partitions.items()} == {0: 3, 1: 3, 2: 3}


def test_an_older_view_takes_back_no_version_of_a_schema() -> None:
    known = TopicView("t", "id", 1, 5, schema_version=3)
    for update, expected in (
        (TopicView("t", "id", 1, 5, schema_version=2), 3),
        (TopicView("t", "id", 1, 9, schema_version=2), 3),
        (TopicView("t", "id", 1, 4, schema_version=4), 4),
        (TopicView("t", "other", 2, 9, schema_version=1), 1),
        (TopicView("t", "older", 0, 9, schema_version=7), 3),
    ):
        assert merge_topic(known, update).schema_version == expected
