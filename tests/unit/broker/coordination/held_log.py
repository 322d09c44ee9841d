# SPDX-License-Identifier: Apache-2.0
"""A log of a coordinator whose writes end when the test ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tidemark.broker.coordination.shard import Shard
from tidemark.broker.coordination.state_log import InTransaction, Records
from tidemark.core.pending_writes import Writer
from tidemark.model import ErrorCode, LeaderEpoch, TidemarkError, TopicPartition

_C = TypeVar("_C")


class HeldLog(Generic[_C]):
    """Records writes; the test decides when a write is appended, and when it ends."""

    def __init__(self, partition: TopicPartition, leader_epoch: int = 1) -> None:
        self.partition = partition
        self.leader_epoch = LeaderEpoch(leader_epoch)
        self.records: list[_C] = []
        self.pending: list[tuple[Writer, list[_C]]] = []
        self.writes: asyncio.Queue[tuple[list[_C], asyncio.Future[None]]] = asyncio.Queue()
        self.appends: list[Callable[[], None]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.refusal: TidemarkError | None = None
        self.unwritable: TidemarkError | None = None

    async def read(self) -> Records[_C]:
        await self.may_read.wait()
        self.check()
        found = Records(self.records)
        found.pending = list(self.pending)
        return found

    async def write(
        self,
        changes: list[_C],
        timeout_s: float,
        transaction: InTransaction | None,
        on_appended: Callable[[], None],
    ) -> None:
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.put_nowait((changes, held))
        self.appends.append(on_appended)
        await held
        if transaction is None:
            self.records.extend(changes)
        else:
            self.pending.append((transaction.writer, changes))

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def check_writable(self) -> None:
        if self.unwritable is not None:
            raise self.unwritable

    def over(self) -> TidemarkError:
        return TidemarkError(ErrorCode.NOT_COORDINATOR, "the leadership is over")

    async def finish_write(self, error: TidemarkError | None = None) -> list[_C]:
        changes, held = await self.writes.get()
        if error is None:
            held.set_result(None)
        else:
            held.set_exception(error)
        return changes


async def loaded(shard: Shard[Any, Any, Any]) -> None:
    """Wait until the shard has its state."""
    async with asyncio.timeout(5):
        while shard.is_loading:  # noqa: ASYNC110 - a thread replays the records
            await asyncio.sleep(0)
