# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster create`: its calls after a pause of the process that was longer than the time left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.cli.cluster import commands
from tidemark.cli.cluster.commands import create
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code


def test_create_ends_with_its_timeout_after_a_pause_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the last call has a negative timeout, and the command reports an invalid request."""
    now_s = 0.0
    asked: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds + 100

    def connect(*, timeout_s: float) -> Any:
        asked.append(timeout_s)
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")

    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    with raises_code(ErrorCode.REQUEST_TIMED_OUT, "after 60 s: no broker answers"):
        create("0", timeout_s=60.0, cluster=cast(Any, SimpleNamespace(json=True, connect=connect)))
    assert len(asked) == 2
    assert min(asked) > 0
