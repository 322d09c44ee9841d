# SPDX-License-Identifier: Apache-2.0
"""An open log as the threads that append to it and flush it share it."""

from __future__ import annotations

import threading

from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.ports import Log

OS = "os"
GROUP_COMMIT = "group-commit"


class OpenReplica:
    """An open log.

    Attributes:
        flush_policy, flush_interval_s: of the topic; changed by the event loop only.
        failed: an effect on it or a flush failed; what comes after that is dropped, as the core was told.
        full: there was no space for an append; what comes is dropped until the core knows. Of the append thread.
        was_full: no append has succeeded since. Of the append thread.
        opening: the same as long as the log is open, in whichever directory.
        cuts: truncations and resets that were answered; written by the event loop only.
    """

    __slots__ = (
        "_first_failure",
        "cuts",
        "directory",
        "failed",
        "flush_interval_s",
        "flush_policy",
        "full",
        "identity",
        "log",
        "opening",
        "partition",
        "was_full",
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
        self.was_full = False
        self.opening = object()
        self.cuts = 0
        self._first_failure = threading.Lock()

    def fail(self) -> bool:
        """From any thread: it has failed; True for the first one to say so, who tells the core."""
        self.failed = True
        return self._first_failure.acquire(blocking=False)
