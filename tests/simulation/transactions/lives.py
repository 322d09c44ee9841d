# SPDX-License-Identifier: Apache-2.0
"""Lives of simulated transactions.

python -m tests.simulation.transactions.lives --seeds 1000 [--first 0] [--transforms]
"""

from __future__ import annotations

import argparse
import sys
from unittest import mock

from tidemark.core.transactions import open_transaction
from tidemark.core.transactions.state import PAGE_ITEMS

from tests.simulation.coordination.lives import Life, live_out
from tests.simulation.transactions.world import TransactionWorld, draw


def live(seed: int, *, transforms: bool = False) -> Life:
    """Run the world of that seed to its end, or until an invariant fails.

    Odd seeds store a transaction in several pages.
    """
    world = TransactionWorld(seed, draw(seed, transforms=transforms), transforms=transforms)
    with mock.patch.object(open_transaction, "PAGE_ITEMS", 2 if seed % 2 else PAGE_ITEMS):
        return live_out("transactions", world)


def soak(first: int, count: int, *, transforms: bool = False) -> int:
    """Exit status 1 and a story at the first failure."""
    transactions = batches = 0
    for seed in range(first, first + count):
        life = live(seed, transforms=transforms)
        if life.broken is not None:
            sys.stdout.write(life.story + "\n")
            return 1
        transactions, batches = transactions + life.world.transactions, batches + life.world.batches
    sys.stdout.write(f"{count} worlds of transactions, {transactions} commits, {batches} batches: all is well\n")
    return 0


def main(arguments: list[str]) -> int:
    """Exit status 1 and a story at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--transforms", action="store_true", help="worlds with offsets in transactions")
    options = parser.parse_args(arguments)
    return soak(options.first, options.seeds, transforms=options.transforms)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
