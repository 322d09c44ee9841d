# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the controller's core, on a small cluster: every state of a failed broker is written."""

from __future__ import annotations

import pytest
from tidemark.model import BrokerId

from bench.jobs import controller_core as benchmark


def test_each_state_of_a_failed_broker_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "BROKERS", 10)
    monkeypatch.setattr(benchmark, "TOPICS", 2)
    monkeypatch.setattr(benchmark, "TOPIC_PARTITIONS", 100)
    assert benchmark.World().fail(BrokerId(3)) > 0
