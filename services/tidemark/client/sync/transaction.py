# SPDX-License-Identifier: Apache-2.0
"""One transaction of the sync producer, as a context manager."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tidemark.client.aio.transaction import Transaction as AsyncTransaction
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.client.sync.forwarding import blocking


class Transaction:
    """A transaction: all records that its producer sends meanwhile become visible together, or never.

    with producer.transaction():
        producer.send("orders", b"3 apples")
        producer.send("stock", b"-3 apples")

    The end of the block commits; an exception in the block aborts, and is raised. A failed record aborts, too.
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

    begin = blocking(AsyncTransaction.begin)
    commit = blocking(AsyncTransaction.commit)
    abort = blocking(AsyncTransaction.abort)
