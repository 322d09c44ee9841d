# SPDX-License-Identifier: Apache-2.0
"""One transaction of an async producer, as a context manager (rules X1, X12, X17)."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from tidemark.client.lifecycle import INTERRUPTED_S, INTERRUPTIONS
from tidemark.client.transactions.producer_transactions import Phase, ProducerTransactions
from tidemark.model import ErrorCode, TidemarkError

_log = logging.getLogger("tidemark.client")


class Transaction:
    """A transaction: all records that its producer sends meanwhile become visible together, or never.

    async with producer.transaction():
        await producer.send("orders", b"3 apples")
        await producer.send("stock", b"-3 apples")

    The end of the block commits; an exception in the block aborts, and is raised. A failed record aborts, too.
    """

    def __init__(self, transactions: ProducerTransactions) -> None:
        self._transactions = transactions
        self._begun = self._ended = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            try:
                await self.commit()
            except BaseException as failure:
                if self._transactions.phase is Phase.OPEN:  # the wait for the records was interrupted
                    await self._abort_quietly(failure)
                raise
        elif self._transactions.phase is Phase.OPEN:
            await self._abort_quietly(error)

    async def begin(self) -> None:
        """Begin; for use without `async with`.

        Raises:
            TidemarkError: PRODUCER_FENCED, INVALID_TXN_STATE, INVALID_TRANSACTION_TIMEOUT, REQUEST_TIMED_OUT,
                TRANSACTIONAL_ID_AUTHORIZATION_FAILED.

        Example: `await tx.begin()`
        """
        if self._begun:
            raise TidemarkError(
                ErrorCode.INVALID_TXN_STATE, "this transaction has begun before: call producer.transaction() again"
            )
        await self._transactions.begin()
        self._begun = True

    async def commit(self) -> None:
        """Wait until every record is acknowledged, and commit.

        Raises:
            TidemarkError: TRANSACTION_ABORTABLE: the transaction was aborted; run it again. PRODUCER_FENCED: another
                producer has the transactional id; stop. REQUEST_TIMED_OUT with {"in_doubt": "True"}: call `commit`
                again. INVALID_TXN_STATE. Otherwise the error of the first record that failed for good; the transaction
                was aborted.

        Example: `await tx.commit()`
        """
        self._check()
        await self._transactions.commit()
        self._ended = True

    async def abort(self) -> None:
        """Abort; records without outcome fail.

        Raises:
            TidemarkError: PRODUCER_FENCED, INVALID_TXN_STATE; REQUEST_TIMED_OUT: the coordinator will abort.

        Example: `await tx.abort()`
        """
        self._check()
        await self._transactions.abort()
        self._ended = True

    def _check(self) -> None:
        if not self._begun or self._ended:
            state = "has ended" if self._ended else "has not begun"
            raise TidemarkError(ErrorCode.INVALID_TXN_STATE, f"this transaction {state}: use `async with`")

    async def _abort_quietly(self, cause: BaseException) -> None:
        """Abort because of an exception, which is what the application gets to see."""
        limit_s = INTERRUPTED_S if isinstance(cause, INTERRUPTIONS) else None
        try:
            async with asyncio.timeout(limit_s):
                await self._transactions.abort()
        except (TidemarkError, TimeoutError) as error:
            _log.warning("the coordinator was not told to abort, and aborts at the timeout: %s", error)
        self._ended = True
