# SPDX-License-Identifier: Apache-2.0
"""Asyncio producers that the application drops without a close: a warning, and a bounded flush at the exit.

The sender of a dropped producer sends the records on its event loop. A sender whose event loop ends sends them
before the loop is closed. Otherwise the records are lost: the sender logs their number.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from typing import Final

from tidemark.client.producing.sender import END_S, Sender

_NO_LOOP: Final = "its event loop did not run"
_NO_TIME: Final = "it could not send them in time"
_SLACK_S: Final = 1.0

_open: weakref.WeakSet[Sender] = weakref.WeakSet()
"""Senders of this process. Their producers or their event loops hold them: an ended sender keeps no connection open."""


def add(sender: Sender) -> None:
    """End this sender at the exit of the interpreter."""
    _open.add(sender)


def warn_and_end(sender: Sender) -> None:
    """The application dropped its last reference without a close: warn, and send the buffered records."""
    if sender.pid == os.getpid():
        _end(sender)
        advice = "an asyncio Producer was dropped without close(): use `async with Producer(...)`, or await close()"
        warnings.warn(advice, ResourceWarning, stacklevel=2)


def _end(sender: Sender) -> None:
    if sender.ended.is_set():
        return
    if sender.loop.is_running():
        sender.loop.call_soon_threadsafe(sender.end_soon)
    else:
        sender.fail_rest_and_log(_NO_LOOP)


@atexit.register
def _end_at_exit() -> None:
    """Wait for event loops on daemon threads; any other loop has ended before."""
    senders = list(_open)
    for sender in senders:
        _end(sender)
    until_s = time.monotonic() + END_S
    late = [sender for sender in senders if not sender.ended.wait(max(0.0, until_s - time.monotonic()))]
    for sender in late:
        sender.loop.call_soon_threadsafe(sender.fail_rest_and_log, _NO_TIME)
    for sender in late:
        sender.ended.wait(_SLACK_S)


def _after_fork() -> None:
    """Forget the senders in a forked child: the parent sends their records."""
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
