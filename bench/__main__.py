# SPDX-License-Identifier: Apache-2.0
"""`python -m bench NAME [FLAGS]` runs one benchmark; the last line of the output is its figures as JSON. `--help` after
the name prints its description and flags.

With `--save` the figures are also a file in bench/results, with the facts of the machine; `page` makes a page of all.
Benchmarks measure Tidemark as pip installs it: with C extensions if there is a C compiler. TIDEMARK_COMPILE=0: without.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tidemark.runtime.interrupts import signals_as_interrupt

from bench.measuring.figures import RESULTS, SAVE
from deploy.tools import compiled

HERE = Path(__file__).resolve().parent
_SAVE_FLAG = "--save"
_WITHOUT_EXTENSIONS = "0"
_MEASURING_NOTHING = frozenset({"page", "regress"})
"""`regress` installs both commits itself."""
_HELP_FLAGS = frozenset({"-h", "--help"})


def main(arguments: list[str]) -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if path.name != "__main__.py")
    if not arguments or arguments[0] not in names:
        print(f"usage: python -m bench NAME; benchmarks: {', '.join(names)}", file=sys.stderr)
        return 2
    measures = arguments[0] not in _MEASURING_NOTHING and _HELP_FLAGS.isdisjoint(arguments)
    if measures and os.environ.get(compiled.SETTING) != _WITHOUT_EXTENSIONS:
        _start_again_with_extensions(arguments)
    if _SAVE_FLAG in arguments:
        arguments = [one for one in arguments if one != _SAVE_FLAG]
        os.environ.setdefault(SAVE, str(RESULTS))
    # The benchmark gets its own arguments only.
    sys.argv = [str(HERE / f"{arguments[0]}.py"), *arguments[1:]]
    with signals_as_interrupt():  # an ended benchmark ends its services and its peer, too
        runpy.run_module(f"bench.{arguments[0]}", run_name="__main__")
    return 0


def _start_again_with_extensions(arguments: list[str]) -> None:
    """Replace this process by one that finds the extensions first, as do its children; return if there are none."""
    target = HERE.parent / "build" / "bench"
    reason = compiled.missing()
    try:
        count = 0 if reason else len(compiled.build(target))
    except RuntimeError as error:
        reason = str(error)
    if reason:
        print(f"without C extensions: {reason}", file=sys.stderr)
        return
    print(f"with {count} C extensions; TIDEMARK_COMPILE=0 measures pure Python", file=sys.stderr)
    paths = os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths, compiled.SETTING: _WITHOUT_EXTENSIONS}
    os.execve(sys.executable, [sys.executable, "-m", "bench", *arguments], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
