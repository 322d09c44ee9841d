# SPDX-License-Identifier: Apache-2.0
"""Offset commits of a consumer, as requests (docs/groups.md, step G7)."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tidemark.client.group.settings import GroupSettings
from tidemark.client.metadata.cluster import ON_ITS_WAY, TOPIC_PATIENCE_S
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb

_PAUSE_S: Final = 0.5


class OpenTransaction(NamedTuple):
    """The transaction in which offsets are committed (rule X17)."""

    transactional_id: str
    identity: ProducerIdentity


class GroupPosition(NamedTuple):
    """A position that a consumer commits in a partition.

    Attributes:
        partition: the partition.
        offset: offset of the next record to read.
        leader_epoch: leader epoch of the record before `offset`; -1 if unknown.
        topic_id: id of the topic that was read (rule C7).
        incarnation: incarnation of the partition that was read (rule C7).
    """

    partition: TopicPartition
    offset: int
    leader_epoch: int
    topic_id: str
    incarnation: str


class Commits:
    """Numbers the commits of one consumer, so that a delayed one does not overwrite a later one.

    The heartbeats of a member share the sequence, so that the coordinator can order heartbeats and commits.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._committer_id = uuid.uuid4().hex
        self._sequences = itertools.count(1)

    def request(
        self,
        positions: Iterable[GroupPosition],
        member_id: str,
        member_epoch: int,
        transaction: OpenTransaction | None = None,
    ) -> pb.CommitOffsetsRequest:
        """Make the next commit, which retries send unchanged; member id "": partitions were assigned by `assign`."""
        request = pb.CommitOffsetsRequest(
            group_id=self._settings.group,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=self._settings.instance_id if member_id else "",
            offsets=commit_positions(positions),
            committer_id=self._committer_id,
            sequence=self.next_sequence(),
        )
        if transaction is not None:
            request.transactional_id = transaction.transactional_id
            request.producer_id, request.producer_epoch = transaction.identity
        return request

    def next_sequence(self) -> int:
        """Return the next number; a retry keeps its number."""
        return next(self._sequences)


def commit_positions(positions: Iterable[tuple[TopicPartition, int, int, str, str]]) -> list[pb.OffsetCommit]:
    """Encode positions with the fields of `GroupPosition`."""
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


def refused_in(answer: Any) -> dict[TopicPartition, TidemarkError]:
    """Return the errors of the refused partitions of an answer."""
    return {
        TopicPartition(one.topic, one.partition): error
        for one in answer.partitions
        if (error := errors.error_in(one)) is not None
    }


class CommitPatience:
    """Decides after refused partitions whether a commit is retried: a coordinator may be the last broker to receive the
    metadata of a new topic.

    Args:
        deadline_s: end of the retries, of time.monotonic.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._known_by_s = time.monotonic() + TOPIC_PATIENCE_S

    async def is_to_be_retried(self, results: Iterable[pb.GroupPartitionResult]) -> bool:
        """Return True after a pause if a partition was refused and may be accepted later; False without a refusal.

        Raises:
            TidemarkError: the error of the first refused partition, if it is permanent, or at the deadline.
        """
        refusals = [error for result in results if (error := errors.error_in(result)) is not None]
        for error in refusals:
            until_s = (
                self._deadline_s if error.retriable else self._known_by_s if error.code in ON_ITS_WAY else -math.inf
            )
            if time.monotonic() + _PAUSE_S >= min(until_s, self._deadline_s):
                raise error
        if refusals:
            await asyncio.sleep(_PAUSE_S)
        return bool(refusals)
