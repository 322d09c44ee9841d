# SPDX-License-Identifier: Apache-2.0
"""One transaction of the sync producer, as a context manager."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from tidemark.client.aio.consumer import Consumer as AsyncConsumer
from tidemark.client.aio.transaction import Transaction as AsyncTransaction
from tidemark.client.group.group_reader import in_callback
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.client.sync.forwarding import blocking, documented_as
from tidemark.model import TopicPartition


class Consumer(Protocol):
    """The sync consumer, which imports this module."""

    @property
    def _client(self) -> AsyncConsumer:
        """The async consumer."""

    def _positions(self) -> Mapping[TopicPartition | tuple[str, int], int]:
        """Offset of the next record to return of each assigned partition, at one time."""


class Transaction:
    """A transaction: all records that its producer sends meanwhile become visible together, or never.

    with producer.transaction():
        producer.send("orders", b"3 apples")
        producer.send("stock", b"-3 apples")

    The end of the block commits; an exception in the block aborts, and is raised. A failed record aborts, too.
    A transaction that timed out raises TRANSACTION_ABORTABLE. So does one of a replaced producer, without `with`, until
    `abort` or `commit` raises PRODUCER_FENCED.
    """

    def __init__(self, transaction: AsyncTransaction, background: BackgroundLoop, call_s: float) -> None:
        self._client = transaction
        self._background = background
        self._call_s = call_s

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.call(self._client.__aexit__(kind, error, trace), self._call_s)

    @documented_as(AsyncTransaction.send_offsets)
    def send_offsets(
        self, consumer: Consumer, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None
    ) -> None:
        if offsets is None and not in_callback():
            offsets = consumer._positions()
        self._background.call(self._client.send_offsets(consumer._client, offsets), self._call_s)

    begin = blocking(AsyncTransaction.begin)
    commit = blocking(AsyncTransaction.commit)
    abort = blocking(AsyncTransaction.abort)
