# SPDX-License-Identifier: Apache-2.0
"""`python -m bench NAME [FLAGS]` runs one benchmark; the last line of the output is its figures as JSON.

With `--save` the figures are also a file in bench/results, with the facts of the machine; `page` makes a page of all.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from bench.measuring.figures import RESULTS, SAVE

HERE = Path(__file__).resolve().parent
_SAVE_FLAG = "--save"


def main(arguments: list[str]) -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if path.name != "__main__.py")
    if not arguments or arguments[0] not in names:
        print(f"usage: python -m bench NAME; benchmarks: {', '.join(names)}", file=sys.stderr)
        return 2
    if _SAVE_FLAG in arguments:
        arguments = [one for one in arguments if one != _SAVE_FLAG]
        os.environ.setdefault(SAVE, str(RESULTS))
    # The benchmark gets its own arguments only.
    sys.argv = [str(HERE / f"{arguments[0]}.py"), *arguments[1:]]
    runpy.run_module(f"bench.{arguments[0]}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
