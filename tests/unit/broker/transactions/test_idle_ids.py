# SPDX-License-Identifier: Apache-2.0
"""Idle transactional ids take little memory, and the periodic work of their coordinator does not look at them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.records import decode, encode
from tidemark.core.transactions.requests import Init, Situation, TransactionSettings
from tidemark.core.transactions.state import Change

IDS = 10_000
NOW = Situation(1_000_000, 1_000_000, TransactionSettings())


def written() -> Iterator[tuple[bytes, bytes | None]]:
    coordinator = TransactionCoordinator(1)
    for number in range(IDS):
        asked = Init(f"pipeline-{number:05}", 60_000, fresh_producer_id=number)
        yield from map(encode, coordinator.init(asked, NOW).changes)


def replayed() -> TransactionCoordinator:
    changes: list[Change] = [change for record in written() if (change := decode(*record)) is not None]
    return TransactionCoordinator.replay(changes, NOW.now_ms, 2)


def test_ten_thousand_idle_ids_take_less_than_20_mb() -> None:
    tracemalloc.start()
    try:
        coordinator = replayed()
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(coordinator) == IDS
    assert size_bytes < 20e6


def test_sweeps_and_figures_look_at_no_idle_id() -> None:
    coordinator = replayed()
    assert not coordinator.ongoing
    assert coordinator.abort_overdue(NOW._replace(now_ms=10**9)).changes == ()
    assert coordinator.summaries(NOW, (), 1) == []
