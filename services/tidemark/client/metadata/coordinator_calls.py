# SPDX-License-Identifier: Apache-2.0
"""Calls to a coordinator, which may move between brokers: of a consumer group, or of a transactional id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from tidemark.client.metadata.backoff import AttemptTimeout, Backoff
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError, host_port
from tidemark.rpc import errors
from tidemark.runtime.clock import timeout

_FIND_TIMEOUT_S: Final = 2.0
_CALL_TIMEOUT_S: Final = 5.0
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_NOT_HERE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
"""Errors that are retriable with a newer epoch only; these calls are retried unchanged."""


Find = Callable[[str, float], Awaitable[str]]
"""Asks the broker at an address, within seconds, for the address of the coordinator; raises TidemarkError."""


class CoordinatorCalls:
    """Finds a coordinator, and looks it up again when it does not answer; used on one event loop.

    Args:
        cluster: metadata and channels.
        subject: names the group or the transactional id in errors.
        find: function that asks one broker for the coordinator.
        stub: makes the stub of the service at an address.
    """

    def __init__(self, cluster: Cluster, subject: str, *, find: Find, stub: Callable[[str], Any]) -> None:
        self._cluster = cluster
        self._subject = subject
        self._find_at = find
        self._stub = stub
        self._address: str | None = None
        self._named_by = ""
        self._hinted = False
        """The address comes from the refusal of another broker, and has not been confirmed by an answer yet."""
        self._misled_by: set[str] = set()
        """Brokers whose answer named a wrong coordinator; their metadata may be stale."""

    async def call(
        self, method: Callable[[Any], Callable[..., Any]], request: Any, *, timeout_s: float, wait_s: float = 0.0
    ) -> Any:
        """Call the coordinator; retriable errors are retried.

        Args:
            method: method of a stub, e.g. `lambda stub: stub.GroupHeartbeat`.
            request: the request.
            timeout_s: time limit of all attempts together, in seconds.
            wait_s: time for which the coordinator may hold its response.

        Raises:
            TidemarkError: the coordinator's refusal; REQUEST_TIMED_OUT with the last error.
        """
        refusals: list[TidemarkError] = []
        try:
            async with timeout(timeout_s):
                return await self._ask_on(method, request, time.monotonic() + timeout_s, wait_s, refusals)
        except TimeoutError:
            cause = refusals[-1] if refusals else None
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._subject}: no answer within {max(0.0, timeout_s):.3g} s; the last error: {cause or 'none'}",
            ) from cause

    async def _ask_on(
        self,
        method: Callable[[Any], Any],
        request: Any,
        deadline_s: float,
        wait_s: float,
        refusals: list[TidemarkError],
    ) -> Any:
        """Retry until an attempt succeeds; the last retriable error is in `refusals`."""
        backoff, attempt, finding = Backoff(max_s=1.0), AttemptTimeout(_CALL_TIMEOUT_S), AttemptTimeout(_FIND_TIMEOUT_S)
        while True:
            left_s = deadline_s - time.monotonic()
            address = None
            try:
                address = self._address or await self._find(left_s, finding)
                self._cluster.used(address)
                attempt_s = attempt.within(left_s) + wait_s
                ask, headers = method(self._stub(address)), self._cluster.headers
                answer = await answer_of(ask(request, timeout=attempt_s, metadata=headers), address)
            except TidemarkError as error:
                if not error.retriable or error.code in _NOT_HERE:
                    raise
                if address is not None:
                    attempt.note([error])
                self._note(error, address)
                refusals[:] = [error]
                await asyncio.sleep(backoff.next_s())
            else:
                self._hinted = False
                self._misled_by.clear()
                return answer

    def _note(self, error: TidemarkError, asked: str | None) -> None:
        """Look for another coordinator, which the refusal may name. If the named broker also refuses and names one,
        the client does not call that broker: stale metadata could make an endless loop.
        """
        if error.code not in _MOVED or asked is None or asked != self._address:
            return  # a concurrent call has already changed the address
        self._misled_by.add(self._named_by)
        hint = host_port(error.metadata.get("host", ""), error.metadata.get("port", ""))
        if error.code is ErrorCode.NOT_COORDINATOR and "host" in error.metadata and hint != asked and not self._hinted:
            self._address, self._hinted = hint, True
        else:
            self._address, self._hinted = None, False
            self._cluster.refresh()

    async def _find(self, left_s: float, attempt: AttemptTimeout) -> str:
        """Ask one broker after another; raises COORDINATOR_NOT_AVAILABLE, and refusals that no other broker clears."""
        refusals = [TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker is known")]
        addresses = self._cluster.addresses()
        if self._misled_by.issuperset(addresses):
            self._misled_by.clear()
        for address in sorted(addresses, key=lambda one: one in self._misled_by):
            try:
                found = await self._find_at(address, attempt.within(left_s))
            except TidemarkError as error:
                if not error.retriable and error.code is not ErrorCode.INTERNAL:
                    raise
                refusals.append(error)
                continue
            self._address, self._named_by, self._hinted = found, address, False
            return found
        attempt.note(refusals)
        raise refusals[-1]


async def answer_of(call: Any, address: str) -> Any:
    """Await the answer of a broker; raises TidemarkError."""
    try:
        return await call
    except grpc.aio.AioRpcError as failure:
        raise errors.from_rpc_error(failure, address=address) from None


def asks_for_one(
    method: Callable[[Any], Callable[..., Any]], found_in: Callable[[Any], Sequence[Any]]
) -> Callable[[Any], Callable[..., Any]]:
    """A method for `CoordinatorCalls.call` that describes one group or transaction; raises the error in the
    description.
    """

    def of(stub: Any) -> Callable[..., Any]:
        async def ask(request: Any, **options: Any) -> Any:
            (found,) = found_in(await method(stub)(request, **options))
            errors.raise_error_in(found)
            return found

        return ask

    return of
