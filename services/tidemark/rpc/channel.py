# SPDX-License-Identifier: Apache-2.0
"""Channels to Tidemark's services: message limits, keepalive and quick reconnection."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Sequence
from typing import Any

import grpc

from tidemark.errors import ErrorCode, TidemarkError

MESSAGE_BYTES_MAX = 16 << 20
"""gRPC's limit both ways; our own messages are split at half of it."""
SPLIT_BYTES = 8 << 20

LIMITS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
WINDOW: tuple[tuple[str, int], ...] = (("grpc.http2.lookahead_bytes", 4 << 20),)
"""What a receiver lets its peer send ahead. gRPC begins with 64 KiB and raises that slowly: batches would go out in
pieces, each waiting for the window (measured: four times the throughput of 1 MiB fetches)."""
_CONNECT_MS: int = 1_000
"""What an attempt to connect may take, HTTP/2's first frame included, though gRPC names it otherwise: with less than a
round trip of the network, or a busy machine's moment, every first call to a server that is well would fail."""
_RESOLVE_AGAIN_MS: int = 1_000
"""A name may lead elsewhere when its server comes back, as a pod's does. gRPC asks for it again no sooner than after
30 s by itself: so long nobody would reach a broker that was restarted."""
KEEPALIVE_MS: int = 5_500
"""A stream that only waits for news finds out by these pings alone that the other machine is cut off; gRPC itself stops
after two of them where nothing else is said. Servers bear with one in `server.PING_ACCEPTED_MS`."""
_SILENCE_MS: int = 2_500
"""Without an answer to a ping, and without TCP's to anything, the connection is given up. gRPC waits a minute for the
former if only the keepalive's timeout is set."""
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *LIMITS,
    *WINDOW,
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _SILENCE_MS),
    ("grpc.http2.ping_timeout_ms", _SILENCE_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_AGAIN_MS),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


_used = False
_lost_by_fork = False


def check_not_lost_by_fork() -> None:
    """Refuse with INVALID_REQUEST in a process that was forked from one that had a channel.

    The thread that gRPC hears on is not there: every call would wait for ever.
    """
    if _lost_by_fork:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            "this process was forked from one that had used a client, and gRPC does not survive that: start it with "
            "multiprocessing's spawn or forkserver, or make no client before the fork",
        )


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to host:port; connects when it is first used, and again, within 500 ms, when it broke.

    Raises:
        TidemarkError: as `check_not_lost_by_fork`.
    """
    global _used
    check_not_lost_by_fork()
    _used = True
    return grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))


def _after_fork() -> None:
    global _lost_by_fork
    _lost_by_fork = _used
    if _used:
        gc.freeze()  # gRPC crashes where the parent's objects are collected here


os.register_at_fork(after_in_child=_after_fork)


async def close_channels(channels: Sequence[grpc.aio.Channel]) -> None:
    """Close them, and return when gRPC has told of the end of every call on them.

    One queue of completions serves all event loops of a process. What it tells a loop that is closed by then fails,
    with a traceback in the log of whichever loop took it off the queue. So a last call, which ends where it began, goes
    through the queue behind the others.
    """
    for channel in channels:
        await channel.close()
    if not channels:
        return
    last = open_channel("127.0.0.1:1")  # nobody is asked there: the call has no time to connect
    nothing: Any = last.unary_unary("/tidemark.v1.Nobody/Nothing")
    with contextlib.suppress(grpc.RpcError):
        await nothing(b"", timeout=0)
    await last.close()
