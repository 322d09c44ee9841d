# SPDX-License-Identifier: Apache-2.0
"""AlterReplicaLogDirs: proto <-> requests and their results (rule M3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.model import TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import alter_log_dirs_pb2 as pb


@dataclass(frozen=True, slots=True)
class AlterLogDirs:
    """Replicas of one broker, each with its wanted directory: a path or a uuid.

    Attributes:
        throttle_bytes_per_s: limit of all these moves together; 0: the broker's setting.
        validate_only: check the request only.
    """

    replicas: tuple[tuple[TopicPartition, str], ...]
    throttle_bytes_per_s: int = 0
    validate_only: bool = False


Alteration = tuple[TopicPartition, TidemarkError | None]
"""A partition, and the error of its alteration; None: the broker recorded the change."""


def alterations_to_proto(request: AlterLogDirs) -> pb.AlterReplicaLogDirsRequest:
    """The request that moves replicas to these log directories."""
    return pb.AlterReplicaLogDirsRequest(
        replicas=[
            pb.ReplicaLogDir(partition=ref_to_proto(partition), log_dir=log_dir)
            for partition, log_dir in request.replicas
        ],
        throttle_bytes_per_s=request.throttle_bytes_per_s,
        validate_only=request.validate_only,
    )


def alterations_from_proto(message: pb.AlterReplicaLogDirsRequest) -> AlterLogDirs:
    """The request; a negative throttle means no throttle."""
    return AlterLogDirs(
        tuple((ref_from_proto(one.partition), one.log_dir) for one in message.replicas),
        max(0, message.throttle_bytes_per_s),
        message.validate_only,
    )


def results_to_proto(results: Sequence[Alteration]) -> pb.AlterReplicaLogDirsResponse:
    """The answer, in the order of the request."""
    return pb.AlterReplicaLogDirsResponse(
        replicas=[
            pb.ReplicaLogDirResult(
                partition=ref_to_proto(partition), error=errors.to_proto(error) if error is not None else None
            )
            for partition, error in results
        ]
    )


def results_from_proto(message: pb.AlterReplicaLogDirsResponse) -> tuple[Alteration, ...]:
    """Decode the outcome for each replica."""
    return tuple((ref_from_proto(one.partition), errors.error_in(one)) for one in message.replicas)
