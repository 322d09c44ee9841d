# SPDX-License-Identifier: Apache-2.0
"""The signals that end a command as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable

import pytest
from tidemark.runtime.interrupts import interrupts_held, signals_as_interrupt

pytestmark = pytest.mark.usefixtures("usual_signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_and_the_former_handler_returns(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals_as_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_held_signal_interrupts_at_the_end(number: signal.Signals) -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), interrupts_held():  # noqa: PT012
        signal.raise_signal(number)
        done = True
    assert done


@pytest.mark.parametrize("held", [contextlib.nullcontext, interrupts_held])
def test_only_the_first_hangup_interrupts(held: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Regression: a closing terminal and its shell each send SIGHUP; the second one interrupted the graceful stop."""
    before = signal.getsignal(signal.SIGHUP)
    with signals_as_interrupt():
        with pytest.raises(KeyboardInterrupt), held():
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupt(), interrupts_held():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
