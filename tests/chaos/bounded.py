# SPDX-License-Identifier: Apache-2.0
"""A block that ends in a bounded time, or this process ends with evidence."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bounded(limit_s: float, name: str, directory: Path) -> Iterator[None]:
    """End this process, and with it every process that it has started, if the block takes longer.

    The evidence is `directory`, where stacks.txt then says what each thread waited for.
    """

    def end() -> None:
        with (directory / "stacks.txt").open("w") as stacks:
            faulthandler.dump_traceback(stacks)
        sys.stdout.write(
            f"{name}: WRONG: the round did not end within {limit_s:.0f} s\n"
            f"the evidence is in {directory}; stacks.txt has what each thread waited for\n"
        )
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
