# SPDX-License-Identifier: Apache-2.0
"""The producer of a task that is a member of its write's transaction, and the calls that keep the transaction open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from copy import copy
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from tidemark.client.aio import Producer as AsyncProducer
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.client.transactions.coordinator import TransactionCoordinator
from tidemark.model import TidemarkError

from tidemark_spark.sink.task_producer import TaskProducer
from tidemark_spark.transactions.coordinator import open_cluster
from tidemark_spark.transactions.settings import QUERY_ID

if TYPE_CHECKING:
    from tidemark_spark.sink.options import WriteOptions
    from tidemark_spark.transactions.members import WriteTransaction

_log = logging.getLogger("tidemark.spark")

_KEPT_IN_A_TIMEOUT: Final = 3
_AGAIN_S: Final = 1.0


class OtherQueryError(RuntimeError):
    """The checkpoint that the driver read belongs to another query."""


class MemberProducer(TaskProducer):
    """A producer whose writes are pending until the driver names its producer id."""

    def join(self, generation: int) -> int:
        """Become a member of the open transaction; returns the producer id.

        Raises:
            TidemarkError: PRODUCER_FENCED: another driver has begun since; REQUEST_TIMED_OUT.
        """
        return self._background.call(_join(self._client, generation), self._call_s)


async def _join(producer: AsyncProducer, generation: int) -> int:
    settings = producer.settings
    timeout_s = settings.delivery_timeout_ms / 1000
    coordinator = TransactionCoordinator(producer.cluster, settings.transactional_id, timeout_s=timeout_s)
    identity = await coordinator.join(generation)
    producer.sender.begin_transaction(identity)
    return identity.producer_id


class Keeping:
    """Keeps the transaction of a task from its timeout, from the start of the task to its end.

    Every task keeps the transaction open, even a task without rows: other tasks may have written rows, and wait for
    this task.
    """

    def __init__(self, options: WriteOptions, transaction: WriteTransaction) -> None:
        self._options = options
        self._transaction = transaction
        self._failure: TidemarkError | None = None

    def check(self) -> None:
        """Raise the error after which the task's writes cannot count, e.g. PRODUCER_FENCED."""
        if self._failure is not None:
            raise copy(self._failure)

    async def run(self) -> None:
        """Keep the transaction until this is cancelled."""
        interval_s = self._transaction.timeout_ms / 1000 / _KEPT_IN_A_TIMEOUT
        await asyncio.sleep(interval_s)  # most tasks end before they need this connection
        cluster = open_cluster(self._options)
        coordinator = TransactionCoordinator(
            cluster, self._transaction.transactional_id, timeout_s=self._options.deadline_ms / 1000
        )
        is_started = False
        try:
            while True:
                try:
                    if not is_started:
                        await cluster.start()
                        is_started = True
                    await coordinator.keep(self._transaction.generation)
                    await asyncio.sleep(interval_s)
                except TidemarkError as error:
                    if not error.retriable:
                        self._failure = error
                        return
                    _log.info("transaction %s is not kept open yet: %s", coordinator.transactional_id, error)
                    await asyncio.sleep(min(interval_s, _AGAIN_S))
        finally:
            await cluster.close()


@contextlib.contextmanager
def keeping(options: WriteOptions, transaction: WriteTransaction) -> Iterator[Keeping]:
    """Keep the transaction open while a task runs."""
    check_query(transaction)
    kept = Keeping(options, transaction)
    running: Future[None] = background_loop().start(kept.run())
    try:
        yield kept
    finally:
        running.cancel()
        with contextlib.suppress(CancelledError):
            running.result()


def check_query(transaction: WriteTransaction) -> None:
    """Check that this task belongs to the query of the checkpoint that the driver read; raises OtherQueryError."""
    context = TaskContext.get()
    found = context.getLocalProperty(QUERY_ID) if context is not None else None
    if transaction.query_id and found and found != transaction.query_id:
        raise OtherQueryError(
            f"the checkpoint that the driver read is of query {transaction.query_id}, and this is query {found}. Give "
            "the option checkpointLocation with its file system, as in hdfs://..., or set txnAppId"
        )
