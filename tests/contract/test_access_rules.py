# SPDX-License-Identifier: Apache-2.0
"""Access rules: the real store over a real ZooKeeper, and the fake one."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from typing import Any

import pytest
from tidemark.core.security.acls import CLUSTER, Acl, Operation, Pattern, Permission, ResourceType, topic
from tidemark.core.security.authorizer import Authorizer
from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import StoreEvent
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.metrics import Metrics
from tidemark.zookeeper import paths
from tidemark.zookeeper.feeds import AclFeed
from tidemark.zookeeper.whole_nodes import acls as node
from tidemark.zookeeper.whole_nodes import packed
from tidemark.zookeeper.whole_nodes.acls import decode, encode

from tests.contract.conftest import OUTAGE_SESSION_MS, Cluster, Ear
from tests.refusals import raises_code

SOON_S = 20
READ = Acl(ResourceType.TOPIC, Pattern.LITERAL, "orders", "User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = READ._replace(operation=Operation.WRITE)


def failed(error: BaseException) -> None:
    raise error


class Fed:
    """An authorizer with its feed."""

    def __init__(self, store: object) -> None:
        self.authorizer = Authorizer(["User:root"])
        self.changes: asyncio.Queue[int] = asyncio.Queue()
        self.feed = AclFeed(
            self.authorizer,
            store,  # type: ignore[arg-type]
            SystemClock(),
            failed,
            lambda: self.changes.put_nowait(self.authorizer.generation),
        )

    def may(self, operation: Operation) -> bool:
        return self.authorizer.decide("User:alice", "::1", operation, topic("orders")).allowed

    async def next_change(self) -> int:
        async with asyncio.timeout(SOON_S):
            return await self.changes.get()

    async def until_stale(self) -> None:
        async with asyncio.timeout(SOON_S):
            while self.feed.age_s() == 0:  # noqa: ASYNC110 - the age is not an event
                await asyncio.sleep(0.01)

    async def until_newest(self) -> None:
        async with asyncio.timeout(SOON_S):
            while self.feed.age_s() > 0:  # noqa: ASYNC110 - the age is not an event
                await asyncio.sleep(0.01)


async def test_one_of_two_changes_of_the_same_rules_is_written(cluster: Cluster) -> None:
    first, second = await cluster.store(), await cluster.store()
    assert (await first.acls()).acls == ()
    written = await asyncio.gather(first.write_acls([READ], version=-1), second.write_acls([WRITE], version=-1))
    assert sorted(written) == [False, True]
    found = await first.acls()
    assert (found.acls, found.generation) == (((READ if written[0] else WRITE),), 0)
    assert not await second.write_acls([], version=7)
    assert await second.write_acls([WRITE, READ, READ], version=0)
    found = await first.acls()
    assert (found.acls, found.generation) == (tuple(sorted([READ, WRITE])), 1)


async def test_another_thread_encodes_and_decodes_the_rules(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = []
    for work in (encode, decode):

        def noted(*given: Any, work: Any = work) -> Any:
            on_loop.append((work.__name__, threading.current_thread() is threading.main_thread()))
            return work(*given)

        monkeypatch.setattr(node, work.__name__, noted)
    store = await cluster.store()
    assert await store.write_acls([READ], version=-1)
    assert (await store.acls()).acls == (READ,)
    assert on_loop == [("encode", False), ("decode", False)]


async def test_a_watch_reports_the_first_rules_and_each_change(cluster: Cluster) -> None:
    watcher, writer = await cluster.store(), await cluster.store()
    ear = Ear(watcher)
    await watcher.acls(watch=True)
    await writer.write_acls([READ], version=-1)
    await ear.hears(StoreEvent.ACLS)
    assert (await watcher.acls(watch=True)).generation == 0
    await writer.write_acls([WRITE], version=0)
    await ear.hears(StoreEvent.ACLS)


async def test_changed_rules_take_effect_at_once_and_a_damaged_node_changes_nothing(cluster: Cluster) -> None:
    store, writer = await cluster.store(), await cluster.store()
    fed = Fed(store)
    await fed.feed.start()
    assert await fed.next_change() == -1
    assert not fed.may(Operation.READ)
    await writer.write_acls([READ], version=-1)
    assert await fed.next_change() == 0
    assert fed.may(Operation.READ)
    await fed.until_newest()
    await cluster.corrupt(paths.ACLS, b"no gzip")
    await fed.until_stale()
    assert fed.may(Operation.READ)
    with pytest.raises(TidemarkError, match="not a whole gzip file"):
        await writer.acls()
    await writer.write_acls([WRITE], version=1)
    assert await fed.next_change() == 2
    assert not fed.may(Operation.READ)
    await fed.until_newest()
    await fed.feed.stop()


async def test_a_damaged_node_at_the_start_leaves_the_authorizer_not_ready(cluster: Cluster) -> None:
    store, writer = await cluster.store(), await cluster.store()
    await writer.write_acls([READ], version=-1)
    await cluster.corrupt(paths.ACLS, gzip.compress(b'{"version":1,"acls":[["TOPIC"]]}'))
    fed = Fed(store)
    await fed.feed.start()
    with raises_code(ErrorCode.AUTHORIZER_NOT_READY):
        fed.may(Operation.READ)
    assert fed.authorizer.decide("User:root", "::1", Operation.ALTER, CLUSTER).allowed
    await writer.write_acls([READ], version=1)
    await fed.next_change()
    assert fed.may(Operation.READ)
    await fed.feed.stop()


async def test_feed_without_an_authorizer_shows_that_no_rules_are_in_effect(cluster: Cluster) -> None:
    AclFeed(None, await cluster.store(), SystemClock(), failed).show(metrics := Metrics())
    text = metrics.render().decode()
    assert "tidemark_acl_rules 0.0" in text
    assert "tidemark_acl_rules_generation -1.0" in text


async def test_the_last_known_rules_hold_while_zookeeper_is_silent(cluster: Cluster) -> None:
    store = await cluster.store(OUTAGE_SESSION_MS)
    await store.write_acls([READ], version=-1)
    fed = Fed(store)
    fed.feed.show(metrics := Metrics())
    await fed.feed.start()
    await cluster.stop_serving()
    await fed.until_stale()
    assert fed.may(Operation.READ)
    text = metrics.render().decode()
    assert "tidemark_acl_rules 1.0" in text
    assert "tidemark_acl_rules_generation 0.0" in text
    assert "tidemark_acl_rules_age_seconds 0.0\n" not in text
    await cluster.serve_again()
    await fed.until_newest()
    await fed.feed.stop()


async def test_rules_are_read_again_in_a_new_session(cluster: Cluster) -> None:
    store, writer = await cluster.store(), await cluster.store()
    fed = Fed(store)
    await fed.feed.start()
    await fed.next_change()
    ear = Ear(store)
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    await writer.write_acls([READ], version=-1)
    await store.new_session()
    assert await fed.next_change() == 0
    await fed.feed.stop()


def test_ten_thousand_rules_fit_into_the_node() -> None:
    names = random.Random(7)
    acls = [
        READ._replace(
            name=f"{names.choice(['orders', 'payments', 'clicks'])}.{names.getrandbits(48):x}",
            principal=f"User:tidemark://shop/user/{names.getrandbits(32):x}",
        )
        for _ in range(10_000)
    ]
    data = encode(acls)
    assert len(data) < 512 << 10
    assert decode(data, 3).acls == tuple(sorted(acls))
    assert encode(reversed(acls)) == data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[["TOPIC","LITERAL","orders","User:a","*","READ"]]}',
        b'{"version":1,"acls":[["TOPIC","LITERAL","orders","User:a","*","PONDER","DENY"]]}',
        b'{"version":1,"acls":[["TOPIC","LITERAL","orders","alice","*","READ","DENY"]]}',
        b'{"version":1,"acls":[["TOPIC","LITERAL",7,"User:a","*","READ","DENY"]]}',
        b'{"version":1,"acls":7}',
    ],
)
def test_a_node_with_one_rule_that_is_not_understood_is_refused_as_a_whole(content: bytes) -> None:
    with raises_code(ErrorCode.INTERNAL) as refused:
        decode(gzip.compress(content), 0)
    assert paths.ACLS in refused.value.message


def test_rules_that_could_not_be_read_again_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [READ._replace(name=f"{n}".rjust(200, "x")) for n in range(10)]
    monkeypatch.setattr(packed, "EXPANDED_BYTES_MAX", 2_000)
    with raises_code(ErrorCode.INVALID_REQUEST, r"would take 25.. bytes, of 2000: use prefixed rules"):
        encode(rules)
    assert decode(encode(rules[:5]), 0).acls == tuple(sorted(rules[:5]))


def test_a_truncated_node_and_one_that_expands_too_far_are_refused() -> None:
    whole = encode([READ])
    assert json.loads(gzip.decompress(whole))["acls"] == [list(READ)]
    for data in (whole[:-3], whole + b"x", gzip.compress(b" " * (65 << 20))):
        with pytest.raises(TidemarkError, match="not a whole gzip file"):
            decode(data, 0)
