# SPDX-License-Identifier: Apache-2.0
"""The log line of a client that no broker has answered, as a command shows it."""

from __future__ import annotations

import logging

import pytest
from tidemark.cli.common.process import show_silence
from tidemark.client.metadata.silence import LOGGER


def test_a_command_that_asks_again_and_again_says_once_that_no_broker_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cluster create` and `safe-to-restart --wait` connect until their time has passed."""
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "handlers", [])
    show_silence()
    for left_s in (8, 2):
        logger.warning("no broker answers; trying again for %d s", left_s)
    assert capsys.readouterr().err == "warning: no broker answers; trying again for 8 s\n"
