# SPDX-License-Identifier: Apache-2.0
"""The same order of sets of partitions in every run: a seed fixes its world only under a fixed `PYTHONHASHSEED`."""

from __future__ import annotations

import os
import sys


def in_the_same_order(module: str) -> None:
    """Start this module again under `PYTHONHASHSEED=0`, unless the process has that setting."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
