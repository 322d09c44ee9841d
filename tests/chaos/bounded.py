# SPDX-License-Identifier: Apache-2.0
"""A block that ends in a bounded time, or this process ends with evidence."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """The result of a run, as text; `findings` is empty if there are none."""

    findings: list[str]


def run_and_tell(run: Callable[[], object], report: Report, limit_s: float, name: str, directory: Path) -> int:
    """Run within a limit, and print the report; each error becomes a finding. The exit status is 1 with findings.

    The directory is deleted if there are no findings.
    """
    began_s = time.monotonic()
    with bounded(limit_s, name, directory):
        try:
            run()
        except Exception:  # noqa: BLE001 - each error is a finding
            report.findings.append(traceback.format_exc())
    sys.stdout.write(f"{name}: {report}\n  {time.monotonic() - began_s:.0f} s\n")
    if report.findings:
        sys.stdout.write(f"the evidence is in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


@contextmanager
def bounded(limit_s: float, name: str, directory: Path) -> Iterator[None]:
    """End this process, and with it every process that it has started, if the block takes longer.

    The evidence is `directory`; stacks.txt in it has the stack of each thread at that time.
    """

    def end() -> None:
        with (directory / "stacks.txt").open("w") as stacks:
            faulthandler.dump_traceback(stacks)
        sys.stdout.write(
            f"{name}: WRONG: the round did not end within {limit_s:.0f} s\n"
            f"the evidence is in {directory}; stacks.txt has the stack of each thread\n"
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
