# SPDX-License-Identifier: Apache-2.0
"""The driver's calls to the coordinator of a write's transaction: begin, and commit or abort its members (rule X16)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.tls import Credentials
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.client.transactions.coordinator import Started, TransactionCoordinator
from tidemark.core.transactions.phases import PREPARED
from tidemark.core.transactions.state import NO_SEQUENCE
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import timeout

if TYPE_CHECKING:
    from tidemark_spark.sink.options import WriteOptions
    from tidemark_spark.transactions.members import Decision, WriteTransaction

T = TypeVar("T")

_log = logging.getLogger("tidemark.spark")

_COMPLETE_S: Final = 5.0
"""Time limit of the wait for markers after a commit, so that a read that follows the write sees its rows."""
_FIRST_PAUSE_S: Final = 0.003
_PAUSE_S: Final = 0.1
_ABORT_S: Final = 10.0
"""Time limit of an abort: its cause is reported anyway, and the coordinator aborts at the timeout."""


class NoTransactionsError(Exception):
    """The cluster does not have transactions, or does not allow them to this user; the message states the reason."""


def begin(options: WriteOptions, transactional_id: str) -> Started:
    """Fence earlier drivers of the id, abort their open transaction, and return the generation of this one.

    Raises:
        NoTransactionsError: the cluster has no transactions, or does not allow them to this user.
        TidemarkError: INVALID_TRANSACTION_TIMEOUT; REQUEST_TIMED_OUT with the last error.
    """
    timeout_ms = options.transactions.timeout_ms

    async def ask(cluster: Cluster, coordinator: TransactionCoordinator) -> Started:
        old = [str(one) for one, found in cluster.view.brokers.items() if not found.has_transactions]
        if old:
            raise NoTransactionsError(f"brokers without transactions are in the cluster: {', '.join(sorted(old))}")
        return await coordinator.init(timeout_ms)

    try:
        return _call(options, transactional_id, ask, options.deadline_ms / 1000)
    except TidemarkError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise NoTransactionsError(str(error)) from error
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            sentence = f"option 'tidemark.transaction.timeout.ms' is {timeout_ms}: {error.message}"
            raise TidemarkError(error.code, sentence, dict(error.metadata)) from error
        raise


def commit(options: WriteOptions, decision: Decision, sequence: int) -> bool:
    """Commit the writes of the named members, and abort all other writes; then wait for a short time until readers get
    the rows.

    Returns:
        Whether this or a later sequence was committed before; then the writes of a repeated batch are aborted.

    Raises:
        TidemarkError: PRODUCER_FENCED: another driver has begun since; TRANSACTION_ABORTABLE: the transaction was
            aborted, for example by its timeout; REQUEST_TIMED_OUT: the outcome is not known.
    """
    transaction = decision.transaction

    async def ask(_: Cluster, coordinator: TransactionCoordinator) -> bool:
        already = await coordinator.commit_members(transaction.generation, decision.producer_ids, sequence=sequence)
        await _completed(coordinator)
        return already

    deadline_s = options.deadline_ms / 1000
    try:
        return _call(options, transaction.transactional_id, ask, deadline_s, connect_s=deadline_s)
    except TidemarkError as error:
        advice = _ADVICE.get(error.code)
        if advice is None:
            raise
        raise TidemarkError(error.code, f"{error.message}; {advice}", dict(error.metadata)) from error


def abort(options: WriteOptions, transaction: WriteTransaction) -> None:
    """Abort all members of the transaction, unless another driver has begun since; raises TidemarkError."""
    nothing: Sequence[int] = ()

    async def ask(_: Cluster, coordinator: TransactionCoordinator) -> bool:
        return await coordinator.commit_members(transaction.generation, nothing, sequence=NO_SEQUENCE)

    _call(options, transaction.transactional_id, ask, _ABORT_S)


async def _completed(coordinator: TransactionCoordinator) -> None:
    """Wait until each partition has the marker of the decision; a partition without a leader gets the marker later."""
    pauses = Backoff(_FIRST_PAUSE_S, _PAUSE_S)
    try:
        async with timeout(_COMPLETE_S):
            while await coordinator.phase() in PREPARED:  # noqa: ASYNC110 - the phase is another process's
                await asyncio.sleep(pauses.next_s())
    except (TimeoutError, TidemarkError) as error:
        _log.info("%s is committed; some partition shows it to readers later: %s", coordinator.transactional_id, error)


_ADVICE: Final = {
    ErrorCode.PRODUCER_FENCED: "another driver has started with the same checkpoint or txnAppId: stop one of them",
    ErrorCode.TRANSACTION_ABORTABLE: "no row of this write counts; if the writes took long without a running task, "
    "raise the option tidemark.transaction.timeout.ms",
}


def _call(
    options: WriteOptions,
    transactional_id: str,
    ask: Callable[[Cluster, TransactionCoordinator], Awaitable[T]],
    timeout_s: float,
    *,
    connect_s: float = 0.0,
) -> T:
    """The answer of the coordinator, by connections that are closed after it.

    `connect_s` is the shortest time of the search for a broker while none answers.
    """

    async def work() -> T:
        cluster = open_cluster(options)
        try:
            await _start(cluster, time.monotonic() + connect_s)
            return await ask(cluster, TransactionCoordinator(cluster, transactional_id, timeout_s=timeout_s))
        finally:
            await cluster.close()

    return background_loop().call(work())


async def _start(cluster: Cluster, until_s: float) -> None:
    while True:
        try:
            return await cluster.start()
        except TidemarkError as error:
            if not error.retriable or time.monotonic() >= until_s:
                raise
            await asyncio.sleep(_PAUSE_S)


def open_cluster(options: WriteOptions) -> Cluster:
    """Metadata and channels of a write; not started."""
    credentials = Credentials(options.tls, options.token_file)
    client_id = options.settings.get("client_id", "")
    return Cluster(options.bootstrap, timeout_s=options.deadline_ms / 1000, tls=credentials, client_id=client_id)
