# SPDX-License-Identifier: Apache-2.0
"""The names of benchmarks: `make help` and `python -m bench` list the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.__main__ import main

MAKEFILE = (Path(__file__).resolve().parents[3] / "Makefile").read_text(encoding="utf-8")


def test_make_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    known = capsys.readouterr().err.strip().partition("benchmarks: ")[2].split(", ")
    listed = re.search(r"\| One benchmark: (.*)$", MAKEFILE, re.MULTILINE)
    assert listed is not None
    assert sorted(re.split(r", | or ", listed[1])) == sorted(known)
