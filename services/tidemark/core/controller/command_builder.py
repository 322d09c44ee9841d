# SPDX-License-Identifier: Apache-2.0
"""Builds each broker's LeaderAndIsr, StopReplica and UpdateMetadata from states that have been written to ZooKeeper
(C1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import ControllerEffect, SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.controller.pending_commands import KnownSchema, MetadataSnapshot, PendingCommands, Topics
from tidemark.core.messages import LeaderAndIsrCommand, NewSchemas, PartitionCommand, StopReplicaCommand
from tidemark.model import BrokerId, LeaderAndIsr, TopicDescription, TopicPartition

PART_PARTITIONS_MAX: Final = 2_000
"""Partitions in one message: about 400 KiB, far below the message limit, and 20 ms to encode or decode."""
PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions in the commands of one call; the remaining brokers get theirs in the next call, after other events."""
_REQUEST_ID_BITS: Final = 20
"""Low bits of a command's sequence. The high bits are the time, so sequences also rise if a term is resumed because its
end was not written to ZooKeeper."""
METADATA_PARTITIONS_MAX: Final = 1_000
"""Partitions in one UpdateMetadata: 10 ms to decode, under half of the message limit with the longest topic names."""
VIEWS_KEPT_MAX: Final = 8_000
"""Partitions whose metadata is kept for the brokers that have not received it yet, at most."""
SCHEMA_CHARACTERS_MAX: Final = 2 << 20
"""Characters of schemas in one message: with 2,000 partitions below the message limit, even at four bytes each."""


_UNKNOWN_SCHEMA: Final = KnownSchema("", 0, frozenset())
_Schemas = Mapping[str, NewSchemas]
_Part = tuple[tuple[PartitionCommand, ...], _Schemas]


