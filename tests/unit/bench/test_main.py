# SPDX-License-Identifier: Apache-2.0
"""`python -m bench NAME` itself."""

from __future__ import annotations

import os
import runpy
import signal
import sys

import pytest

from bench.__main__ import HERE, main
from deploy.tools import compiled


def test_a_benchmark_that_gets_sigterm_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: Kafka's brokers stayed, and the next benchmark's could not start."""
    ended = []

    def benchmark(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            ended.append("peer")

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # otherwise a failure would end the test's process
    monkeypatch.setattr(runpy, "run_module", benchmark)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv(compiled.SETTING, "0")
    try:
        with pytest.raises(KeyboardInterrupt):
            main(["latency"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == ["peer"]


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("[a-z]*.py")))
def test_help_prints_the_description_of_a_benchmark_and_runs_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(os, "execve", None)
    monkeypatch.delenv(compiled.SETTING, raising=False)
    monkeypatch.delitem(sys.modules, f"bench.{name}", raising=False)  # as imported by another test
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m bench {name} ")
    assert len(shown.split("\n\n")) > 2, "a description precedes the flags"
