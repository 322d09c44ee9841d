# SPDX-License-Identifier: Apache-2.0
"""AlterReplicaLogDirs requests and responses survive a round trip."""

from __future__ import annotations

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.codecs.alter_log_dirs import (
    AlterLogDirs,
    alterations_from_proto,
    alterations_to_proto,
    results_from_proto,
    results_to_proto,
)

ONE, TWO = TopicPartition("flights", 0), TopicPartition("flights", 1)


def test_a_request_survives_a_round_trip() -> None:
    request = AlterLogDirs(((ONE, "/data/a"), (TWO, "f" * 32)), throttle_bytes_per_s=1 << 40, validate_only=True)
    assert alterations_from_proto(alterations_to_proto(request)) == request


def test_a_negative_throttle_counts_as_none() -> None:
    message = alterations_to_proto(AlterLogDirs(((ONE, "/data/a"),), throttle_bytes_per_s=-5))
    assert alterations_from_proto(message).throttle_bytes_per_s == 0


def test_each_replica_has_its_own_result_in_order() -> None:
    refusal = TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, "no such directory")
    (first, no_error), (second, error) = results_from_proto(results_to_proto([(TWO, None), (ONE, refusal)]))
    assert (first, no_error, second) == (TWO, None, ONE)
    assert error is not None
    assert (error.code, error.message) == (refusal.code, refusal.message)