class CommandBuilder:
    """Reads the controller's state; changes `PendingCommands` only.

    Attributes:
        _deleting: topics that are being deleted; no LeaderAndIsr names them.
        _ids: request ids, for all brokers.
        _snapshot: the last metadata snapshot, for further brokers that begin while its version is the present one.
        _partitions_built: named by commands of the present or last call of `build_all`.
        _kept: by partition, its last metadata, and the state, version and replicas that it shows.
        _views: metadata of the partitions built in this call; shared by the brokers that get the same partitions.
    """

    def __init__(self, ctx: ControllerContext, deleting: Container[str]) -> None:
        self._ctx = ctx
        self._deleting = deleting
        self._ids = count(1)
        self._snapshot: MetadataSnapshot | None = None
        self._partitions_built = 0
        self._kept: dict[TopicPartition, tuple[LeaderAndIsr, int, tuple[BrokerId, ...], PartitionView]] = {}
        self._views: dict[frozenset[TopicPartition], Topics] = {}

    def build_all(self, now_ms: int) -> list[ControllerEffect]:
        """Commands that can be sent now, for up to about `PARTITIONS_AT_ONCE` partitions."""
        self._views = {}
        self._partitions_built = 0
        effects = []
        for broker, pending in self._ctx.commands.items():
            effects += self.build(broker, pending, now_ms)
            if self._partitions_built > PARTITIONS_AT_ONCE:
                break
        self._views = {}
        return effects

    @property
    def has_more(self) -> bool:
        """Whether the last call stopped before the last broker."""
        return self._partitions_built > PARTITIONS_AT_ONCE

    def build(self, broker: BrokerId, pending: PendingCommands, now_ms: int) -> list[ControllerEffect]:
        """Commands that can be sent to this broker now."""
        effects: list[ControllerEffect] = []
        if pending.owes_complete and self._knows_all_of(broker):
            pending.needs_full_leader_and_isr = True
        if (
            pending.needs_full_leader_and_isr or pending.partitions or pending.suspects_changed
        ) and pending.leader_and_isr.is_free(now_ms):
            effects += self._leader_and_isr(broker, pending, now_ms)
        if pending.stopping and pending.stop_replica.is_free(now_ms) and pending.leader_and_isr.request_id is None:
            # LeaderAndIsr and StopReplica are never both in flight: a LeaderAndIsr that arrives after the StopReplica
            # would create the replica again.
            effects.append(self._stop_replica(broker, pending, now_ms))
        if (
            pending.needs_full_metadata
            or pending.snapshot
            or pending.metadata
            or pending.gone_topics
            or pending.brokers_changed
        ) and pending.update_metadata.is_free(now_ms):
            effects.append(self._update_metadata(broker, pending, now_ms))
        return effects

    def _leader_and_isr(self, broker: BrokerId, pending: PendingCommands, now_ms: int) -> list[ControllerEffect]:
        if pending.needs_full_leader_and_isr and self._ctx.undecided:
            return []  # the command is sent after the present round of decisions, with their outcome
        wanted = self._ctx.on_broker[broker] if pending.needs_full_leader_and_isr else pending.partitions
        partition_states = [
            partition_state
            for partition in wanted
            if (partition_state := self._ctx.partitions.get(partition)) is not None
            and partition.topic not in self._deleting
            and broker in partition_state.assigned  # a repeated command may be older than a reassignment
        ]
        if pending.needs_full_leader_and_isr and any(
            partition_state.writing or partition_state.outcome_unknown for partition_state in partition_states
        ):
            return []  # the command is sent after the answers to these writes
        held = [one for one in partition_states if self._ctx.may_hold(broker, one.partition.topic)]
        # A complete command deletes the logs that it does not name; an upgraded broker keeps its logs.
        may_be_complete = pending.needs_full_leader_and_isr and len(held) == len(partition_states)
        complete = may_be_complete and self._knows_all_of(broker)
        if pending.needs_full_leader_and_isr:
            pending.owes_complete = may_be_complete and not complete
        commands = tuple(
            self._command(partition_state, broker) for partition_state in held if partition_state.state is not None
        )
        parts = self._parts(pending, commands)
        self._partitions_built += len(commands)
        request_id = next(self._ids)
        pending.leader_and_isr.request_id = request_id
        pending.sent_full_leader_and_isr = pending.needs_full_leader_and_isr
        pending.sent_partitions = frozenset(command.partition for command in commands)
        pending.sent_schemas = {name: _known_schema(self._ctx.topics[name]) for _, schemas in parts for name in schemas}
        effect = SendLeaderAndIsr(
            broker,
            request_id,
            tuple(
                LeaderAndIsrCommand(
                    controller_id=self._ctx.config.controller_id,
                    controller_epoch=self._ctx.config.controller_epoch,
                    broker_epoch=pending.broker_epoch,
                    partitions=part,
                    brokers=tuple(self._ctx.brokers.values()),
                    suspected=self._ctx.avoided,
                    complete=complete and index == len(parts) - 1,
                    part=index,
                    sequence=_sequence(now_ms, request_id),
                    topic_configs={
                        name: self._ctx.topics[name].configs for name in {command.partition.topic for command in part}
                    },
                    schemas=schemas,
                )
                for index, (part, schemas) in enumerate(parts)
            ),
        )
        pending.needs_full_leader_and_isr = pending.suspects_changed = False
        pending.partitions = set()
        return [effect]

    def _knows_all_of(self, broker: BrokerId) -> bool:
        """Whether the broker's replicas are those of partitions with a known state, and no others."""
        ctx = self._ctx
        return ctx.knows_everything() and all(ctx.partitions[one].state is not None for one in ctx.on_broker[broker])

    def _parts(self, pending: PendingCommands, commands: Sequence[PartitionCommand]) -> list[_Part]:
        """The partitions and new schemas of each message. Schemas come first, so that a leader knows its topic's."""
        schemas = _in_pieces(self._new_schemas(pending, dict.fromkeys(command.partition.topic for command in commands)))
        parts: list[_Part] = [((), piece) for piece in schemas[:-1]]
        for start in range(0, max(len(commands), 1), PART_PARTITIONS_MAX):
            part = tuple(commands[start : start + PART_PARTITIONS_MAX])
            parts.append((part, schemas[-1] if schemas and not start else {}))
        return parts

    def _new_schemas(self, pending: PendingCommands, topics: Iterable[str]) -> Iterator[tuple[str, str, int, str]]:
        """Topic, topic id, number and text of each version that the broker has not acknowledged (rule S3)."""
        for name in topics:
            topic = self._ctx.topics[name]
            if not topic.schemas:
                continue
            known = pending.schemas.get(name, _UNKNOWN_SCHEMA)
            if known.topic_id != topic.topic_id:
                known = _UNKNOWN_SCHEMA
            for version, schema in sorted(topic.schemas.items()):
                if version > known.newest or (version in known.damaged and schema.text):  # its node was restored
                    yield name, topic.topic_id, version, schema.text

    def _command(self, partition_state: PartitionState, broker: BrokerId) -> PartitionCommand:
        assert partition_state.state is not None
        topic = self._ctx.topics[partition_state.partition.topic]
        return PartitionCommand(
            partition=partition_state.partition,
            identity=partition_state.identity,
            assigned_replicas=partition_state.assigned,
            state=partition_state.state,
            partition_epoch=partition_state.version,
            adding_replicas=topic.adding.get(partition_state.partition.partition, ()),
            removing_replicas=topic.removing.get(partition_state.partition.partition, ()),
            throttle_bytes_per_s=partition_state.throttle_bytes_per_s,
            log_dir=partition_state.log_dirs.get(broker, ""),
            isr_reasons=partition_state.isr_reasons,
        )

    def _stop_replica(self, broker: BrokerId, pending: PendingCommands, now_ms: int) -> ControllerEffect:
        request_id = next(self._ids)
        pending.stop_replica.request_id = request_id
        replicas = tuple(pending.stopping.values())[:PART_PARTITIONS_MAX]
        pending.sent_stops = frozenset(replica.partition for replica in replicas)
        command = StopReplicaCommand(
            self._ctx.config.controller_id,
            self._ctx.config.controller_epoch,
            pending.broker_epoch,
            replicas,
            _sequence(now_ms, request_id),
        )
        return SendStopReplica(broker, request_id, command)

    def _update_metadata(self, broker: BrokerId, pending: PendingCommands, now_ms: int) -> ControllerEffect:
        """A snapshot in parts at first, then changes, those since the snapshot began included.

        A topic deleted during the snapshot is named as deleted after it, since earlier parts may name the topic.
        """
        if pending.needs_full_metadata:
            pending.snapshot, pending.snapshot_next = self._begin_snapshot(), 0
            pending.metadata, pending.gone_topics = set(), set()
        in_parts, part = pending.snapshot is not None, pending.snapshot_next // METADATA_PARTITIONS_MAX
        request_id = next(self._ids)
        pending.update_metadata.request_id = request_id
        pending.sent_full_metadata = in_parts
        pending.needs_full_metadata = pending.brokers_changed = False
        pending.sent_gone = frozenset()
        if not in_parts:
            pending.sent_gone, pending.gone_topics = frozenset(pending.gone_topics), set()
        topics = self._next_of_snapshot(pending) if pending.snapshot is not None else self._changed(pending)
        config = self._ctx.config
        view = ClusterView(
            cluster_id=config.cluster_id,
            controller_id=config.controller_id,
            controller_epoch=config.controller_epoch,
            brokers=dict(self._ctx.brokers),
            topics=topics,
            deleted_topics=tuple(sorted(pending.sent_gone)),
            complete=in_parts and part == 0,
            part=part if in_parts else 0,
            more_parts=pending.snapshot is not None or (not in_parts and bool(pending.metadata)),
            hidden_topics=self._ctx.hidden_topics(),
            sequence=_sequence(now_ms, request_id),
        )
        return SendUpdateMetadata(broker, request_id, pending.broker_epoch, view)

    def _begin_snapshot(self) -> MetadataSnapshot:
        """Begin a snapshot, or share a snapshot that began since the last change of metadata; later changes follow
        it.
        """
        version = self._ctx.metadata_version
        if self._snapshot is None or self._snapshot.version != version:
            self._snapshot = MetadataSnapshot(tuple(self._ctx.partitions), version)
        return self._snapshot

    def _next_of_snapshot(self, pending: PendingCommands) -> Topics:
        assert pending.snapshot is not None
        first, at = pending.snapshot, pending.snapshot_next
        pending.snapshot_next = at + METADATA_PARTITIONS_MAX
        pending.sent_metadata = first.partitions[at : pending.snapshot_next]
        if pending.snapshot_next >= len(first.partitions):
            pending.snapshot = None
        topics = first.parts.get(at)
        if topics is None:
            topics = first.parts[at] = self._topic_views(pending.sent_metadata)
        if not any(one.snapshot for one in self._ctx.commands.values()):
            self._snapshot = None
        return topics

    def _changed(self, pending: PendingCommands) -> Topics:
        wanted = list(pending.metadata)
        now = frozenset(wanted[:METADATA_PARTITIONS_MAX])
        pending.sent_metadata = now
        pending.metadata = set(wanted[METADATA_PARTITIONS_MAX:])
        topics = self._views.get(now)
        if topics is None:
            topics = self._views[now] = self._topic_views(now)
        return topics

    def _topic_views(self, partitions: Iterable[TopicPartition]) -> Topics:
        by_topic: defaultdict[str, dict[int, PartitionView]] = defaultdict(dict)
        for partition in partitions:
            partition_state = self._ctx.partitions.get(partition)
            if partition_state is not None and partition_state.state is not None:
                by_topic[partition.topic][partition.partition] = self._view(partition_state, partition_state.state)
        return {
            name: TopicView(
                topic=name,
                topic_id=topic.topic_id,
                created_zxid=topic.created_zxid,
                modified_zxid=topic.modified_zxid,
                partitions=views,
                configs=topic.configs,
                partition_count=len(topic.partitions),
                schema_version=topic.schema_version,
            )
            for name, views in by_topic.items()
            if (topic := self._ctx.topics.get(name)) is not None
        }

    def _view(self, partition_state: PartitionState, state: LeaderAndIsr) -> PartitionView:
        known = self._kept.get(partition_state.partition)
        if (
            known is not None
            and known[0] is state
            and known[1:3] == (partition_state.version, partition_state.assigned)
            and known[3].incarnation == partition_state.identity.incarnation
        ):
            return known[3]
        if len(self._kept) >= VIEWS_KEPT_MAX:
            self._kept.clear()
        view = _view_of(partition_state, state)
        self._kept[partition_state.partition] = (state, partition_state.version, partition_state.assigned, view)
        return view


