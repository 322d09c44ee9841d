# SPDX-License-Identifier: Apache-2.0
"""Election requests, their outcomes and loss reports survive a round trip."""

from __future__ import annotations

import pytest
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TidemarkError,
    TopicPartition,
    UncleanElection,
)
from tidemark.rpc.codecs import election as codec
from tidemark.v1 import admin_service_pb2 as pb

from tests.refusals import raises_code

T0 = TopicPartition("t", 0)
BARE = UncleanElection(T0, "id", 1, BrokerId(0), LeaderEpoch(4))
FULL = UncleanElection(
    T0,
    "id",
    lineage=2,
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(7),
    elected_at_ms=1_700_000_000_000,
    last_epoch=LeaderEpoch(-1),
    log_end_offset=Offset(0),
    high_watermark=Offset(65),
    unheard=(BrokerId(0), BrokerId(2)),
    request_id="r1",
)


@pytest.mark.parametrize("report", [BARE, FULL])
def test_a_report_survives_a_round_trip_and_0_differs_from_unknown(report: UncleanElection) -> None:
    sent = pb.UncleanElection.FromString(codec.unclean_to_proto(report).SerializeToString())
    assert codec.unclean_from_proto(sent) == report
    assert sent.HasField("records_maybe_lost") == (report.records_maybe_lost is not None)


@pytest.mark.parametrize("unclean", [None, BARE, FULL])
def test_an_outcome_survives_a_round_trip(unclean: UncleanElection | None) -> None:
    outcome = ElectionOutcome(T0, NO_LEADER, BrokerId(1), LeaderEpoch(7), changed=True, unclean=unclean)
    sent = pb.ElectionResult.FromString(codec.outcome_to_proto(outcome).SerializeToString())
    assert codec.outcome_from_proto(sent) == outcome


def test_a_refusal_keeps_its_code_and_metadata() -> None:
    error = TidemarkError(ErrorCode.ELECTION_NOT_NEEDED, "it has a leader", {"topic": "t"})
    received = codec.outcome_from_proto(codec.outcome_to_proto(ElectionOutcome(T0, error=error))).error
    assert received is not None
    assert (received.code, received.message, received.metadata) == (error.code, error.message, error.metadata)


def test_every_kind_has_its_type_and_other_numbers_are_refused() -> None:
    assert [codec.kind_from_proto(codec.kind_to_proto(kind)) for kind in ElectionKind] == list(ElectionKind)
    for number in (pb.ELECTION_TYPE_UNSPECIFIED, 4, -1):
        with raises_code(ErrorCode.INVALID_REQUEST):
            codec.kind_from_proto(number)
