# SPDX-License-Identifier: Apache-2.0
"""Times at which a watch of connections looks and rests, and its end at any moment of a wait."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from tidemark.rpc.limits import watch as watching
from tidemark.rpc.limits.connections import ConnectionLimits
from tidemark.rpc.limits.sockets import Peer
from tidemark.rpc.limits.watch import ConnectionWatch

from tests.turns import turns

MOMENTS = 8
"""More turns of the loop than between an attempt to connect and the end of the wait for it."""


@pytest.mark.parametrize("moment", range(MOMENTS))
async def test_a_watch_stops_also_while_an_attempt_to_connect_wakes_it(moment: int) -> None:
    watch = ConnectionWatch(ConnectionLimits(), frozenset)
    watch.start()
    await turns(MOMENTS)  # the first look is over, and the watch waits
    watch._wake.set()
    await turns(moment)
    stopping = asyncio.create_task(watch.stop())
    done, _ = await asyncio.wait([stopping], timeout=5)
    if not done and watch._task is not None:
        watch._task.cancel()
    assert done, "the watch missed its cancellation"


@contextlib.asynccontextmanager
async def resting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ConnectionWatch, socket.socket]]:
    """A watch of one port that has looked, and rests unless something happens; with the listening socket."""
    monkeypatch.setattr(watching, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(watching, "_QUIET_INTERVAL_S", 3_600.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watch = ConnectionWatch(ConnectionLimits(), lambda: frozenset({port}))
        watch.start()
        await rests(watch)
        yield watch, server
        await watch.stop()


async def rests(watch: ConnectionWatch) -> None:
    """Wait until no look comes for a hundred times the interval of a busy watch."""
    looks = -1
    while looks != watch.connections._looks:
        looks = watch.connections._looks
        for _ in range(100):
            await asyncio.sleep(0.001)


async def looks_again(watch: ConnectionWatch) -> None:
    """Wait for a look that begins now or later."""
    looks = watch.connections._looks
    async with asyncio.timeout(60):
        while watch.connections._looks == looks:  # noqa: ASYNC110 - the watch acts in its own time
            await asyncio.sleep(0.001)


async def test_a_connection_ends_the_rest_of_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with resting(monkeypatch) as (watch, server):
        with socket.create_connection(server.getsockname()):
            await looks_again(watch)
            accepted, _ = server.accept()
            with accepted:
                async with asyncio.timeout(60):
                    while not len(watch.connections):  # noqa: ASYNC110 - the watch acts in its own time
                        await asyncio.sleep(0.001)
                await rests(watch)


async def test_calls_that_can_hold_more_than_the_limits_end_the_rest_of_a_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with resting(monkeypatch) as (watch, server):
        connections = watch.connections
        connection = connections.of(Peer(server.getsockname()[1], "10.0.0.7", 4711))
        calls = 0
        while not connections.can_exceed:
            connections.call_began(connection, 100)
            calls += 1
        assert calls * (20 << 20) > ConnectionLimits().connection_bytes >= (calls - 1) * (20 << 20)
        await looks_again(watch)
        await looks_again(watch)
        for _ in range(calls):
            connections.call_is_over(connection)
        await rests(watch)
        assert not connections.can_exceed


async def test_a_call_that_a_client_ends_ends_the_rest_of_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with resting(monkeypatch) as (watch, server):
        connections = watch.connections
        connections.abandoned(connections.of(Peer(server.getsockname()[1], "10.0.0.7", 4711)))
        await looks_again(watch)
        await rests(watch)


async def test_the_rest_of_a_watch_is_over_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with resting(monkeypatch) as (watch, server):
        connections = watch.connections
        connections.abandoned(connections.of(Peer(server.getsockname()[1], "10.0.0.7", 4711)))
        monkeypatch.setattr(watching, "_QUIET_INTERVAL_S", 0.05)
        for _ in range(3):
            await looks_again(watch)
            assert not connections.can_exceed
