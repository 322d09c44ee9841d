# SPDX-License-Identifier: Apache-2.0
"""Fetching from followers: the leader's choice of a follower, and the reads of a follower (rule K1, KIP-392).

A leader names an in-sync follower in the consumer's rack. A follower returns records that its leader has committed, in
the leader epoch in which it follows, while it is in sync and in contact. It refuses all other requests with the id of
the leader, since only a leader can decide that an offset does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NoReturn

from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader import isr as isr_rules
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import ReadableRange, Replica, check_epoch, diverging_end
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
)

CONTACT_HEARTBEATS: Final = 3
"""Heartbeat intervals without a message after which contact is lost; a controller suspects a broker later."""


def preferred_replica(
    ctx: BrokerContext,
    leader: PartitionLeader,
    *,
    rack: str,
    brokers: Mapping[BrokerId, BrokerRegistration],
    fetch_offset: Offset,
    now_ms: int,
) -> BrokerId | None:
    """The follower with the highest log end that may serve a consumer in this rack; None: the leader serves it.

    Args:
        brokers: the live brokers, with their racks.
        fetch_offset: next offset of the consumer, which the leader has found readable.
    """
    own = brokers.get(ctx.broker_id)
    if not ctx.config.rack_aware_reads or not rack or (own is not None and own.rack == rack):
        return None
    if not leader.may_state_high_watermark:  # some in-sync replica has not reached the start of this epoch (rule E6)
        return None
    in_rack = {broker_id for broker_id, broker in brokers.items() if broker.rack == rack}
    sure = isr_rules.minimal_isr(leader.isr) & in_rack - ctx.suspected
    fit = [
        one
        for one in leader.attached
        if one.broker_id in sure
        and _may_serve(one, fetch_offset, brokers[one.broker_id].broker_epoch, now_ms - contact_timeout_ms(ctx))
    ]
    return max(fit, key=lambda one: (one.log_end_offset, -one.broker_id)).broker_id if fit else None


def _may_serve(progress: FollowerProgress, fetch_offset: Offset, broker_epoch: BrokerEpoch, since_ms: int) -> bool:
    """Whether a follower has the fetch offset or ends there, has got a high watermark, and sent a message since."""
    sender = progress.sender
    return (
        sender is not None
        and progress.acknowledged
        and sender.sent_high_watermark >= 0
        and sender.follower_log_start <= fetch_offset <= progress.log_end_offset
        and sender.session.broker_epoch == broker_epoch
        and sender.session.last_message_ms >= since_ms
    )


def readable_here(
    ctx: BrokerContext,
    replica: Replica,
    *,
    identity: ReplicaIdentity,
    current_leader_epoch: LeaderEpoch,
    fetch_offset: Offset,
    last_fetched_epoch: LeaderEpoch,
    in_sync_replicas: Collection[BrokerId],
    now_ms: int,
) -> ReadableRange:
    """The range that a consumer may read from this follower, with the high watermark that the leader sent last.

    Args:
        identity: as the consumer knows it; this and the leader epoch must equal those of the replica.
        in_sync_replicas: the ISR in that epoch, from the metadata of this broker.

    Raises:
        TidemarkError: UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; NOT_LEADER if this broker does
            not follow, or serves no reads as a follower; OFFSET_NOT_AVAILABLE if the consumer must ask the leader;
            LOG_TRUNCATED if the consumer's log diverges from this one.
    """
    follower = replica.role
    if not ctx.config.rack_aware_reads or not isinstance(follower, PartitionFollower):
        _refuse(replica, ErrorCode.NOT_LEADER, "cannot be read from this broker")
    if identity != replica.identity:
        _refuse(replica, ErrorCode.UNKNOWN_TOPIC_ID, "has another topic id or incarnation here")
    check_epoch(replica, current_leader_epoch, follower.leader_epoch)
    log = follower.log
    if ctx.broker_id not in in_sync_replicas or not follower.reconciled or log.damaged is not None:
        _refuse(replica, ErrorCode.OFFSET_NOT_AVAILABLE, "is not in sync at this broker, as far as it knows")
    if not follower.in_contact(contact_timeout_ms(ctx), now_ms):
        _refuse(
            replica,
            ErrorCode.OFFSET_NOT_AVAILABLE,
            "is followed by this broker, which is out of contact with the leader",
        )
    if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
        there = f"{log.log_start_offset} to {log.log_end_offset}, not {fetch_offset}"
        _refuse(replica, ErrorCode.OFFSET_NOT_AVAILABLE, f"has the offsets {there} at this broker")
    end = diverging_end(follower, fetch_offset, last_fetched_epoch)
    if end is not None:
        raise TidemarkError(
            ErrorCode.LOG_TRUNCATED,
            f"{replica.partition} has no record at {fetch_offset} that continues the caller's; its log was truncated",
            {"diverging_epoch": str(end.leader_epoch), "diverging_end_offset": str(end.start_offset)},
        )
    return ReadableRange(
        max(follower.committed_offset, fetch_offset),
        follower.leader_high_watermark,
        log.log_start_offset,
        log.log_end_offset,
    )


def contact_timeout_ms(ctx: BrokerContext) -> int:
    """The longest silence of a leader, or of a follower, that is in contact."""
    return CONTACT_HEARTBEATS * ctx.config.replica_heartbeat_interval_ms


def _refuse(replica: Replica, code: ErrorCode, sentence: str) -> NoReturn:
    raise TidemarkError(
        code,
        f"{replica.partition} {sentence}; ask its leader, broker {replica.leader}",
        {"leader": str(replica.leader), "leader_epoch": str(replica.leader_epoch)},
    )
