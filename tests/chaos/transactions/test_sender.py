# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.transactions import sender as of_sender
from tests.chaos.transactions.sender import SenderPlan, TransactionSender

TIMED_OUT = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no offset within 30 s")


class _Consumer:
    """A consumer whose first assignments are refused."""

    def __init__(self, refusals: int, assigned: Callable[[], None]) -> None:
        self.refusals = refusals
        self._assigned = assigned

    def __enter__(self) -> _Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def assign(self, _: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TIMED_OUT
        self._assigned()


@pytest.fixture
def sender(tmp_path: Path) -> TransactionSender:
    return TransactionSender(SenderPlan("unused:1", "t", 1, "tx", "tx-000", str(tmp_path / "journal")))


def with_clients(sender: TransactionSender, consumer: _Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_sender, "Consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(of_sender, "Producer", lambda *_, **__: consumer)
    monkeypatch.setattr(of_sender, "_PAUSE_S", 0.0)


def test_a_sender_assigns_again_if_no_broker_answered_in_time(
    sender: TransactionSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        sender.ended = True

    consumer = _Consumer(2, end)
    with_clients(sender, consumer, monkeypatch)
    sender.run()
    assert consumer.refusals == 0
    assert (tmp_path / "journal").read_text() == ""


def test_a_sender_gives_up_if_no_broker_answers_after_the_faults(
    sender: TransactionSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.ended = True
    with_clients(sender, _Consumer(1, lambda: None), monkeypatch)
    sender.run()
    assert '"failed"' in (tmp_path / "journal").read_text()
