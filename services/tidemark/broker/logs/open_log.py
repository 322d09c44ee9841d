# SPDX-License-Identifier: Apache-2.0
"""An open log, as the append threads and flush threads share it."""

from __future__ import annotations

import threading

from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.ports import Log

OS = "os"
GROUP_COMMIT = "group-commit"


class OpenReplica:
    """An open log, with its state on the append and flush threads.

    Attributes:
        flush_policy, flush_interval_s: the topic's settings; changed by the event loop only.
        failed: an effect on the log or a flush failed, and the core was notified; later effects are dropped.
        full: an append failed with ENOSPC; later appends are dropped until the core resumes. Owned by the append
            thread.
        opening: identity of this opening; the same object after a move to another directory.
        truncations: number of truncations and resets that were answered; changed by the event loop only.
    """

    __slots__ = (
        "_first_failure",
        "directory",
        "failed",
        "flush_interval_s",
        "flush_policy",
        "full",
        "identity",
        "log",
        "opening",
        "partition",
        "truncations",
    )

    def __init__(
        self,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        log: Log,
        directory: int,
        *,
        flush_policy: str = OS,
        flush_interval_s: float = 0.0,
    ) -> None:
        self.partition = partition
        self.identity = identity
        self.log = log
        self.directory = directory
        self.flush_policy = flush_policy
        self.flush_interval_s = flush_interval_s
        self.failed = False
        self.full = False
        self.opening = object()
        self.truncations = 0
        self._first_failure = threading.Lock()

    def fail(self) -> bool:
        """Mark the log as failed, on any thread; True for the first call, whose caller notifies the core."""
        self.failed = True
        return self._first_failure.acquire(blocking=False)
