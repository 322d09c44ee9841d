# SPDX-License-Identifier: Apache-2.0
"""The transactions of one producer, one after another: begin, commit, abort, and the recovery after a failure
(X10-X13)."""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from enum import Enum, auto
from typing import Final

from tidemark.client.producing.sender import OLD_IDENTITY, Sender, cannot_commit, no_transaction
from tidemark.client.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError

_log = logging.getLogger("tidemark.client")

_OVER_IN_THE_NEXT: Final = OLD_IDENTITY | {
    ErrorCode.OUT_OF_ORDER_SEQUENCE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.DUPLICATE_SEQUENCE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
}
"""Errors of a transaction that may not occur in another transaction, in addition to retriable errors."""
_DECIDED: Final = OLD_IDENTITY | {ErrorCode.INVALID_TXN_STATE}
"""Refusals of a commit that the coordinator bases on its record of the transaction."""


RENEW_S: Final = 3600.0
"""Time without a transaction after which a producer renews its identity. A coordinator deletes an id after
`transactional.id.expiration.ms`, a week by default. Then no coordinator can tell an idle producer from a replaced
one."""


class Phase(Enum):
    """Phases of a producer's transactions; the coordinator may have aborted an open transaction meanwhile."""

    CLOSED = auto()  # no transaction is open
    BEGINNING = auto()  # `begin` waits for the coordinator
    OPEN = auto()  # records belong to the transaction
    COMMITTING = auto()  # the coordinator may have stored the commit; a repeated commit returns the outcome
    FENCED = auto()  # a newer producer has the transactional id


