# SPDX-License-Identifier: Apache-2.0
"""Descriptions of log directories survive a round trip, in messages of a bounded size."""

from __future__ import annotations

import dataclasses

import pytest
from tidemark.model import ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
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


def test_a_message_of_replicas_with_the_longest_names_is_far_below_the_limit() -> None:
    messages = list(contents_to_proto((directory("a", replicas(10_001, LONGEST)),)))
    assert len(messages) > 1
    assert all(message.ByteSize() < SPLIT_BYTES for message in messages)
