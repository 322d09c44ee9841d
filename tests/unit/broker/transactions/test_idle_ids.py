# SPDX-License-Identifier: Apache-2.0
"""Idle transactional ids take little memory, and the periodic work of their coordinator skips them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.records import decode, encode
from tidemark.core.transactions.requests import Init, Situation, TransactionSettings
from tidemark.core.transactions.state import Change

IDS = 10_000
NOW = Situation(1_000_000, 1_000_000, TransactionSettings())


@pytest.fixture(scope="module")
def written() -> list[tuple[bytes, bytes | None]]:
    """The state records of ids that never had a transaction."""
    coordinator = TransactionCoordinator(1)
    records: list[tuple[bytes, bytes | None]] = []
    for number in range(IDS):
        asked = Init(f"pipeline-{number:05}", 60_000, fresh_producer_id=number)
        records += map(encode, coordinator.init(asked, NOW).changes)
    return records


def replayed(records: Sequence[tuple[bytes, bytes | None]]) -> TransactionCoordinator:
    changes: list[Change] = [change for record in records if (change := decode(*record)) is not None]
    return TransactionCoordinator.replay(changes, NOW.now_ms, 2)


def test_ten_thousand_idle_ids_take_less_than_20_mb(written: list[tuple[bytes, bytes | None]]) -> None:
    tracemalloc.start()
    try:
        coordinator = replayed(written)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(coordinator) == IDS
    assert size_bytes < 20e6


def test_sweeps_and_figures_look_at_no_idle_id(written: list[tuple[bytes, bytes | None]]) -> None:
    coordinator = replayed(written)
    assert not coordinator.ongoing
    assert coordinator.abort_overdue(NOW._replace(now_ms=10**9)).changes == ()
    assert coordinator.summaries(NOW, (), 1) == []
