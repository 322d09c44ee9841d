# SPDX-License-Identifier: Apache-2.0
"""A controller detects a broker that it cannot reach, with real sockets (rule C5)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import grpc
import pytest
from tidemark.controller.heartbeats import Heartbeats
from tidemark.core.controller.events import BrokerSuspected, ControllerEvent
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch


@contextlib.contextmanager
def dead_address() -> Iterator[int]:
    """A port of loopback whose packets are dropped: the queue of its connections is full, and no process accepts
    them.
    """
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listener.getsockname()[1]
        for _ in range(2):
            one = sockets.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield port


async def test_a_broker_that_takes_no_connection_is_suspected_after_one_short_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_ms = []
    opened = grpc.aio.insecure_channel

    def noted(address: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        limits_ms.append([value for name, value in options if name == "grpc.min_reconnect_backoff_ms"])
        return opened(address, options=options)

    monkeypatch.setattr("grpc.aio.insecure_channel", noted)
    heard: asyncio.Queue[ControllerEvent] = asyncio.Queue()
    watching = Heartbeats(BrokerId(100), ControllerEpoch(1), "c", heard.put_nowait, interval_ms=500, timeout_ms=30_000)
    with dead_address() as port:
        broker = BrokerRegistration(BrokerId(1), "127.0.0.1", port, BrokerEpoch(7))
        watching.follow({BrokerId(1): broker})
        try:
            async with asyncio.timeout(20):
                assert await heard.get() == BrokerSuspected(BrokerId(1), BrokerEpoch(7))
            assert limits_ms == [[1_000]]
        finally:
            await watching.stop()
