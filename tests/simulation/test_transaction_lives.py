# SPDX-License-Identifier: Apache-2.0
"""Seeded lives of transactions: under any faults every invariant holds; known defects show."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.transactions.lives import live
from tests.simulation.transactions.mutants import TRANSACTION_MUTANTS, TransactionMutant, catch

WORLDS = 20


@pytest.mark.parametrize("first", range(0, WORLDS, 10))
def test_every_invariant_holds_in_every_world_of_transactions(first: int) -> None:
    commits = batches = 0
    refused: Counter[str] = Counter()
    for seed in range(first, first + 10):
        life = live(seed)
        assert life.broken is None, life.story
        commits += life.world.transactions
        batches += life.world.batches
        refused += life.world.refused
    assert commits > 100, "few transactions were committed"
    assert batches > 30, "few batches of sinks were committed"
    assert refused["PRODUCER_FENCED"] > 50, "producers were hardly fenced"
    assert refused["CONCURRENT_TRANSACTIONS"] > 50, "requests hardly met a transaction that was being completed"


@pytest.mark.parametrize("first", range(0, WORLDS, 10))
def test_offsets_and_rows_of_transactions_count_together_in_every_world(first: int) -> None:
    committed = 0
    refused: Counter[str] = Counter()
    for seed in range(first, first + 10):
        life = live(seed, transforms=True)
        assert life.broken is None, life.story
        committed += sum(life.world.committed_offsets().values())
        refused += life.world.refused
    assert committed > 200, "few input records were covered by committed offsets"
    assert refused["UNKNOWN_MEMBER"] > 20, "members were hardly evicted"
    assert refused["CONCURRENT_TRANSACTIONS"] > 300, "members hardly met the offsets of open transactions"


@pytest.mark.parametrize("transforms", [False, True])
def test_the_same_seed_is_the_same_life_of_transactions(*, transforms: bool) -> None:
    one, other = live(7, transforms=transforms).world, live(7, transforms=transforms).world
    assert (one.story, one.log) == (other.story, other.log)


@pytest.mark.parametrize("mutant", TRANSACTION_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_of_transactions_is_caught(mutant: TransactionMutant) -> None:
    caught = catch(mutant)
    assert caught is not None, f"no world showed that {mutant.name} is wrong"
    assert caught.life.broken is not None
    assert caught.life.broken[0] == mutant.caught_by, caught.life.story
