# SPDX-License-Identifier: Apache-2.0
"""Requested elections, their outcomes, and loss reports: proto <-> model."""

from __future__ import annotations

from typing import Final

from tidemark.model import ElectionKind, ElectionOutcome, UncleanElection, invalid_request
from tidemark.rpc.codecs.message import LIST, OPTIONAL, OPTIONAL_ERROR, PARTITION, Codec, Field
from tidemark.v1 import admin_service_pb2 as pb

_TYPES: Final = {
    ElectionKind.PREFERRED: pb.ELECTION_TYPE_PREFERRED,
    ElectionKind.LAST_KNOWN: pb.ELECTION_TYPE_LAST_KNOWN,
    ElectionKind.REBUILD_STATE: pb.ELECTION_TYPE_REBUILD_STATE,
}


def kind_to_proto(kind: ElectionKind) -> pb.ElectionType.ValueType:
    """Encode the kind of a request."""
    return _TYPES[kind]


def kind_from_proto(number: int) -> ElectionKind:
    """Decode the kind of a request; raises INVALID_REQUEST for an unset kind and for a kind of a later version."""
    for kind, known in _TYPES.items():
        if known == number:
            return kind
    raise invalid_request(f"election type {number} is unknown: request PREFERRED, LAST_KNOWN or REBUILD_STATE")


_UNCLEAN: Final = Codec(
    UncleanElection,
    pb.UncleanElection,
    computed=("records_maybe_lost",),
    partition=PARTITION,
    last_epoch=OPTIONAL,
    log_end_offset=OPTIONAL,
    high_watermark=OPTIONAL,
    unheard=LIST,
)
unclean_to_proto: Final = _UNCLEAN.to_proto
unclean_from_proto: Final = _UNCLEAN.from_proto

_OUTCOME: Final = Codec(
    ElectionOutcome,
    pb.ElectionResult,
    partition=PARTITION,
    unclean=Field(unclean_to_proto, unclean_from_proto, is_optional=True),
    error=OPTIONAL_ERROR,
)
outcome_to_proto: Final = _OUTCOME.to_proto
outcome_from_proto: Final = _OUTCOME.from_proto
