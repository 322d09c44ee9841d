"""Who starts before ZooKeeper answers waits for it, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime import coordination


class Store:
    """Its start fails with these, one after the other, and then succeeds."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.started = False

    async def start(self) -> None:
        if self.codes:
            raise TidemarkError(self.codes.pop(0), "not yet")
        self.started = True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "_RETRY_S", 0.0)


async def test_it_is_tried_until_zookeeper_answers_and_said_each_time(caplog: pytest.LogCaptureFixture) -> None:
    store: Any = Store(*[ErrorCode.COORDINATION_UNAVAILABLE] * 3)
    await coordination.start_when_reachable(store)
    assert store.started
    assert [record.getMessage() for record in caplog.records] == ["waiting for ZooKeeper"] * 3


async def test_what_trying_again_does_not_mend_is_raised() -> None:
    store: Any = Store(ErrorCode.INVALID_CONFIG)
    with pytest.raises(TidemarkError, match="not yet"):
        await coordination.start_when_reachable(store)
    assert not store.started
