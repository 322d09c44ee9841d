# SPDX-License-Identifier: Apache-2.0
"""Prints a table of the mutants: rule, invariant that caught it, worlds needed.

python -m tests.simulation.mutants [name ...]
"""

from __future__ import annotations

import sys

from tests.simulation.mutants.catalogue import MUTANTS, WORLDS_MAX, catch
from tests.simulation.same_order import in_the_same_order


def main() -> int:
    """Print the table, in markdown; exit status 1 if a mutant was not caught."""
    missed = 0
    wanted = set(sys.argv[1:])
    sys.stdout.write("| mutant | breaks | caught by | worlds | kind of world |\n| --- | --- | --- | --- | --- |\n")
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        caught = catch(mutant)
        missed += caught is None
        found = f"{caught.failure.name} | {caught.worlds}" if caught is not None else f"nothing | {WORLDS_MAX}"
        sys.stdout.write(f"| {mutant.name} | {mutant.rule} | {found} | {mutant.recipe.name} |\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    in_the_same_order("tests.simulation.mutants")
    sys.exit(main())
