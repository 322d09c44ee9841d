# SPDX-License-Identifier: Apache-2.0
"""The transaction of a write in the driver: it begins before the tasks, and ends by one call for all of them."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemark.model import TidemarkError

from tidemark_spark.transactions.checkpoint import read_query_id
from tidemark_spark.transactions.members import Decision, Membership, WriteTransaction, decide
from tidemark_spark.transactions.settings import Mode, batch_identity, check_streaming, query_identity

if TYPE_CHECKING:
    from tidemark_spark.sink.options import WriteOptions

_log = logging.getLogger("tidemark.spark")


class StaleCheckpointError(RuntimeError):
    """A query continues from a checkpoint that is older than the checkpoint of its last write."""


def begin_batch(options: WriteOptions) -> WriteTransaction | None:
    """Begin the transaction of a batch write; None: the write is at least once, and the log states why.

    Raises:
        ValueError: the options contradict one another, or require an impossible transaction.
        TidemarkError: INVALID_TRANSACTION_TIMEOUT, INVALID_TRANSACTIONAL_ID; REQUEST_TIMED_OUT with the last error.
    """
    transactional_id, sequence = batch_identity(options.transactions, str(uuid.uuid4()))
    if not _is_possible(options):
        return None
    return _begin(options, transactional_id, sequence=sequence)


def begin_micro_batch(options: WriteOptions) -> WriteTransaction | None:
    """Begin the transaction of a micro-batch, and fence earlier drivers of the query; otherwise as `begin_batch`."""
    settings = options.transactions
    check_streaming(settings)
    if not _is_possible(options):
        return None
    if settings.app_id:
        return _begin(options, settings.app_id)
    if not settings.checkpoint:
        _at_least_once(options, "the query has no option checkpointLocation, which names its transactions")
        return None
    try:
        query_id = read_query_id(settings.checkpoint)
    except (OSError, ValueError) as error:
        why = f"the id of the query cannot be read from its checkpoint: {error}; the option txnAppId names it too"
        _at_least_once(options, why)
        return None
    return _begin(options, query_identity(settings, query_id), query_id=query_id)


def end_batch(
    options: WriteOptions, memberships: Iterable[Membership | None], transaction: WriteTransaction | None
) -> bool:
    """Commit a batch write; returns whether its version, or a later one, was committed before.

    Args:
        options: options of the write.
        memberships: of the messages of all tasks; none for a table without partitions.
        transaction: the transaction that `begin_batch` returned.

    Raises:
        TidemarkError: PRODUCER_FENCED, TRANSACTION_ABORTABLE, REQUEST_TIMED_OUT.
    """
    of_tasks = list(memberships)
    if not of_tasks and transaction is not None:
        of_tasks = [Membership(transaction)]
    decision = decide(of_tasks)
    if decision is None:
        return False
    assert decision.transaction.sequence is not None, "the transaction of a batch write has a sequence"
    return _commit(options, decision, decision.transaction.sequence)


def end_micro_batch(options: WriteOptions, memberships: Iterable[Membership | None], batch_id: int) -> bool:
    """Commit a micro-batch; returns whether it was committed before.

    Raises:
        StaleCheckpointError: the checkpoint is older than the checkpoint of the query's last write.
        TidemarkError: the errors of `end_batch`.
    """
    decision = decide(memberships)
    if decision is None:
        return False
    last = decision.transaction.last_sequence
    if batch_id < last:
        raise StaleCheckpointError(
            f"micro-batch {batch_id} is not written. Micro-batch {last} of the query was committed before, so this "
            "checkpoint is an old copy. Continue with the newest checkpoint, or start again with a new checkpoint"
        )
    return _commit(options, decision, batch_id)


def give_up(options: WriteOptions, transaction: WriteTransaction | None) -> None:
    """Abort the transaction of a failed write if the transaction is known; otherwise the log states how it ends."""
    if transaction is None:
        return
    from tidemark_spark.transactions.coordinator import abort

    try:
        abort(options, transaction)
    except TidemarkError as error:
        _log.warning(
            "transaction %s is not aborted now, but by its timeout of %d ms or the next start: %s",
            transaction.transactional_id,
            transaction.timeout_ms,
            error,
        )


def _commit(options: WriteOptions, decision: Decision, sequence: int) -> bool:
    from tidemark_spark.transactions.coordinator import commit

    return commit(options, decision, sequence)


def _is_possible(options: WriteOptions) -> bool:
    settings = options.transactions
    if settings.mode is Mode.FALSE:
        return False
    if settings.obstacle:
        _at_least_once(options, settings.obstacle)
        return False
    return True


def _begin(
    options: WriteOptions, transactional_id: str, *, query_id: str = "", sequence: int | None = None
) -> WriteTransaction | None:
    # A late import: a write without transactions does not need these modules in the driver.
    from tidemark_spark.transactions.coordinator import NoTransactionsError, begin

    try:
        started = begin(options, transactional_id)
    except NoTransactionsError as error:
        _at_least_once(options, str(error))
        return None
    return WriteTransaction(
        transactional_id,
        started.generation,
        options.transactions.timeout_ms,
        query_id=query_id,
        sequence=sequence,
        last_sequence=started.last_sequence,
    )


def _at_least_once(options: WriteOptions, why: str) -> None:
    """Log that the write is at least once; raises ValueError if the options ask for more."""
    if options.transactions.mode is Mode.TRUE:
        raise ValueError(f"option 'transactional' is true, and the write cannot be in a transaction: {why}")
    _warn(why)


@functools.cache
def _warn(why: str) -> None:
    """Log a warning once for each process and cause: Spark asks again in each micro-batch."""
    _log.warning("the write is at least once, not exactly once: %s", why)
