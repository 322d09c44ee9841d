# SPDX-License-Identifier: Apache-2.0
"""The last ISR changes of each partition at a broker."""

from __future__ import annotations

import pytest
from tidemark.broker.node import isr_history
from tidemark.broker.node.isr_history import CHANGES_MAX, IsrHistory
from tidemark.core.isr_change_reasons import IsrChange, merged
from tidemark.core.replication.effects import Observed
from tidemark.model import BrokerId, LeaderEpoch, ReplicaIdentity, TopicPartition

P = TopicPartition("flights", 0)
ID = ReplicaIdentity("t", "i")


def change(partition_epoch: int, partition: TopicPartition = P, incarnation: str = "i") -> Observed:
    fields: dict[str, str | int] = {
        "isr": "1,2",
        "reasons": "2:caught_up,3:lagging",
        "leader_epoch": 5,
        "partition_epoch": partition_epoch,
        "incarnation": incarnation,
    }
    return Observed("isr_changed", partition, fields)


def test_a_change_has_its_time_its_replicas_and_the_isr_after_it() -> None:
    history = IsrHistory(lambda: 7_000_900)
    history.observe(change(4))
    (found,) = history.of(P, ID)
    assert found == IsrChange(
        7_000, LeaderEpoch(5), 4, (BrokerId(1), BrokerId(2)), ((BrokerId(2), "caught_up"), (BrokerId(3), "lagging"))
    )
    assert (found.joined, found.left) == (((2, "caught_up"),), ((3, "lagging"),))


def test_the_oldest_changes_of_a_partition_go_first() -> None:
    history = IsrHistory(lambda: 0)
    for epoch in range(CHANGES_MAX + 5):
        history.observe(change(epoch))
    assert [one.partition_epoch for one in history.of(P, ID)] == list(range(5, CHANGES_MAX + 5))


def test_a_partition_without_a_change_and_a_recreated_one_have_none() -> None:
    history = IsrHistory(lambda: 0)
    history.observe(Observed("became_leader", P, {"leader_epoch": 1}))
    assert history.of(P, ID) == ()
    history.observe(change(1))
    assert history.of(P, ReplicaIdentity("t", "another")) == ()


def test_the_number_of_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_history, "PARTITIONS_MAX", 2)
    history = IsrHistory(lambda: 0)
    others = [TopicPartition("flights", index) for index in range(3)]
    for epoch, partition in enumerate((others[0], others[1], others[0], others[2])):
        history.observe(change(epoch, partition))
    assert [len(history.of(one, ID)) for one in others] == [2, 0, 1], "the one without a change for the longest time"


def test_changes_of_several_leaders_are_merged_by_the_version_of_the_node() -> None:
    old, new = IsrHistory(lambda: 9_000), IsrHistory(lambda: 5_000)
    for epoch in (1, 2):
        old.observe(change(epoch))
    for epoch in (2, 3):
        new.observe(change(epoch))
    assert [one.partition_epoch for one in merged([*old.of(P, ID), *new.of(P, ID)])] == [3, 2, 1]
