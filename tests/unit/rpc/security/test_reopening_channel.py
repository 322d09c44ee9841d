# SPDX-License-Identifier: Apache-2.0
"""Channels after a change of the TLS files or a restart: new calls use the new channel, others keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration
from tidemark.rpc.channel import CHANNEL_OPTIONS
from tidemark.rpc.security import files as tls
from tidemark.rpc.security.channels import BlockingChannels, ReopeningChannel, RestartedBrokers
from tidemark.rpc.security.files import TlsIdentity

from tests.channels import opened

ADDRESS = "127.0.0.1:1"


class FakeCall:
    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class FakeChannel:
    def __init__(self) -> None:
        self.closed = False
        self.made: list[str] = []

    def unary_unary(self, path: str, **_: Any) -> Callable[..., FakeCall]:
        self.made.append(path)
        return lambda *_, **__: FakeCall()

    async def close(self, grace: float | None = None) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def at_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_CHECK_S", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path, "shop")


def reissued(authority: Authority) -> TlsIdentity:
    return TlsIdentity(authority.issue_service(Role.BROKER, "3", ["127.0.0.1"]))


def opener(opened: list[FakeChannel]) -> Callable[[Any], Any]:
    def open_with(_: Any) -> FakeChannel:
        opened.append(FakeChannel())
        return opened[-1]

    return open_with


async def test_a_channel_is_opened_again_at_the_next_call() -> None:
    opened: list[FakeChannel] = []
    channel = ReopeningChannel(None, opener(opened))
    channel.reopen()
    method = channel.unary_unary("/a/B")
    first, second = method(), method()
    first.end()
    method().end()
    assert len(opened) == 1
    channel.reopen()
    assert len(opened) == 1, "no call needs another channel yet"
    method()
    method()
    await asyncio.sleep(0)
    assert len(opened) == 2
    assert not opened[0].closed, "a call is running"
    second.end()
    await asyncio.sleep(0)
    assert opened[0].closed
    await channel.close()
    with pytest.raises(grpc.aio.UsageError, match="closed"):
        method()


async def test_a_replaced_channel_closes_after_the_last_of_its_calls(authority: Authority) -> None:
    opened: list[FakeChannel] = []
    identity = reissued(authority)
    channel = ReopeningChannel(identity, opener(opened))
    method = channel.unary_unary("/a/B")
    running, ended = method(), method()
    ended.end()
    assert len(opened) == 1
    assert opened[0].made == ["/a/B"], "one method of gRPC serves all calls"
    reissued(authority)
    method().end()
    assert len(opened) == 2
    await asyncio.sleep(0)
    assert not opened[0].closed, "a call is running"
    running.end()
    await asyncio.sleep(0)
    assert opened[0].closed
    assert not opened[1].closed
    await channel.close()
    assert opened[1].closed


async def test_an_unused_channel_closes_at_once_after_a_change(authority: Authority) -> None:
    opened: list[FakeChannel] = []
    channel = ReopeningChannel(reissued(authority), opener(opened))
    method = channel.unary_unary("/a/B")
    method().end()
    reissued(authority)
    method()
    await asyncio.sleep(0)
    assert [one.closed for one in opened] == [True, False]
    reissued(authority)
    method()
    await channel.close()
    assert all(one.closed for one in opened), "close ends running calls too"


def is_closed(channel: grpc.Channel) -> bool:
    try:
        channel.unary_unary("/a/B")(b"", timeout=0)
    except ValueError:
        return True
    except grpc.RpcError:
        return False
    raise AssertionError("no server answers")


def test_a_blocking_channel_is_closed_when_its_files_have_changed(authority: Authority) -> None:
    channels = BlockingChannels(reissued(authority), CHANNEL_OPTIONS)
    first = opened(channels, ADDRESS)
    assert opened(channels, ADDRESS) is first
    assert not is_closed(first)
    reissued(authority)
    second = opened(channels, ADDRESS)
    assert second is not first
    assert is_closed(first)
    channels.close()
    assert is_closed(second)
    with pytest.raises(ValueError, match="closed"):
        opened(channels, ADDRESS)


def test_a_lent_blocking_channel_stays_open_through_every_change(authority: Authority) -> None:
    """A call of a blocking client may last longer than the time between two restarts of a broker."""
    channels = BlockingChannels(reissued(authority), CHANNEL_OPTIONS)
    with channels.lent(ADDRESS) as first:
        with channels.lent(ADDRESS):
            for _ in range(3):
                reissued(authority)
                assert opened(channels, ADDRESS) is not first
        assert not is_closed(first), "of two borrowers, one is left"
    assert is_closed(first)
    with channels.lent(ADDRESS) as last:
        reissued(authority)
        opened(channels, ADDRESS)
        channels.close()
        assert is_closed(last), "a close ends running calls too"


def test_blocking_channels_open_another_channel_after_a_restart_of_the_broker_only() -> None:
    channels = BlockingChannels(None, CHANNEL_OPTIONS)
    broker = BrokerRegistration(BrokerId(0), "127.0.0.1", 1, BrokerEpoch(7))
    channels.note("c", [broker])
    first = opened(channels, ADDRESS)
    channels.note("c", [broker, replace(broker, port=2, broker_epoch=BrokerEpoch(9))])
    assert opened(channels, ADDRESS) is first
    channels.note("c", [replace(broker, broker_epoch=BrokerEpoch(8))])
    assert is_closed(first)
    second = opened(channels, ADDRESS)
    channels.note("c", [broker])  # from a broker that is behind
    assert opened(channels, ADDRESS) is second
    channels.close()


def test_a_broker_of_the_same_epoch_has_not_restarted_when_it_is_live_again() -> None:
    """A channel to a broker that lives keeps its address, since name servers may not answer."""
    broker, restarted = BrokerRegistration(BrokerId(0), "h", 1, BrokerEpoch(7)), RestartedBrokers()
    assert [restarted.since_last("c", live) for live in ([broker], [], [broker])] == [[], [], []]
    assert restarted.since_last("c", [replace(broker, broker_epoch=BrokerEpoch(8))]) == ["h:1"]
