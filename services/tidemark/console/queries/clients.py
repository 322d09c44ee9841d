# SPDX-License-Identifier: Apache-2.0
"""Clients of the cluster with the identity of a user. The console itself has no identity."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar, cast

from tidemark.client.lifecycle import Lifecycle
from tidemark.console.identity import Identity
from tidemark.console.queries.shared import is_denial
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven

C = TypeVar("C", bound=Lifecycle)
C_co = TypeVar("C_co", bound=Lifecycle, covariant=True)
T = TypeVar("T")

CALL_TIMEOUT_S: Final = 5.0
IDLE_S: Final = 300.0
_IDENTITIES_MAX: Final = 1_000
UNKNOWN_MAX: Final = 8
_LOOK_AGAIN: Final = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.SHUTTING_DOWN, ErrorCode.CLIENT_CLOSED)
"""Errors after which the addresses are looked up again: another admin service may be at the address now."""


class ClientClass(Protocol[C_co]):
    """`AdminClient`, `Groups` and the other async clients that only need an address and an identity."""

    def __call__(
        self, bootstrap: str, *, timeout_s: float, tls: TlsFiles | None, token_file: TokenGiven | None
    ) -> C_co:
        """Make a client that is not started."""


class _Opened:
    """A started client, or one that is being started; `used_s`: time of the last call; `calls`: those in progress."""

    def __init__(self) -> None:
        self.client: Lifecycle | None = None
        self.starting = asyncio.Lock()
        self.used_s = time.monotonic()
        self.calls = 0


class Clients:
    """Opens a client for each identity and class at its first call, and closes it when it has been idle.

    Tokens that the cluster has not accepted have `UNKNOWN_MAX` calls at a time. A refused token has no client: anyone
    can send random tokens.

    Args:
        bootstrap: addresses of brokers.
        ca_file: the authorities of their certificates; "": plain text, and no identity.
    """

    def __init__(self, bootstrap: str, ca_file: str = "") -> None:
        self._bootstrap = bootstrap
        self._tls = TlsFiles(ca=ca_file)
        self._opened: dict[tuple[str, Any], _Opened] = {}
        self._accepted: set[str] = set()
        self._unknown = asyncio.Semaphore(UNKNOWN_MAX)
        self._retired: dict[Lifecycle, asyncio.Task[None]] = {}

    @property
    def secure(self) -> bool:
        """Whether users need a token."""
        return self._tls.is_set

    async def call(self, identity: Identity, kind: ClientClass[C], ask: Callable[[C], Awaitable[T]]) -> T:
        """Ask the cluster with the rights of `identity`; raises TidemarkError."""
        async with contextlib.nullcontext() if self._is_accepted(identity) else self._unknown:
            opened = self._opened.setdefault((identity.key, kind), _Opened())
            opened.used_s = time.monotonic()
            opened.calls += 1
            try:
                answer = await self._ask(opened, identity, kind, ask)
            finally:
                opened.calls -= 1
                if not opened.calls and opened.client is None:
                    self._opened.pop((identity.key, kind), None)
            self._accepted.add(identity.key)
            return answer

    def _is_accepted(self, identity: Identity) -> bool:
        return not identity.token or identity.key in self._accepted

    async def _ask(
        self, opened: _Opened, identity: Identity, kind: ClientClass[C], ask: Callable[[C], Awaitable[T]]
    ) -> T:
        async with opened.starting:
            if opened.client is None:
                opened.client = await self._start(identity, kind)
            client = opened.client
        try:
            return await ask(cast("C", client))
        except TidemarkError as error:
            if error.code is ErrorCode.AUTHENTICATION_FAILED:
                self._accepted.discard(identity.key)
            elif is_denial(error):
                self._accepted.add(identity.key)
            is_newcomer = not self._is_accepted(identity)
            if (is_newcomer or error.code in _LOOK_AGAIN) and opened.client is client:
                opened.client = None
                await self._leave(client, at_once=is_newcomer and opened.calls == 1)
            raise

    async def close_idle(self) -> None:
        """Close clients without a call for `IDLE_S`, and the oldest beyond the limit."""
        oldest = sorted(self._opened, key=lambda key: self._opened[key].used_s)
        surplus = max(0, len(oldest) - _IDENTITIES_MAX)
        now_s = time.monotonic()
        for position, key in enumerate(oldest):
            found = self._opened.get(key)
            if found is not None and not found.calls and (position < surplus or now_s - found.used_s > IDLE_S):
                del self._opened[key]
                await self._close(found)
        self._accepted &= {identity for identity, _ in self._opened}

    async def close(self) -> None:
        """Close all clients, open and retired."""
        while self._retired:
            client, closing = self._retired.popitem()
            closing.cancel()
            await client.close()
        while self._opened:
            await self._close(self._opened.popitem()[1])

    async def _leave(self, client: Lifecycle, *, at_once: bool) -> None:
        """Close a client after the last of its calls: a closed channel would cancel them."""
        if at_once:
            await client.close()
            return
        self._retired[client] = asyncio.create_task(self._close_later(client), name="retired client")

    async def _close_later(self, client: Lifecycle) -> None:
        await asyncio.sleep(CALL_TIMEOUT_S)
        if self._retired.pop(client, None) is not None:
            await client.close()

    async def _start(self, identity: Identity, kind: ClientClass[C]) -> C:
        token = (lambda: identity.token) if identity.token else None
        tls = self._tls if self._tls.is_set else None
        client = kind(self._bootstrap, timeout_s=CALL_TIMEOUT_S, tls=tls, token_file=token)
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        return client

    async def _close(self, opened: _Opened) -> None:
        if opened.client is not None:
            with contextlib.suppress(TidemarkError):
                await opened.client.close()
