# SPDX-License-Identifier: Apache-2.0
"""Channels to Tidemark's services: message limits, keepalive and quick reconnection."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc

from tidemark.core.security.listeners import Listener
from tidemark.model import BrokerRegistration, invalid_request
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.security.channels import BlockingChannels, ReopeningChannel, RestartedBrokers, reopening

if TYPE_CHECKING:
    from tidemark.rpc.security.files import TlsIdentity

MESSAGE_BYTES_MAX = 16 << 20
"""gRPC's limit in both directions; Tidemark splits its own messages at half of it."""
SPLIT_BYTES = 8 << 20

LIMITS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
WINDOW: tuple[tuple[str, int], ...] = (("grpc.http2.lookahead_bytes", 4 << 20),)
"""Bytes that a receiver lets its peer send ahead. gRPC starts with 64 KiB and grows slowly: a batch would be sent in
pieces, each waiting for the window. Measured: four times the throughput of 1 MiB fetches."""
_CONNECT_MS: int = 2_500
"""Time limit of a connection attempt with HTTP/2's first frame, despite gRPC's name for it. A smaller value than a
network round trip, or than a delay on a busy machine, would fail every call to a healthy server. On two cores with a
load of 60, the first frame of a local server takes up to 0.6 s."""
_RESOLVE_AGAIN_MS: int = 1_000
"""A name may resolve to another address after a restart of its server, such as a pod. gRPC's default of 30 s between
two resolutions would make a restarted broker unreachable for that time.
"""
KEEPALIVE_MS: int = 5_500
"""Only these pings show a waiting stream that the other machine is unreachable; gRPC stops after two of them without
other traffic. Servers accept one every `server.PING_ACCEPTED_MS`."""
_SILENCE_MS: int = 2_500
"""A connection is closed after this time without an answer to a ping, or without TCP acknowledgements. If only the
keepalive's timeout is set, gRPC waits a minute for the answer to a ping."""
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
_identity: TlsIdentity | None = None
_listener = Listener.ONLY


def use_identity(identity: TlsIdentity | None, listener: Listener = Listener.ONLY) -> None:
    """Set the TLS files of this process: of every channel that is opened without a separate identity.

    Args:
        identity: the files; None: plain text.
        listener: the listener at which this service calls other services.
    """
    global _identity, _listener
    _identity, _listener = identity, listener


def listener_of_services() -> Listener:
    """The listener at which this process calls other services."""
    return _listener


def process_identity() -> TlsIdentity | None:
    """The TLS files of this process; None: plain text."""
    return _identity


def check_not_lost_by_fork() -> None:
    """Raises INVALID_REQUEST in a process that was forked from a process with a channel.

    gRPC's thread does not exist in the fork: every call would wait without end.
    """
    if _lost_by_fork:
        raise invalid_request(
            "this process was forked from a process that had used a client, and gRPC does not survive a fork. Start it "
            "with "
            "multiprocessing's spawn or forkserver, or make no client before the fork"
        )


def open_channel(
    address: str, identity: TlsIdentity | None = None, *, options: Sequence[tuple[str, int | str]] = ()
) -> grpc.aio.Channel:
    """A channel to host:port; connects at its first use, and again within 500 ms after a connection is lost.

    Args:
        address: address of the server.
        identity: the TLS files; None: the files of the process, or plain text if the process has none.
        options: more options of gRPC, or other values of `CHANNEL_OPTIONS`.

    Raises:
        TidemarkError: refusals of `check_not_lost_by_fork`.
    """
    global _used
    check_not_lost_by_fork()
    _used = True
    all_options = list({**dict(CHANNEL_OPTIONS), **dict(options)}.items())  # gRPC takes the first of two values

    def open_with(credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=all_options)
        return grpc.aio.secure_channel(address, credentials, options=all_options)

    return reopening(identity or _identity, open_with)


@contextlib.asynccontextmanager
async def channel_for_call(address: str, name: str = "") -> AsyncIterator[grpc.aio.Channel]:
    """A channel for one call; an RpcError of the call becomes a TidemarkError.

    Args:
        address: host:port of the server.
        name: the server in the error; "": its address.
    """
    try:
        async with open_channel(address) as channel:
            yield channel
    except grpc.RpcError as error:
        raise from_rpc_error(error, address=name or address) from error


def blocking_channels(identity: TlsIdentity | None = None) -> BlockingChannels:
    """Blocking channels by address; `identity` as in `open_channel`."""
    return BlockingChannels(identity or _identity, CHANNEL_OPTIONS)


class AddressChannels:
    """Channels to brokers by their addresses, opened at the first call; used on one event loop.

    Args:
        identity: as in `open_channel`.
    """

    def __init__(self, identity: TlsIdentity | None = None) -> None:
        self._identity = identity
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._restarted = RestartedBrokers()

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to this address."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._identity)
        return channel

    def note(self, cluster_id: str, live: Iterable[BrokerRegistration]) -> None:
        """Resolve the names of brokers that have restarted again for the next call: a pod then has another address.

        Without a restart a channel keeps its address: while a part of the network is lost, name servers may not answer.

        Args:
            live: all brokers of the metadata.
        """
        for address in self._restarted.since_last(cluster_id, live):
            if (channel := self._channels.get(address)) is not None:
                cast("ReopeningChannel", channel).reopen()

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = list(self._channels.values()), {}
        await close_channels(channels)


def _after_fork() -> None:
    global _lost_by_fork
    _lost_by_fork = _used
    if _used:
        gc.freeze()  # gRPC crashes if the parent's objects are collected here


os.register_at_fork(after_in_child=_after_fork)


async def close_channels(channels: Sequence[grpc.aio.Channel]) -> None:
    """Close channels, and return when gRPC has reported the end of every call on them.

    All event loops of a process share one queue of gRPC's completions. If an event loop is closed too early, its
    completions fail in another event loop, which logs a traceback. This function therefore makes a last call, which
    fails immediately: its completion is the last one in the queue.
    """
    for channel in channels:
        await channel.close()
    if not channels:
        return
    last = grpc.aio.insecure_channel("127.0.0.1:1")  # the call does not reach a server: no time is left to connect
    fail: Any = last.unary_unary("/tidemark.v1.None/None")
    with contextlib.suppress(grpc.RpcError):
        await fail(b"", timeout=0)
    await last.close()
