# SPDX-License-Identifier: Apache-2.0
"""A command keeps its time limit, even if no broker answers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.integration.cli.test_cli import refused, tidemark

GIVEN_S = 1.0
SLACK_S = 1.5
"""Time for a process to start and to end; on a busy machine, a late process is tried again."""
ATTEMPTS = 4


@pytest.fixture(params=[1, 4], ids=["one address", "four addresses"])
def silent(request: pytest.FixtureRequest) -> Iterator[str]:
    """Addresses that accept connections, and do not answer."""
    with contextlib.ExitStack() as sockets:
        listeners = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(request.param)]
        yield ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in listeners)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("consume", "any", "--timeout", str(GIVEN_S)), "REQUEST_TIMED_OUT"),
        (("consume", "any", "--group", "any", "--timeout", str(GIVEN_S)), "REQUEST_TIMED_OUT"),
        (("produce", "any", "--timeout", str(GIVEN_S)), "BROKER_NOT_AVAILABLE"),
        (("cluster", "safe-to-restart", "0", "--wait", str(GIVEN_S)), "BROKER_NOT_AVAILABLE"),
        (("cluster", "create", "--brokers", "0", "--timeout", str(GIVEN_S)), "REQUEST_TIMED_OUT"),
    ],
)
def test_a_command_ends_at_the_users_deadline_without_a_broker(silent: str, words: tuple[str, ...], code: str) -> None:
    took_s = []
    while not took_s or (took_s[-1] >= GIVEN_S + SLACK_S and len(took_s) < ATTEMPTS):
        began_s = time.monotonic()
        refused(tidemark(None, *words, "--bootstrap", silent), code)
        took_s.append(time.monotonic() - began_s)
    assert took_s[-1] < GIVEN_S + SLACK_S
