# SPDX-License-Identifier: Apache-2.0
"""Channels that follow changed TLS files and restarted servers.

A channel of gRPC keeps its first credentials. After a lost connection, it first connects to the address that it
resolved when the connection was lost: the address of a pod before its restart. `ReopeningChannel` therefore opens
another channel in both cases. New calls use the new channel, and the old one is closed after the last of its calls.
Streams are not interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, cast

import grpc

from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration
from tidemark.rpc.security.token_source import TokenSource, call_credentials

if TYPE_CHECKING:
    from tidemark.rpc.security.files import Material, TlsIdentity

Open = Callable[[grpc.ChannelCredentials | None], grpc.aio.Channel]
_METHODS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def channel_credentials(material: Material, token: TokenSource | None = None) -> grpc.ChannelCredentials:
    """Credentials of a channel, whose calls send the newest token, if any."""
    tls = grpc.ssl_channel_credentials(material.ca, material.key or None, material.certificate or None)
    return tls if token is None else grpc.composite_channel_credentials(tls, call_credentials(token))


class _Generation:
    """A channel of gRPC, with the number of its unfinished calls."""

    def __init__(self, fingerprint: str, channel: grpc.aio.Channel) -> None:
        self.fingerprint = fingerprint
        self.channel = channel
        self.calls = 0
        self.retired = False


class ReopeningChannel:
    """Has the methods of `grpc.aio.Channel` that Tidemark uses; used on one event loop.

    Args:
        identity: the files; None: plain text.
        open_with: opens a channel to the address.
    """

    def __init__(self, identity: TlsIdentity | None, open_with: Open) -> None:
        self._identity = identity
        self._open_with = open_with
        self._current: _Generation | None = None
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._retired: set[_Generation] = set()

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)

        def method(*arguments: Any, **options: Any) -> Callable[..., Any]:
            return _Method(self, name, arguments, options)

        return method

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close all channels; running calls get `grace` seconds."""
        self._closed = True
        channels = [*self._retired, *([self._current] if self._current else [])]
        self._retired.clear()
        self._current = None
        for one in channels:
            await one.channel.close(grace)
        await asyncio.gather(*self._closing)

    def generation(self) -> _Generation:
        """The channel with the newest files, after the last `reopen`; after `close`, raises UsageError."""
        if self._closed:
            raise grpc.aio.UsageError("the channel is closed")
        material = None if self._identity is None else self._identity.current()
        fingerprint = "" if material is None else material.fingerprint
        if self._current is not None and self._current.fingerprint != fingerprint:
            self.reopen()
        if self._current is None:
            self._current = _Generation(fingerprint, self._open_with(self._credentials(material)))
        return self._current

    def reopen(self) -> None:
        """Open another channel at the next call; running calls keep theirs."""
        current, self._current = self._current, None
        if current is not None:
            self._retire(current)

    def _credentials(self, material: Material | None) -> grpc.ChannelCredentials | None:
        if self._identity is None or material is None:
            return None
        return channel_credentials(material, self._identity.token)

    def ended(self, generation: _Generation) -> None:
        """Count the end of a call."""
        generation.calls -= 1
        if generation.retired and not generation.calls and generation in self._retired:
            self._close(generation)

    def _retire(self, generation: _Generation) -> None:
        generation.retired = True
        self._retired.add(generation)
        if not generation.calls:
            self._close(generation)

    def _close(self, generation: _Generation) -> None:
        self._retired.discard(generation)
        closing = asyncio.get_running_loop().create_task(generation.channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Method:
    """A method of a stub: each call goes through the newest channel."""

    def __init__(self, owner: ReopeningChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._owner = owner
        self._kind = kind
        self._arguments = arguments
        self._options = options
        self._generation: _Generation | None = None
        self._inner: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        generation = self._owner.generation()
        if generation is not self._generation or self._inner is None:
            self._inner = getattr(generation.channel, self._kind)(*self._arguments, **self._options)
            self._generation = generation
        call = self._inner(*arguments, **options)
        generation.calls += 1
        call.add_done_callback(lambda _: self._owner.ended(generation))
        return call


class RestartedBrokers:
    """The highest epoch of each broker at its address. Another broker, or another cluster, may get the address."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, BrokerId, str], BrokerEpoch] = {}

    def since_last(self, cluster_id: str, live: Iterable[BrokerRegistration]) -> list[str]:
        """Note the live brokers; returns the addresses of those that have restarted since the last call.

        A broker has restarted if its epoch is higher than the known one; an epoch of stale metadata is lower.
        """
        restarted = []
        for broker in live:
            key, epoch = (cluster_id, broker.broker_id, broker.address), broker.broker_epoch
            known = self._epochs.get(key, epoch)
            if epoch > known:
                restarted.append(broker.address)
            self._epochs[key] = max(known, epoch)
        return restarted


class _Opened:
    """A blocking channel of gRPC, with the number of its borrowers."""

    def __init__(self, fingerprint: str, channel: grpc.Channel) -> None:
        self.fingerprint = fingerprint
        self.channel = channel
        self.borrowers = 0


class BlockingChannels:
    """Blocking channels by address, each with the newest files. Safe for several threads.

    Args:
        identity: the files; None: plain text.
        options: gRPC's options of each channel.
    """

    def __init__(self, identity: TlsIdentity | None, options: tuple[tuple[str, int], ...]) -> None:
        self._identity = identity
        self._options = list(options)
        self._lock = threading.Lock()
        self._channels: dict[str, _Opened] = {}
        self._retired: set[_Opened] = set()
        """Former channels, each until its last borrower returns the channel."""
        self._restarted = RestartedBrokers()
        self._closed = False

    @contextlib.contextmanager
    def lent(self, address: str) -> Iterator[grpc.Channel]:
        """The channel to an address, which no change closes before the exit.

        Raises:
            ValueError: these channels are closed, as gRPC's calls on a closed channel.
        """
        with self._lock:
            found, unused = self._opened(address)
            found.borrowers += 1
        try:
            _close(unused)
            yield found.channel
        finally:
            with self._lock:
                found.borrowers -= 1
                unused = [found] if found in self._retired and not found.borrowers else []
                self._retired.difference_update(unused)
            _close(unused)

    def note(self, cluster_id: str, live: Iterable[BrokerRegistration]) -> None:
        """Resolve the names of restarted brokers again for the next call, as `AddressChannels.note` does."""
        with self._lock:
            restarted = self._restarted.since_last(cluster_id, live)
            unused = [one for address in restarted for one in self._retire(address)]
        _close(unused)

    def close(self) -> None:
        """Close all channels and their connections."""
        with self._lock:
            self._closed = True
            opened = [*self._channels.values(), *self._retired]
            self._retired.clear()
            self._channels.clear()
        _close(opened)

    def _opened(self, address: str) -> tuple[_Opened, list[_Opened]]:
        """The channel with the newest files, and channels to close."""
        if self._closed:
            raise ValueError("the channels are closed")
        material = None if self._identity is None else self._identity.current()
        fingerprint = "" if material is None else material.fingerprint
        known = self._channels.get(address)
        if known is not None and known.fingerprint == fingerprint:
            return known, []
        unused = self._retire(address)
        if material is None or self._identity is None:
            channel = grpc.insecure_channel(address, options=self._options)
        else:
            credentials = channel_credentials(material, self._identity.token)
            channel = grpc.secure_channel(address, credentials, options=self._options)
        found = self._channels[address] = _Opened(fingerprint, channel)
        return found, unused

    def _retire(self, address: str) -> list[_Opened]:
        """Open another channel at the next call; returns the former channel if it has no borrower."""
        known = self._channels.pop(address, None)
        if known is not None and known.borrowers:
            self._retired.add(known)
        return [] if known is None or known.borrowers else [known]


def _close(opened: Iterable[_Opened]) -> None:
    for one in opened:
        one.channel.close()


def reopening(identity: TlsIdentity | None, open_with: Open) -> grpc.aio.Channel:
    """A `ReopeningChannel`, with the type of the channel that it replaces."""
    return cast("grpc.aio.Channel", ReopeningChannel(identity, open_with))
