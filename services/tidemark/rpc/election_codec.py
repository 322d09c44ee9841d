# SPDX-License-Identifier: Apache-2.0
"""Elections that people ask for, and loss reports: proto <-> model."""

from __future__ import annotations

from typing import Final

from tidemark.model import (
    BrokerId,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TidemarkError,
    UncleanElection,
)
from tidemark.rpc import errors
from tidemark.rpc.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import admin_service_pb2 as pb

_TYPES: Final = {
    ElectionKind.PREFERRED: pb.ELECTION_TYPE_PREFERRED,
    ElectionKind.LAST_KNOWN: pb.ELECTION_TYPE_LAST_KNOWN,
}


def kind_to_proto(kind: ElectionKind) -> pb.ElectionType.ValueType:
    """The kind of a request."""
    return _TYPES[kind]


def kind_from_proto(number: int) -> ElectionKind:
    """The kind of a request; raises INVALID_REQUEST for one that is not set, or of a later version."""
    for kind, known in _TYPES.items():
        if known == number:
            return kind
    raise TidemarkError(ErrorCode.INVALID_REQUEST, f"no election is of type {number}: say PREFERRED or LAST_KNOWN")


def outcome_to_proto(outcome: ElectionOutcome) -> pb.ElectionResult:
    """What became of one partition."""
    return pb.ElectionResult(
        partition=ref_to_proto(outcome.partition),
        error=None if outcome.error is None else errors.to_proto(outcome.error),
        leader_before=outcome.leader_before,
        leader=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        changed=outcome.changed,
        unclean=None if outcome.unclean is None else unclean_to_proto(outcome.unclean),
    )


def outcome_from_proto(message: pb.ElectionResult) -> ElectionOutcome:
    """What became of one partition."""
    return ElectionOutcome(
        partition=ref_from_proto(message.partition),
        leader_before=BrokerId(message.leader_before),
        leader=BrokerId(message.leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        changed=message.changed,
        unclean=unclean_from_proto(message.unclean) if message.HasField("unclean") else None,
        error=errors.from_proto(message.error) if message.HasField("error") else None,
    )


def unclean_to_proto(report: UncleanElection) -> pb.UncleanElection:
    """A loss report; what it does not know stays unset."""
    return pb.UncleanElection(
        partition=ref_to_proto(report.partition),
        topic_id=report.topic_id,
        lineage=report.lineage,
        leader=report.leader,
        leader_epoch=report.leader_epoch,
        elected_at_ms=report.elected_at_ms,
        last_epoch=report.last_epoch,
        log_end_offset=report.log_end_offset,
        high_watermark=report.high_watermark,
        records_maybe_lost=report.records_maybe_lost,
        unheard=report.unheard,
        request_id=report.request_id,
    )


def unclean_from_proto(message: pb.UncleanElection) -> UncleanElection:
    """A loss report; `records_maybe_lost` follows from the rest."""
    return UncleanElection(
        partition=ref_from_proto(message.partition),
        topic_id=message.topic_id,
        lineage=message.lineage,
        leader=BrokerId(message.leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        elected_at_ms=message.elected_at_ms,
        last_epoch=LeaderEpoch(message.last_epoch) if message.HasField("last_epoch") else None,
        log_end_offset=Offset(message.log_end_offset) if message.HasField("log_end_offset") else None,
        high_watermark=Offset(message.high_watermark) if message.HasField("high_watermark") else None,
        unheard=tuple(BrokerId(broker) for broker in message.unheard),
        request_id=message.request_id,
    )
