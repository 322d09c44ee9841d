# SPDX-License-Identifier: Apache-2.0
"""A service that starts before ZooKeeper answers logs its wait, and waits only for ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper import reachable


class Store:
    """Its start fails with these, one after the other, and then succeeds, once it is let; so does each read.

    Args:
        reads: the errors of reads; each ends the session, too.
    """

    def __init__(self, *codes: ErrorCode, reads: Sequence[ErrorCode] = ()) -> None:
        self.codes = list(codes)
        self.reads = list(reads)
        self.let = asyncio.Event()
        self.let.set()
        self.started = False
        self.found = "shop"

    async def start(self) -> None:
        if self.codes:
            raise TidemarkError(self.codes.pop(0), "not yet")
        await self.let.wait()
        assert not self.started
        self.started = True

    async def stop(self) -> None:
        self.started = False

    async def cluster_id(self) -> str:
        assert self.started
        if self.reads:
            raise TidemarkError(self.reads.pop(0), "not now")
        return self.found

    async def create_cluster_id(self) -> str:
        return "new"


class Said(logging.Handler):
    """The log lines about waiting; starts the store after enough of them."""

    def __init__(self, store: Store, times: int) -> None:
        super().__init__()
        self.store = store
        self.times = times
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "waiting for ZooKeeper":
            assert record.levelno == logging.INFO
            self.lines.append(str(record.__dict__["why"]))
            if len(self.lines) == self.times:
                self.store.let.set()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "_RETRY_S", 0.0)


async def said_while_waiting(monkeypatch: pytest.MonkeyPatch, connect: str, times: int) -> list[str]:
    monkeypatch.setattr(reachable, "_SAY_S", 0.001)
    store = Store()
    store.let.clear()
    said = Said(store, times)
    logger = logging.getLogger("tidemark.zookeeper.reachable")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(said)
    try:
        waiting: Any = store
        async with asyncio.timeout(20):
            await reachable.start_when_reachable(waiting, connect)
    finally:
        logger.removeHandler(said)
    assert store.started
    return said.lines[:times]


async def test_the_service_retries_until_zookeeper_answers(caplog: pytest.LogCaptureFixture) -> None:
    store: Any = Store(*[ErrorCode.COORDINATION_UNAVAILABLE] * 3)
    await reachable.start_when_reachable(store)
    assert store.started
    assert caplog.text == ""


async def test_a_wait_is_reported_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await said_while_waiting(monkeypatch, "127.0.0.1:1/root", 3) == ["it does not answer"] * 3


async def test_an_unresolved_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (why,) = await said_while_waiting(monkeypatch, "no-such-zookeeper.invalid:2181,127.0.0.1:2181", 1)
    assert why.startswith("no-such-zookeeper.invalid cannot be resolved (")
    assert "127.0.0.1" not in why


async def test_a_zookeeper_that_dies_between_start_and_first_read_is_waited_for() -> None:
    store: Any = Store(reads=[ErrorCode.COORDINATION_UNAVAILABLE] * 2)
    assert await reachable.cluster_id_when_reachable(store) == "shop"
    assert store.started


async def test_only_a_broker_without_a_cluster_id_on_disk_gives_one_to_an_empty_tree() -> None:
    store: Any = Store()
    store.found = ""
    assert await reachable.cluster_id_when_reachable(store) == "new"
    await store.stop()
    with pytest.raises(TidemarkError, match=r"has no /cluster/id, and this process is of cluster shop") as refused:
        await reachable.cluster_id_when_reachable(store, known="shop")
    assert refused.value.code is ErrorCode.INVALID_CONFIG


async def test_a_permanent_error_of_the_first_read_is_raised() -> None:
    store: Any = Store(reads=[ErrorCode.INTERNAL])
    with pytest.raises(TidemarkError, match="not now"):
        await reachable.cluster_id_when_reachable(store)


async def test_a_permanent_error_is_raised_without_a_retry() -> None:
    store: Any = Store(ErrorCode.INVALID_CONFIG)
    with pytest.raises(TidemarkError, match="not yet"):
        await reachable.start_when_reachable(store)
    assert not store.started


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    store = Store()
    store.let.clear()
    waiting: Any = store
    task = asyncio.create_task(reachable.start_when_reachable(waiting))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one.get_name() for one in asyncio.all_tasks() if one.get_name() == "ZooKeeper session"] == []
