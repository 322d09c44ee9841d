# SPDX-License-Identifier: Apache-2.0
"""`python -m bench NAME` itself."""

from __future__ import annotations

import os
import runpy
import signal
import sys

import pytest

from bench.__main__ import main
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
