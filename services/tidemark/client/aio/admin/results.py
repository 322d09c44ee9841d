# SPDX-License-Identifier: Apache-2.0
"""Results of the admin client's methods."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.planning.broker_plans import Plan
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome, ReassignmentProgress
from tidemark.model import BrokerId, Offset, Refusal


class ClusterDescription(NamedTuple):
    """The cluster and the health of its partitions.

    Attributes:
        view: brokers and the active controller.
        topic_count: number of topics.
        partition_count: partitions of all topics.
        under_replicated_count: partitions with fewer in-sync than assigned replicas.
        under_min_isr_count: partitions with fewer in-sync replicas than `min.insync.replicas`.
        offline_count: partitions without a leader.
        draining_brokers: brokers that get no new replicas, since they are being removed or are removed.
        election_wait_ms: `leader.election.wait.ms` of the active controller; None: not known.
    """

    view: ClusterView
    topic_count: int
    partition_count: int
    under_replicated_count: int
    under_min_isr_count: int
    offline_count: int
    draining_brokers: tuple[BrokerId, ...] = ()
    election_wait_ms: int | None = None


class RemovedPartitions(NamedTuple):
    """Result of `delete_partitions`.

    Attributes:
        topic: the topic without the removed partitions.
        partitions: indexes of the removed partitions.
    """

    topic: TopicView
    partitions: tuple[int, ...]


class DeletedRecords(NamedTuple):
    """Result of `delete_records`.

    Attributes:
        low_watermark: no replica that answered has a record below this offset.
        log_start_offset: first offset (inclusive) that the leader has.
        behind: assigned replicas that have not confirmed the deletion; offline ones delete after they return.
    """

    low_watermark: Offset
    log_start_offset: Offset
    behind: tuple[BrokerId, ...]


class AlteredReassignments(NamedTuple):
    """Result of `alter_partition_reassignments`.

    Attributes:
        outcomes: an outcome for each reassignment and cancellation; `error` is set if it was refused.
        inbound_bytes_per_s: highest rate at which any leader of these partitions must send to the added replicas to
            keep up with its producers. None if no leader reported it. A throttle must exceed this rate.
    """

    outcomes: list[ReassignmentOutcome]
    inbound_bytes_per_s: int | None


class Reassignments(NamedTuple):
    """Result of `list_partition_reassignments`.

    Attributes:
        moves: requested and running reassignments, with progress.
        refusals: the latest requests that the controller refused, of all kinds, the oldest first.
    """

    moves: list[ReassignmentProgress]
    refusals: list[Refusal]


class ReassignmentUpdate(NamedTuple):
    """One update of `watch_partition_reassignments`.

    Attributes:
        moves: requested and running reassignments, with progress.
        ended: reassignments that ended since the previous update.
    """

    moves: list[ReassignmentProgress]
    ended: list[EndedReassignment]


class PlannedMoves(NamedTuple):
    """Result of `plan_brokers` and `add_brokers`: reassignments and their cost.

    Attributes:
        plan: the reassignments; `plan.current` reverts them.
        unknown_sizes: number of partitions whose size no broker reported; `plan.moved_bytes` omits their bytes.
        begun: number of reassignments that this call started.
    """

    plan: Plan
    unknown_sizes: int
    begun: int = 0


class RemovalProgress(NamedTuple):
    """One update of `remove_brokers`.

    Attributes:
        moves: requested and running reassignments, with progress.
        partitions_left: number of partitions that still have a replica on a broker being removed.
        planned: the reassignments and their cost, in the first update only.
        removed: in the last update, the deregistered brokers, which have no replicas: their processes can be stopped.
    """

    moves: list[ReassignmentProgress]
    partitions_left: int
    planned: PlannedMoves | None
    removed: tuple[BrokerId, ...]
