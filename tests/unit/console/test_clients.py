# SPDX-License-Identifier: Apache-2.0
"""Clients of the cluster: one for each identity, another one after a lost service, none of the console's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark.console.identity import ANONYMOUS, Identity
from tidemark.console.queries import clients
from tidemark.console.queries.clients import Clients
from tidemark.model import ErrorCode, TidemarkError

LOST = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no service answers")


class FakeClient:
    """A client that notes all its instances."""

    made: list[FakeClient]

    def __init__(self, bootstrap: str, *, timeout_s: float, tls: Any, token_file: Any) -> None:
        self.bootstrap, self.tls, self.token_file = bootstrap, tls, token_file
        self.closed = asyncio.Event()
        self.made.append(self)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.closed.set()


@pytest.fixture
def kind() -> Any:
    class OfThisTest(FakeClient):
        made: list[FakeClient] = []  # noqa: RUF012

    return OfThisTest


async def nothing(client: Any) -> Any:
    return client


async def lost(client: Any) -> Any:
    raise LOST


async def test_an_identity_has_one_client_with_its_token_and_no_certificate(kind: Any) -> None:
    opened = Clients("b:1", "ca.crt")
    alice, bob = Identity.of("alice"), Identity.of("bob")
    first = await opened.call(alice, kind, nothing)
    assert await opened.call(alice, kind, nothing) is first
    assert await opened.call(bob, kind, nothing) is not first
    assert (first.token_file(), first.tls.ca, first.tls.certificate, first.tls.key) == ("alice", "ca.crt", "", "")
    await opened.close()
    assert all(one.closed.is_set() for one in kind.made)


async def test_a_console_without_security_hands_on_neither_token_nor_files(kind: Any) -> None:
    opened = Clients("b:1")
    client = await opened.call(ANONYMOUS, kind, nothing)
    assert (client.tls, client.token_file) == (None, None)
    await opened.close()


async def test_a_lost_service_is_looked_up_again_and_calls_in_progress_end_first(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "CALL_TIMEOUT_S", 0.01)
    opened = Clients("b:1")
    with pytest.raises(TidemarkError):
        await opened.call(ANONYMOUS, kind, lost)
    (first,) = kind.made
    assert not first.closed.is_set()
    assert await opened.call(ANONYMOUS, kind, nothing) is not first
    async with asyncio.timeout(5):
        await first.closed.wait()
    await opened.close()


async def test_a_stop_closes_the_clients_of_lost_services_too(kind: Any) -> None:
    opened = Clients("b:1")
    with pytest.raises(TidemarkError):
        await opened.call(ANONYMOUS, kind, lost)
    await opened.close()
    assert kind.made[0].closed.is_set()


async def test_idle_clients_are_closed(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Clients("b:1")
    await opened.call(ANONYMOUS, kind, nothing)
    await opened.close_idle()
    assert not kind.made[0].closed.is_set()
    monkeypatch.setattr(clients, "IDLE_S", -1.0)
    await opened.close_idle()
    assert kind.made[0].closed.is_set()


def test_an_identity_does_not_show_its_token() -> None:
    identity = Identity.of("a-secret")
    assert "a-secret" not in repr(identity)
    assert "a-secret" not in identity.key