def _known_schema(topic: TopicDescription) -> KnownSchema:
    """A broker's knowledge of the schema after the broker has acknowledged every version."""
    damaged = frozenset(version for version, schema in topic.schemas.items() if not schema.text)
    return KnownSchema(topic.topic_id, topic.schema_version, damaged)


def _in_pieces(versions: Iterable[tuple[str, str, int, str]]) -> list[_Schemas]:
    """Divide the versions into pieces of at most `SCHEMA_CHARACTERS_MAX` characters, or of one version."""
    pieces: list[dict[tuple[str, str], dict[int, str]]] = []
    room = 0
    for name, topic_id, version, text in versions:
        room -= len(text)
        if room < 0 or not pieces:
            pieces.append({})
            room = SCHEMA_CHARACTERS_MAX - len(text)
        pieces[-1].setdefault((name, topic_id), {})[version] = text
    return [{name: NewSchemas(topic_id, texts) for (name, topic_id), texts in piece.items()} for piece in pieces]


def _sequence(now_ms: int, request_id: int) -> int:
    return (now_ms << _REQUEST_ID_BITS) + request_id


def _view_of(partition_state: PartitionState, state: LeaderAndIsr) -> PartitionView:
    return PartitionView(
        partition=partition_state.partition.partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        assigned_replicas=partition_state.assigned,
        in_sync_replicas=state.isr_ids,
        incarnation=partition_state.identity.incarnation,
        lineage=state.lineage,
        eligible_leader_replicas=tuple(entry.broker_id for entry in state.elr),
        partition_epoch=partition_state.version,
    )
