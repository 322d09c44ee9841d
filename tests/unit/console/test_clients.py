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

from tests.turns import turns

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


async def denied(client: Any) -> Any:
    raise TidemarkError(ErrorCode.AUTHENTICATION_FAILED, "the token is unknown")


async def test_tokens_that_the_cluster_has_not_accepted_have_few_clients_at_a_time_which_end_at_once(kind: Any) -> None:
    most, going_on = 0, asyncio.Event()

    async def slowly_denied(client: Any) -> Any:
        nonlocal most
        most = max(most, sum(not one.closed.is_set() for one in kind.made))
        await going_on.wait()
        await denied(client)

    opened = Clients("b:1", "ca.crt")
    alice = Identity.of("alice")
    first = await opened.call(alice, kind, nothing)
    newcomers = [asyncio.create_task(opened.call(Identity.of(str(one)), kind, slowly_denied)) for one in range(100)]
    await turns(10)
    assert await opened.call(alice, kind, nothing) is first, "an accepted user does not wait for newcomers"
    going_on.set()
    refusals = await asyncio.gather(*newcomers, return_exceptions=True)
    assert all(isinstance(one, TidemarkError) for one in refusals)
    assert most <= 1 + clients.UNKNOWN_MAX
    assert [one for one in kind.made if not one.closed.is_set()] == [first]
    assert len(opened._opened) == 1
    await opened.close()


async def test_a_start_that_the_cluster_refuses_leaves_no_trace(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "start", denied)
    opened = Clients("b:1", "ca.crt")
    calls = [opened.call(Identity.of("x"), kind, nothing) for _ in range(3)]
    refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, TidemarkError) for one in refusals)
    assert all(one.closed.is_set() for one in kind.made)
    assert not opened._opened


async def test_a_user_whose_token_expires_waits_with_the_newcomers_again(kind: Any) -> None:
    opened = Clients("b:1", "ca.crt")
    alice = Identity.of("alice")
    first = await opened.call(alice, kind, nothing)
    with pytest.raises(TidemarkError):
        await opened.call(alice, kind, denied)
    assert first.closed.is_set()
    assert alice.key not in opened._accepted


async def test_a_client_with_a_call_in_progress_is_never_closed_as_idle(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "IDLE_S", -1.0)
    opened, going_on = Clients("b:1"), asyncio.Event()

    async def wait(client: Any) -> Any:
        await going_on.wait()

    call = asyncio.create_task(opened.call(ANONYMOUS, kind, wait))
    await turns(5)
    await opened.close_idle()
    assert not kind.made[0].closed.is_set()
    going_on.set()
    await call
    await opened.close()


def test_an_identity_does_not_show_its_token() -> None:
    identity = Identity.of("a-secret")
    assert "a-secret" not in repr(identity)
    assert "a-secret" not in identity.key
