# SPDX-License-Identifier: Apache-2.0
"""What a consumer has its group remember, as requests (docs/groups.md, step G7)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from tidemark.client.group.settings import GroupSettings
from tidemark.model import TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb


class GroupPosition(NamedTuple):
    """How far a partition was read: the next offset, the leader epoch of the record before it (-1 if unknown), and
    which topic and incarnation that is (rule C7)."""

    partition: TopicPartition
    offset: int
    leader_epoch: int
    topic_id: str
    incarnation: str


class Commits:
    """The commits of one consumer, numbered: one that is long on its way undoes no later one.

    A member's heartbeats are numbered with them, so that it is known what it said and committed in an earlier life.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._committer_id = uuid.uuid4().hex
        self._sequences = itertools.count(1)

    def request(self, positions: Iterable[GroupPosition], member_id: str, member_epoch: int) -> pb.CommitOffsetsRequest:
        """The next commit, to be sent as often as need be; no member id: of one that chose its partitions by hand."""
        return pb.CommitOffsetsRequest(
            group_id=self._settings.group,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=self._settings.instance_id if member_id else "",
            offsets=commit_positions(positions),
            committer_id=self._committer_id,
            sequence=self.next_sequence(),
        )

    def next_sequence(self) -> int:
        """Of what is sent now; what is sent again keeps its own."""
        return next(self._sequences)


def commit_positions(positions: Iterable[tuple[TopicPartition, int, int, str, str]]) -> list[pb.OffsetCommit]:
    """As `GroupPosition` has them."""
    return [
        pb.OffsetCommit(
            topic=where.topic,
            partition=where.partition,
            offset=offset,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
            incarnation=incarnation,
        )
        for where, offset, leader_epoch, topic_id, incarnation in positions
    ]


def raise_refused(results: Iterable[pb.GroupPartitionResult]) -> None:
    """Raise what the first partition was refused with."""
    for result in results:
        if result.HasField("error"):
            raise errors.from_proto(result.error)
