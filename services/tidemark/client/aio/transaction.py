# SPDX-License-Identifier: Apache-2.0
"""One transaction of an async producer, as a context manager (rules X1, X12, X17)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemark.client.argument_types import offsets_of
from tidemark.client.group.offset_commits import OpenTransaction
from tidemark.client.lifecycle import INTERRUPTED_S, INTERRUPTIONS
from tidemark.client.transactions.producer_transactions import Phase, ProducerTransactions
from tidemark.errors import TransactionAbortedError, invalid_request
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.clock import timeout

if TYPE_CHECKING:
    from tidemark.client.aio.consumer import Consumer

_log = logging.getLogger("tidemark.client")


class Transaction:
    """A transaction: all records that its producer sends meanwhile become visible together, or never.

    async with producer.transaction():
        await producer.send("orders", b"3 apples")
        await producer.send("stock", b"-3 apples")

    The end of the block commits; an exception in the block aborts, and is raised. A failed record aborts, too.
    A transaction that timed out raises TRANSACTION_ABORTABLE. So does one of a replaced producer, without `with`, until
    `abort` or `commit` raises PRODUCER_FENCED.
    """

    def __init__(self, transactions: ProducerTransactions) -> None:
        self._transactions = transactions
        self._begun = self._ended = False
        self._number = 0

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            try:
                await self.commit()
            except BaseException as failure:
                if self._transactions.phase is Phase.OPEN:  # the wait for the records was interrupted
                    await self._abort_quietly(failure)
                raise
        elif self._transactions.phase is Phase.OPEN:
            is_old = isinstance(error, TransactionAbortedError) and self._transactions.failed_with_old_identity
            is_aborted = await self._abort_quietly(error)
            if is_old and self._transactions.fence is not None:
                raise self._transactions.fence from error
            if is_old and is_aborted:
                raise self._transactions.timed_out() from error

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
        self._begun, self._number = True, self._transactions.begun

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None
    ) -> None:
        """Commit offsets of a consumer's group with this transaction: records and progress count together.

        Args:
            consumer: with a group, and auto_commit_interval_ms=0.
            offsets: of the next record, by partition; None: of all returned records, in callbacks of processed ones.

        Raises:
            TidemarkError: FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER or PARTITION_NOT_ASSIGNED if another member may read the
                partitions: the transaction can only be aborted. TRANSACTION_ABORTABLE: the transaction timed out, or
                another producer has the transactional id. INVALID_TXN_STATE, INVALID_REQUEST, REQUEST_TIMED_OUT.

        Example: `await tx.send_offsets(consumer)`
        """
        self._check()
        transactions, group = self._transactions, consumer.reading_group
        transaction = OpenTransaction(transactions.transactional_id, transactions.identity)
        wanted = None if offsets is None else offsets_of("offsets", offsets)
        if consumer.group_settings is not None and consumer.group_settings.auto_commit_interval_ms:
            raise invalid_request(
                "the consumer also commits its offsets without a transaction: make it with auto_commit_interval_ms=0"
            )
        timeout_s = consumer.settings.request_timeout_ms / 1000
        transactions.sends_offsets()
        try:
            await group.commit(wanted, timeout_s=timeout_s, transaction=transaction)
        except TidemarkError as error:
            failure = error if self._is_over else transactions.fail(error)
            if failure is error:
                raise
            raise failure from error
        except asyncio.CancelledError:
            if not self._is_over:
                transactions.fail(_interrupted())
            raise

    async def commit(self) -> None:
        """Wait until every record is acknowledged, and commit.

        Raises:
            TidemarkError: TRANSACTION_ABORTABLE: the transaction was aborted; run it again. PRODUCER_FENCED: another
                producer has the transactional id; stop. REQUEST_TIMED_OUT, and any error with {"in_doubt": "True"}:
                call `commit` again. INVALID_TXN_STATE. Otherwise the error of the first record that failed permanently;
                the transaction was aborted.

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

    @property
    def _is_over(self) -> bool:
        """Whether this transaction has ended, here or by the start of a later one."""
        return self._ended or (self._begun and self._number != self._transactions.begun)

    def _check(self) -> None:
        if self._is_over:
            raise TidemarkError(ErrorCode.INVALID_TXN_STATE, "this transaction has ended: begin another one")
        if not self._begun:
            sentence = "this transaction has not begun: use it in a with block, or call begin()"
            raise TidemarkError(ErrorCode.INVALID_TXN_STATE, sentence)

    async def _abort_quietly(self, cause: BaseException) -> bool:
        """Abort because of an exception, which the application gets instead of an error of the abort.

        Returns:
            Whether the coordinator has aborted the transaction.
        """
        limit_s = INTERRUPTED_S if isinstance(cause, INTERRUPTIONS) else None
        self._ended = True
        try:
            async with timeout(limit_s):
                await self._transactions.abort()
        except (TidemarkError, TimeoutError) as error:
            _log.warning("the request to abort did not reach the coordinator, which aborts at the timeout: %s", error)
            return False
        return True


def _interrupted() -> TidemarkError:
    sentence = "send_offsets was interrupted, and the coordinator may not have the offsets"
    return TidemarkError(ErrorCode.TRANSACTION_ABORTABLE, sentence)
