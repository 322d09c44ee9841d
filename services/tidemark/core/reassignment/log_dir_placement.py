# SPDX-License-Identifier: Apache-2.0
"""In which log directory of its broker a replica shall lie (rule M3), and what became of that wish."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.model import BrokerId, TidemarkError, TopicPartition


class ReplicaLogDir(NamedTuple):
    """A replica, and the directory of its broker that it shall lie in, by path or uuid."""

    broker_id: BrokerId
    partition: TopicPartition
    log_dir: str


class ReplicaLogDirOutcome(NamedTuple):
    """What became of one: noted, or why nothing was changed for it."""

    broker_id: BrokerId
    partition: TopicPartition
    error: TidemarkError | None = None
