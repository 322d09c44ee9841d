# SPDX-License-Identifier: Apache-2.0
"""Defects in a replica's knowledge of the transactions in its log (rules X3, X5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.core.replication import replica_log
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.storage.log.aborted_index import AbortedIndex
from tidemark.storage.recovery import log_loader

from tests.simulation.plan import Recipe
from tests.simulation.recipes import TRANSACTIONS


def followers_pass_over_markers(monkeypatch: Any) -> None:
    """A follower appends markers, and their transactions stay open in its state."""
    append = ReplicaLog.append_as_follower

    def append_unread(self: ReplicaLog, batches: Any) -> None:
        with monkeypatch.context() as for_this_call:
            for_this_call.setattr(replica_log, "read_marker", lambda _: None)
            append(self, batches)

    monkeypatch.setattr(ReplicaLog, "append_as_follower", append_unread)


def forgets_aborted_transactions_at_a_start(monkeypatch: Any) -> None:
    """A start reads no index of aborted transactions."""
    monkeypatch.setattr(log_loader, "_take_aborted", lambda *_: None)


def keeps_aborted_transactions_when_cut(monkeypatch: Any) -> None:
    """A truncation leaves the index of aborted transactions as it is."""
    monkeypatch.setattr(AbortedIndex, "truncate", lambda *_: None)


RULES: dict[Callable[[Any], None], tuple[str, Recipe]] = {
    followers_pass_over_markers: ("X3", TRANSACTIONS),
    forgets_aborted_transactions_at_a_start: ("X5", TRANSACTIONS),
    keeps_aborted_transactions_when_cut: ("X5", TRANSACTIONS),
}
