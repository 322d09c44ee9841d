# SPDX-License-Identifier: Apache-2.0
"""Descriptions of log directories survive a round trip, in messages of a bounded size."""

from __future__ import annotations

import dataclasses

import pytest
from tidemark.broker.node.isr_history import CHANGES_MAX
from tidemark.core.isr_change_reasons import IsrChange
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc.channel import SPLIT_BYTES
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk, content_from_proto, contents_to_proto

LONGEST = "t" * 249


def replicas(count: int, topic: str = "flights") -> tuple[ReplicaOnDisk, ...]:
    big = Offset(1 << 50)
    return tuple(
        ReplicaOnDisk(
            TopicPartition(topic, index), ReplicaIdentity("a" * 32, "b" * 32), big, big, big, big, True, big, 1.5, True
        )
        for index in range(count)
    )


def directory(name: str, held: tuple[ReplicaOnDisk, ...], error: TidemarkError | None = None) -> LogDirectoryContent:
    return LogDirectoryContent(name, f"/data/{name}", 1000, 500, error, held)


@pytest.mark.parametrize("room", [1, 2, 3, 5, 100])
def test_directories_are_split_into_parts_without_loss(room: int) -> None:
    contents = (directory("a", replicas(5)), directory("b", ()), directory("c", replicas(3)), directory("d", ()))
    messages = list(contents_to_proto(contents, replicas_a_message=room))
    assert all(sum(len(one.replicas) for one in message.log_dirs) <= room for message in messages)
    merged: dict[str, tuple[ReplicaOnDisk, ...]] = {}
    for message in messages:
        for part in map(content_from_proto, message.log_dirs):
            merged[part.directory_id] = merged.get(part.directory_id, ()) + part.replicas
    assert merged == {one.directory_id: one.replicas for one in contents}


def test_an_offline_directory_has_its_error() -> None:
    offline = directory("a", (), TidemarkError(ErrorCode.STORAGE_ERROR, "input/output error"))
    (message,) = contents_to_proto((offline,))
    found = content_from_proto(message.log_dirs[0])
    assert found.error is not None
    assert (found.error.code, found.error.message) == (ErrorCode.STORAGE_ERROR, "input/output error")
    assert (found.directory_id, found.path, found.total_bytes, found.free_bytes) == ("a", "/data/a", 1000, 500)


def test_a_copy_of_a_log_directory_move_is_marked() -> None:
    (replica,) = replicas(1)
    (message,) = contents_to_proto((directory("a", (replica, dataclasses.replace(replica, future=True))),))
    found = content_from_proto(message.log_dirs[0])
    assert [one.future for one in found.replicas] == [False, True]


def changed(replica: ReplicaOnDisk, count: int) -> ReplicaOnDisk:
    isr, left = (BrokerId(1000), BrokerId(1001)), ((BrokerId(1002), "replica_failed"),)
    change = IsrChange(1 << 41, LeaderEpoch(1 << 20), 1 << 20, isr, left)
    return dataclasses.replace(replica, isr_changes=(change,) * count)


def test_isr_changes_of_a_replica_survive_and_an_older_broker_states_none() -> None:
    (replica,) = replicas(1)
    (message,) = contents_to_proto((directory("a", (replica, changed(replica, 2))),))
    before, after = content_from_proto(message.log_dirs[0]).replicas
    assert before.isr_changes == ()
    assert after == changed(replica, 2)
    (change, _) = after.isr_changes
    assert (change.left, change.joined) == (((1002, "replica_failed"),), ())


def test_a_message_of_replicas_with_isr_changes_is_far_below_the_limit() -> None:
    many = tuple(changed(one, CHANGES_MAX) for one in replicas(2_001, LONGEST))
    messages = list(contents_to_proto((directory("a", many),)))
    assert all(message.ByteSize() < SPLIT_BYTES for message in messages)


def test_a_message_of_replicas_with_the_longest_names_is_far_below_the_limit() -> None:
    messages = list(contents_to_proto((directory("a", replicas(10_001, LONGEST)),)))
    assert len(messages) > 1
    assert all(message.ByteSize() < SPLIT_BYTES for message in messages)