class ProducerTransactions:
    """The transactions of a producer, one after another; used on its event loop.

    Args:
        coordinator: coordinator of the transactional id.
        sender: sends the records.
        timeout_ms: time limit of each transaction, in milliseconds.

    Attributes:
        begun: number of transactions that have begun; the open one is the last.
    """

    def __init__(self, coordinator: TransactionCoordinator, sender: Sender, timeout_ms: int) -> None:
        self.phase = Phase.CLOSED
        self.begun = 0
        self._id = coordinator.transactional_id
        self._coordinator = coordinator
        self._sender = sender
        self._timeout_ms = timeout_ms
        self._identity: ProducerIdentity | None = None
        """The identity of the open transaction, or of the next one; None before the first transaction."""
        self._needs_init = True
        self._fence: TidemarkError | None = None
        self._asking = asyncio.Lock()
        """Held during each request that changes the identity, except a commit."""
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def transactional_id(self) -> str:
        """The transactional id that the producer was created with."""
        return self._id

    @property
    def identity(self) -> ProducerIdentity:
        """The identity of the open transaction; raises INVALID_TXN_STATE if no transaction is open."""
        if self.phase is not Phase.OPEN or self._identity is None:
            raise no_transaction(self._id)
        return self._identity

    async def begin(self) -> None:
        """Open a transaction; the first call fences earlier producers of the id.

        Raises:
            TidemarkError: INVALID_TXN_STATE if a transaction is open, or the outcome of the last commit is not known;
                PRODUCER_FENCED, INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, REQUEST_TIMED_OUT.
        """
        if self._fence is not None:
            raise copy(self._fence)
        if self.phase is Phase.COMMITTING:
            raise self._state("the outcome of its last commit is not known: call commit() of that transaction again")
        if self.phase is not Phase.CLOSED:
            raise self._state("a transaction is open: end it before the next one")
        self.phase = Phase.BEGINNING
        try:
            self._stop_timer()
            async with self._asking:
                if self._needs_init or self._identity is None:
                    await self._init()
            assert self._identity is not None, "set by _init"
            self._sender.begin_transaction(self._identity)
        except BaseException:
            if self._fence is None:
                self.phase = Phase.CLOSED
                self._start_timer()
            raise
        self.phase = Phase.OPEN
        self.begun += 1

    async def commit(self) -> None:
        """Wait for the outcomes of all records, and commit; a failed record aborts the transaction.

        Raises:
            TidemarkError: PRODUCER_FENCED. TRANSACTION_ABORTABLE if the transaction was aborted, and another one may
                succeed. INVALID_TXN_STATE without an open transaction. REQUEST_TIMED_OUT, or another error with
                {"in_doubt": "True"} that comes from the coordinator, if the outcome is not known: a repeated call
                returns it. Otherwise the error of the first failed record: the transaction was aborted, and another
                transaction would fail, too.
        """
        if self.phase is Phase.OPEN:
            self._sender.accumulator.refuse(self._state("its transaction is being committed: begin the next one"))
            transaction = self._sender.transaction
            await self._sender.flush()
            if self.phase is not Phase.OPEN or self._sender.transaction is not transaction:
                raise self._state("the transaction was aborted, or committed by another call, during this commit")
            if transaction.failure is not None:
                await self._abort_because(transaction.failure)
            if not transaction.sent:
                self._close()
                return
            self.phase = Phase.COMMITTING
        elif self.phase is not Phase.COMMITTING:
            raise no_transaction(self._id)
        await self._decide()

    async def abort(self) -> None:
        """Fail the records without outcome, and abort.

        Raises:
            TidemarkError: INVALID_TXN_STATE without an open transaction; PRODUCER_FENCED; REQUEST_TIMED_OUT: the
                coordinator aborts the transaction at its timeout, or at the start of the next one.
        """
        if self.phase is Phase.COMMITTING:
            raise self._state("its commit may be stored already: call commit() again")
        if self.phase is not Phase.OPEN or self._identity is None:
            raise no_transaction(self._id)
        self._sender.fail_transaction(
            TidemarkError(ErrorCode.TRANSACTION_ABORTABLE, "the application aborted the transaction")
        )
        failure = self._sender.transaction.failure
        self._close()
        if not self._sender.transaction.sent:
            return
        self._needs_init = True
        async with self._asking:
            await self._abort_at_coordinator(failure)

    async def _abort_at_coordinator(self, failure: TidemarkError | None) -> None:
        assert self._identity is not None, "a transaction was open"
        if failure is not None and failure.code in OLD_IDENTITY:
            await self._init()
            return
        try:
            self._identity = await self._coordinator.end(self._identity, commit=False)
        except TidemarkError as error:
            if error.code not in OLD_IDENTITY:
                raise
            await self._init()
        self._needs_init = False

    def sends_offsets(self) -> None:
        """Note that offsets may reach a coordinator, so that the transaction needs a decision."""
        self._sender.transaction.sent = True

    @property
    def failed_with_old_identity(self) -> bool:
        """Whether the open transaction failed because it timed out, or because a newer producer has started."""
        failure = self._sender.transaction.failure
        return failure is not None and failure.code in OLD_IDENTITY

    def timed_out(self) -> TidemarkError:
        """The error of a transaction that the coordinator aborted at its timeout."""
        return self._aborted(f"it was open for longer than its timeout of {self._timeout_ms} ms")

    @property
    def fence(self) -> TidemarkError | None:
        """PRODUCER_FENCED once the coordinator has stated that a newer producer has the transactional id."""
        return None if self._fence is None else copy(self._fence)

    def fail(self, cause: TidemarkError) -> TidemarkError:
        """Note the error after which the open transaction can only be aborted, and return the application's error."""
        if self.phase is Phase.OPEN:
            self._sender.fail_transaction(cause)
        return cannot_commit(self._id, cause) if cause.code in OLD_IDENTITY else cause

    async def close(self) -> None:
        """Abort an open transaction; the application did not end it."""
        try:
            if self.phase is Phase.OPEN:
                await self.abort()
        except TidemarkError as error:
            _log.warning("transactional id %s: the request to abort did not reach the coordinator: %s", self._id, error)
        finally:
            self._stop_timer()
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.gather(self._renewing, return_exceptions=True)

    # -- parts ---------------------------------------------------------------------------------------------------------

    async def _decide(self) -> None:
        assert self._identity is not None, "a transaction is open"
        try:
            self._identity = await self._coordinator.end(self._identity, commit=True)
        except TidemarkError as error:
            if error.code not in _DECIDED:  # an earlier attempt, whose answer was lost, may have been carried out
                sentence = f"{error.message}; the commit may be stored: call commit() again to know"
                raise TidemarkError(error.code, sentence, dict(error.metadata) | {"in_doubt": "True"}) from error
            self._close()
            self._needs_init = True
            if error.code not in OLD_IDENTITY:
                raise
            await self._init()  # raises PRODUCER_FENCED if a newer producer has the id
            raise self.timed_out() from error
        self._close()

    async def _abort_because(self, failure: TidemarkError) -> None:
        """Abort and raise, for a failed record."""
        try:
            await self.abort()
        except TidemarkError as error:
            if error.code is ErrorCode.PRODUCER_FENCED:
                raise
            _log.warning("transactional id %s: the request to abort did not reach the coordinator: %s", self._id, error)
        if failure.retriable or failure.code in _OVER_IN_THE_NEXT:
            raise self._aborted(failure.message) from failure
        raise TidemarkError(failure.code, failure.message, dict(failure.metadata) | {"in_doubt": "False"}) from failure

    async def _init(self) -> None:
        """Get an identity; for a producer that continues, the coordinator distinguishes a timeout from a newer
        producer."""
        try:
            started = await self._coordinator.init(self._timeout_ms, self._identity)
        except TidemarkError as error:
            if error.code is ErrorCode.PRODUCER_FENCED:
                self._fence, self.phase = error, Phase.FENCED
            raise
        self._identity = started.identity
        self._needs_init = False

    def _start_timer(self) -> None:
        self._stop_timer()
        if self._identity is not None and not self._sender.ended.is_set():
            self._timer = self._sender.loop.call_later(RENEW_S, self._renew_in_background)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _renew_in_background(self) -> None:
        self._timer = None
        self._renewing = self._sender.loop.create_task(self._renew(), name=f"identity of {self._id}")

    async def _renew(self) -> None:
        """Change the coordinator's record of the id, which then does not expire; a replaced producer learns of it."""
        async with self._asking:
            if self.phase is not Phase.CLOSED:
                return
            self._needs_init = True
            try:
                await self._init()
            except TidemarkError as error:
                _log.info("transactional id %s: its identity was not renewed: %s", self._id, error)
            if self.phase is Phase.CLOSED:
                self._start_timer()

    def _close(self) -> None:
        self.phase = Phase.CLOSED
        self._start_timer()
        self._sender.accumulator.refuse(no_transaction(self._id))

    def _aborted(self, why: str) -> TidemarkError:
        return TidemarkError(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"transactional id {self._id!r}: the transaction was aborted: {why}; run it again",
        )

    def _state(self, why: str) -> TidemarkError:
        return TidemarkError(ErrorCode.INVALID_TXN_STATE, f"transactional id {self._id!r}: {why}")
