# SPDX-License-Identifier: Apache-2.0
"""Offsets that clients commit, checked against the existing topics (rule C7), and the lag of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidemark.broker.groups.coordinators import GroupCoordinators
from tidemark.broker.groups.partition_ends import Ends, PartitionEnds
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.groups.group import Group
from tidemark.core.groups.offsets import is_young
from tidemark.core.groups.state import Committed, GroupPartition
from tidemark.core.pending_writes import Writer
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.runtime.slices import InSlices
from tidemark.v1 import group_service_pb2 as pb

_TOPIC_WAIT_S = 1.0

PendingOffsets = Mapping[TopicPartition, Sequence[tuple[Writer, Committed]]]
"""The offsets of open transactions, by partition."""
_NONE_PENDING: PendingOffsets = {}


class GroupOffsets:
    """Translates between the messages of clients and committed offsets."""

    def __init__(self, groups: GroupCoordinators, ends: PartitionEnds) -> None:
        self._groups = groups
        self._ends = ends

    async def resolve(
        self, commits: Iterable[pb.OffsetCommit]
    ) -> tuple[dict[TopicPartition, Committed], dict[TopicPartition, TidemarkError]]:
        """The offsets to commit, and the refused partitions.

        A client may know a new topic before this broker does, so this broker waits for unknown topics.
        """
        commits = tuple(commits)
        names = {one.topic for one in commits}
        metadata = self._groups.metadata
        await self._groups.wait_for(lambda view: names <= view.topics.keys(), _TOPIC_WAIT_S)
        now_ms = self._groups.situation().wall_ms
        asked: dict[TopicPartition, Committed] = {}
        refused: dict[TopicPartition, TidemarkError] = {}
        async for one in InSlices(commits):
            partition = TopicPartition(one.topic, one.partition)
            topic = metadata.view.topics.get(one.topic)
            if topic is None:
                refused[partition] = metadata.unknown(one.topic)
                continue
            known = topic.partitions.get(one.partition)
            if known is None:
                refused[partition] = metadata.unknown_partition(partition)
                continue
            if one.topic_id not in ("", topic.topic_id) or one.incarnation not in ("", known.incarnation):
                refused[partition] = _recreated(partition, topic, known)
                continue
            # Absent from clients in other languages that do not know the epoch: 0 would be a statement.
            epoch = one.leader_epoch if one.HasField("leader_epoch") else NO_EPOCH
            asked[partition] = Committed(one.offset, epoch, one.metadata, topic.topic_id, known.incarnation, now_ms)
        return asked, refused

    def fetched(self, partition: TopicPartition, committed: Committed | None) -> pb.CommittedOffset:
        """Like `to_proto`, for a client that compares topic id and incarnation with those that it reads.

        A recent offset counts even if this broker does not know the partition: a coordinator that was just elected may
        not know a partition whose offset the coordinator before it has accepted. Without the offset, a consumer would
        skip records or read them again.
        """
        return self.to_proto(
            partition, committed, counts=committed is not None and self._is_unheard(partition, committed)
        )

    def to_proto(
        self, partition: TopicPartition, committed: Committed | None, *, counts: bool = False
    ) -> pb.CommittedOffset:
        """The committed offset of a partition; none if the offset was committed for another incarnation, unless it
        `counts`."""
        if committed is None or not (counts or self.is_current(partition, committed)):
            return pb.CommittedOffset(
                topic=partition.topic, partition=partition.partition, offset=-1, leader_epoch=-1, committed_at_ms=-1
            )
        return pb.CommittedOffset(
            topic=partition.topic,
            partition=partition.partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            topic_id=committed.topic_id,
            incarnation=committed.incarnation,
            committed_at_ms=committed.committed_at_ms,
        )

    def rows(self, group: Group, pending: PendingOffsets = _NONE_PENDING) -> list[pb.GroupPartition]:
        """The progress of the group in every partition that it reads, without the high watermark."""
        owners: dict[TopicPartition, str] = {}
        for member_id in group.members:
            for one in group.current(member_id).held:
                if self._is_known(one):
                    owners[TopicPartition(one.topic, one.partition)] = member_id
        rows = []
        for partition in sorted(owners.keys() | self._read_by(group) | pending.keys()):
            committed = self.to_proto(partition, group.offsets.get(partition))
            topic = self._groups.metadata.view.topics.get(partition.topic)
            known = None if topic is None else topic.partitions.get(partition.partition)
            rows.append(
                pb.GroupPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    member_id=owners.get(partition, ""),
                    committed_offset=committed.offset,
                    leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    committed_at_ms=committed.committed_at_ms,
                    high_watermark=-1,
                    log_start_offset=-1,
                    lag=-1,
                    topic_id="" if topic is None or known is None else topic.topic_id,
                    incarnation="" if known is None else known.incarnation,
                    pending=[
                        pb.PendingOffset(offset=one.offset, producer_id=writer[0], producer_epoch=writer[1])
                        for writer, one in pending.get(partition, ())
                    ],
                )
            )
        return rows

    def progress(self, group: Group) -> Iterator[tuple[TopicPartition, int]]:
        """Every partition that the group reads, with its committed offset; -1: none."""
        for partition in self._read_by(group):
            yield partition, self.to_proto(partition, group.offsets.get(partition)).offset

    def _read_by(self, group: Group) -> set[TopicPartition]:
        """Partitions with an offset, and all others of topics with an offset or with a subscription of a member.

        A partition without an offset counts: its records wait for the group, even if no member is assigned to the
        partition.
        """
        committed = {partition for partition, one in group.offsets.items() if self.is_current(partition, one)}
        known = self._groups.metadata.view.topics
        names = {*group.subscribed_topics, *(partition.topic for partition in committed)} & known.keys()
        return committed | {TopicPartition(name, index) for name in names for index in known[name].partitions}

    async def add_lag(self, groups: Iterable[pb.GroupDescription]) -> None:
        """Fetch high watermarks and fill in the lag."""
        rows = [row for group in groups for row in group.partitions]
        found = await self._ends.ask({TopicPartition(row.topic, row.partition) for row in rows})
        async for row in InSlices(rows):
            fill_in_lag(row, found)

    def is_current(self, partition: TopicPartition, committed: Committed) -> bool:
        """Whether an offset counts: false if this broker knows another incarnation of the partition (rule C7)."""
        view = self._groups.metadata.view
        topic = view.topics.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or known is None:
            return not view.complete or partition.topic in view.hidden_topics
        same_topic = topic.topic_id == committed.topic_id
        return same_topic and known.incarnation == committed.incarnation

    def _is_unheard(self, partition: TopicPartition, committed: Committed) -> bool:
        topic = self._groups.metadata.view.topics.get(partition.topic)
        is_known = topic is not None and (
            partition.partition in topic.partitions or topic.topic_id != committed.topic_id
        )
        return not is_known and is_young(committed, self._groups.situation().wall_ms)

    def _is_known(self, partition: GroupPartition) -> bool:
        topic = self._groups.metadata.view.topics.get(partition.topic)
        return topic is not None and topic.topic_id == partition.topic_id


def fill_in_lag(row: pb.GroupPartition, found: Mapping[TopicPartition, Ends | TidemarkError]) -> None:
    """Fill in the lag of a row; its committed offset was read before the ends were fetched."""
    ends = found[TopicPartition(row.topic, row.partition)]
    if isinstance(ends, TidemarkError):
        row.error.CopyFrom(errors.to_proto(ends))
        return
    row.high_watermark, row.log_start_offset = ends.high_watermark, ends.log_start_offset
    if row.committed_offset > ends.high_watermark:
        row.lag = 0
        sentence = (
            f"the group has read up to {row.committed_offset}, and the log ends at {ends.high_watermark}: an unclean "
            "election lost records, or the offset was set too high; reset the group's offsets"
        )
        row.error.CopyFrom(errors.to_proto(TidemarkError(ErrorCode.LOG_TRUNCATED, sentence)))
        return
    row.lag = ends.high_watermark - max(row.committed_offset, ends.log_start_offset)


def _recreated(partition: TopicPartition, topic: TopicView, known: PartitionView) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_TOPIC_ID,
        f"{partition} was deleted and recreated since it was read: its old offsets are invalid",
        {"topic_id": topic.topic_id, "incarnation": known.incarnation},
    )
