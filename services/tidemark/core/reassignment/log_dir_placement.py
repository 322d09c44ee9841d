# SPDX-License-Identifier: Apache-2.0
"""Requests to move replicas between log directories of their brokers (rule M3), and their outcome."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition

LOG_DIR_PENDING: Final = ErrorCode.REQUEST_TIMED_OUT
"""Refusal of a log directory that a LeaderAndIsr names: the broker has accepted the directory, but a kill would lose
the choice. The controller names the directory again."""
PRESENT_LOG_DIR: Final = "present"
"""Named by a LeaderAndIsr for a replica whose move to another log directory was cancelled; paths are absolute."""
LOG_DIR_REFUSALS: Final = frozenset(
    (ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.LOG_DIR_OFFLINE, ErrorCode.DISK_FULL, ErrorCode.REPLICA_OFFLINE)
)
"""A broker adopts the partition but rejects the log directory named for its replica."""


class ReplicaLogDir(NamedTuple):
    """A replica, and the log directory of its broker that it is to be moved to, by path or uuid."""

    broker_id: BrokerId
    partition: TopicPartition
    log_dir: str


class ReplicaLogDirOutcome(NamedTuple):
    """The outcome for one replica: accepted, or the error."""

    broker_id: BrokerId
    partition: TopicPartition
    error: TidemarkError | None = None
