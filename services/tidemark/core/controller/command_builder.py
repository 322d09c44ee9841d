# SPDX-License-Identifier: Apache-2.0
"""Composes what one broker is told: LeaderAndIsr, StopReplica and UpdateMetadata, from what has been written (C1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import count
from typing import Final

from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import (
    ControllerEffect,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
)
from tidemark.core.controller.partition_state import PartitionRecord
from tidemark.core.controller.pending_commands import BrokerLink, FirstView, Topics
from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand, StopReplicaCommand
from tidemark.model import (
    BrokerId,
    TopicPartition,
)

PART_PARTITIONS_MAX: Final = 2_000
"""Partitions in one message: about 400 KiB, far below what a message may have, and 20 ms of whoever writes or reads it.
"""
TOLD_AT_ONCE: Final = 1_000
"""After so many partitions the other brokers wait until others have had their turn."""
_NUMBERS_BITS: Final = 20
"""Of a command's sequence: above them is the time, so that a term that is taken up again (its end was not noted in
ZooKeeper) does not number anew."""
METADATA_PARTITIONS_MAX: Final = 1_000
"""10 ms of whoever reads it; under half of the limit even where each is a topic of its own with the longest name."""


class ControllerTeller:
    """Reads what the core knows; changes only the links."""

    def __init__(self, ctx: ControllerContext, deleting: Container[str]) -> None:
        self._ctx = ctx
        self._deleting = deleting
        self._ids = count(1)
        self._first_view: FirstView | None = None
        self._commands = 0
        self._changes: dict[frozenset[TopicPartition], Topics] = {}

    def tell_all(self, now_ms: int) -> list[ControllerEffect]:
        """What may go to every broker now, but not very much at once. What is shown to several is made once."""
        self._changes = {}
        self._commands = 0
        effects = []
        for broker, link in self._ctx.links.items():
            effects += self.tell(broker, link, now_ms)
            if self._commands > TOLD_AT_ONCE:
                break
        self._changes = {}
        return effects

    @property
    def has_more(self) -> bool:
        """Whether it stopped short of the last broker, after much for others."""
        return self._commands > TOLD_AT_ONCE

    def tell(self, broker: BrokerId, link: BrokerLink, now_ms: int) -> list[ControllerEffect]:
        """What may go to this broker now."""
        effects: list[ControllerEffect] = []
        if link.leadership.is_free(now_ms) and (link.needs_all_leadership or link.partitions or link.suspects_changed):
            effects += self._leadership(broker, link, now_ms)
        if link.stops.is_free(now_ms) and link.stopping and link.leadership.request_id is None:
            # Never side by side: a LeaderAndIsr that is overtaken would bring the replica back.
            effects.append(self._stops(broker, link, now_ms))
        if link.metadata.is_free(now_ms) and (
            link.needs_all_metadata or link.first_view or link.shown or link.gone_topics or link.brokers_changed
        ):
            effects.append(self._metadata(broker, link, now_ms))
        return effects

    def _leadership(self, broker: BrokerId, link: BrokerLink, now_ms: int) -> list[ControllerEffect]:
        if link.needs_all_leadership and self._ctx.undecided:
            return []  # what is being decided is told with the rest, in a moment
        wanted = self._ctx.on_broker[broker] if link.needs_all_leadership else link.partitions
        records = [
            record
            for partition in wanted
            if (record := self._ctx.records.get(partition)) is not None
            and partition.topic not in self._deleting
            and broker in record.assigned  # no more, where what is told again was told before a move
        ]
        if link.needs_all_leadership and any(record.writing or record.doubtful for record in records):
            return []  # as above
        complete = link.needs_all_leadership and self._ctx.knows_everything()
        commands = tuple(self._command(record, broker) for record in records if record.state is not None)
        parts = [
            commands[start : start + PART_PARTITIONS_MAX]
            for start in range(0, max(len(commands), 1), PART_PARTITIONS_MAX)
        ]
        self._commands += len(commands)
        request_id = next(self._ids)
        link.leadership.request_id = request_id
        link.sent_all_leadership = link.needs_all_leadership
        link.sent_partitions = frozenset(command.partition for command in commands)
        effect = SendLeaderAndIsr(
            broker,
            request_id,
            tuple(
                LeaderAndIsrCommand(
                    controller_id=self._ctx.config.controller_id,
                    controller_epoch=self._ctx.config.controller_epoch,
                    broker_epoch=link.broker_epoch,
                    partitions=part,
                    brokers=tuple(self._ctx.brokers.values()),
                    suspected=self._ctx.unwanted,
                    complete=complete and index == len(parts) - 1,
                    part=index,
                    sequence=_sequence(now_ms, request_id),
                    topic_configs={
                        name: self._ctx.topics[name].configs for name in {command.partition.topic for command in part}
                    },
                )
                for index, part in enumerate(parts)
            ),
        )
        link.needs_all_leadership = link.suspects_changed = False
        link.partitions = set()
        return [effect]

    def _command(self, record: PartitionRecord, broker: BrokerId) -> PartitionCommand:
        assert record.state is not None
        topic = self._ctx.topics[record.partition.topic]
        return PartitionCommand(
            partition=record.partition,
            identity=record.identity,
            assigned_replicas=record.assigned,
            state=record.state,
            partition_epoch=record.version,
            adding_replicas=topic.adding.get(record.partition.partition, ()),
            removing_replicas=topic.removing.get(record.partition.partition, ()),
            throttle_bytes_per_s=record.throttle_bytes_per_s,
            log_dir=record.log_dirs.get(broker, ""),
        )

    def _stops(self, broker: BrokerId, link: BrokerLink, now_ms: int) -> ControllerEffect:
        request_id = next(self._ids)
        link.stops.request_id = request_id
        replicas = tuple(link.stopping.values())[:PART_PARTITIONS_MAX]
        link.sent_stops = frozenset(replica.partition for replica in replicas)
        command = StopReplicaCommand(
            self._ctx.config.controller_id,
            self._ctx.config.controller_epoch,
            link.broker_epoch,
            replicas,
            _sequence(now_ms, request_id),
        )
        return SendStopReplica(broker, request_id, command)

    def _metadata(self, broker: BrokerId, link: BrokerLink, now_ms: int) -> ControllerEffect:
        """Everything at first, in parts where it is much; then what changed, also since the first part.

        A topic that goes meanwhile is told of afterwards: parts that were made before still name it.
        """
        if link.needs_all_metadata:
            link.first_view, link.first_at = self._begin_first_view(), 0
            link.shown, link.gone_topics = set(), set()
        in_parts, part = link.first_view is not None, link.first_at // METADATA_PARTITIONS_MAX
        request_id = next(self._ids)
        link.metadata.request_id = request_id
        link.sent_all_metadata = in_parts
        link.needs_all_metadata = link.brokers_changed = False
        link.sent_gone = frozenset()
        if not in_parts:
            link.sent_gone, link.gone_topics = frozenset(link.gone_topics), set()
        topics = self._next_of_first_view(link) if link.first_view is not None else self._changed(link)
        config = self._ctx.config
        view = ClusterView(
            cluster_id=config.cluster_id,
            controller_id=config.controller_id,
            controller_epoch=config.controller_epoch,
            brokers=dict(self._ctx.brokers),
            topics=topics,
            deleted_topics=tuple(sorted(link.sent_gone)),
            complete=in_parts and part == 0,
            part=part if in_parts else 0,
            more_parts=link.first_view is not None,
            hidden_topics=self._ctx.hidden_topics(),
            sequence=_sequence(now_ms, request_id),
        )
        return SendUpdateMetadata(broker, request_id, link.broker_epoch, view)

    def _begin_first_view(self) -> FirstView:
        """Shared by all who begin while nothing changes; what changes later each of them is told besides."""
        version = self._ctx.shown_version
        if self._first_view is None or self._first_view.version != version:
            self._first_view = FirstView(tuple(self._ctx.records), version)
        return self._first_view

    def _next_of_first_view(self, link: BrokerLink) -> Topics:
        assert link.first_view is not None
        first, at = link.first_view, link.first_at
        link.first_at = at + METADATA_PARTITIONS_MAX
        link.sent_shown = first.partitions[at : link.first_at]
        if link.first_at >= len(first.partitions):
            link.first_view = None
        topics = first.parts.get(at)
        if topics is None:
            topics = first.parts[at] = self._topic_views(link.sent_shown)
        if not any(one.first_view for one in self._ctx.links.values()):
            self._first_view = None
        return topics

    def _changed(self, link: BrokerLink) -> Topics:
        wanted = list(link.shown)
        now = frozenset(wanted[:METADATA_PARTITIONS_MAX])
        link.sent_shown = now
        link.shown = set(wanted[METADATA_PARTITIONS_MAX:])
        topics = self._changes.get(now)
        if topics is None:
            topics = self._changes[now] = self._topic_views(now)
        return topics

    def _topic_views(self, partitions: Iterable[TopicPartition]) -> Topics:
        by_topic: defaultdict[str, dict[int, PartitionView]] = defaultdict(dict)
        for partition in partitions:
            record = self._ctx.records.get(partition)
            if record is not None and record.state is not None:
                by_topic[partition.topic][partition.partition] = _view(record)
        return {
            name: TopicView(
                topic=name,
                topic_id=topic.topic_id,
                created_zxid=topic.created_zxid,
                modified_zxid=topic.modified_zxid,
                partitions=views,
                configs=topic.configs,
                partition_count=len(topic.partitions),
            )
            for name, views in by_topic.items()
            if (topic := self._ctx.topics.get(name)) is not None
        }


def _sequence(now_ms: int, request_id: int) -> int:
    return (now_ms << _NUMBERS_BITS) + request_id


def _view(record: PartitionRecord) -> PartitionView:
    assert record.state is not None
    return PartitionView(
        partition=record.partition.partition,
        leader=record.state.leader,
        leader_epoch=record.state.leader_epoch,
        assigned_replicas=record.assigned,
        in_sync_replicas=record.state.isr_ids,
        incarnation=record.identity.incarnation,
        lineage=record.state.lineage,
        eligible_leader_replicas=tuple(entry.broker_id for entry in record.state.elr),
        partition_epoch=record.version,
    )
