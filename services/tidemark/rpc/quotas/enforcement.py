# SPDX-License-Identifier: Apache-2.0
"""Enforces quotas on the callers of one process: counts their use, states their waits, and delays their calls.

Services of the cluster have no quotas. The answer to a caller over its quota states how long to wait. If the caller
does not wait, its next call is delayed by the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from tidemark.core.quotas.accounts import WAIT_MAX_S, Account, Accounts
from tidemark.core.quotas.quotas import QuotaKind, Quotas
from tidemark.core.security.principals import ANONYMOUS
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.rpc.quotas.client_id import client_id_of
from tidemark.rpc.security.callers import caller_of
from tidemark.runtime.clock import timeout

_NEARLY_S: Final = 0.001
"""Shorter waits are ignored: a timer of the client may be too early by this time."""
_FETCH_S: Final = 1.0
"""A response has at most the bytes that the quota allows in this time, so that a small quota is spread evenly."""


class ClientQuotas:
    """The quotas of one process, and their use.

    Attributes:
        accounts: the use.

    Args:
        cluster: the cluster's name in the identities of its services; "" on a plain-text port.
        now_s: a monotonic clock.
    """

    def __init__(self, cluster: str = "", now_s: Callable[[], float] = time.monotonic) -> None:
        self.accounts = Accounts()
        self.now_s = now_s
        self._cluster = cluster
        self._changed = asyncio.Event()

    def use(self, quotas: Quotas) -> None:
        """Put quotas into effect; waiting callers check them again."""
        self.accounts.use(quotas)
        self._changed.set()
        self._changed = asyncio.Event()

    def of(self, context: Any) -> CallerQuotas:
        """The quotas of a call's caller. Read before the call waits: gRPC frees a call that its caller cancelled.

        Raises:
            TidemarkError: INVALID_REQUEST for a client id that no client may have.
        """
        caller = caller_of(context) or ANONYMOUS
        if self._cluster and caller.role is not None and caller.cluster == self._cluster:
            return NO_QUOTAS
        return CallerQuotas(self, caller.name, client_id_of(context))

    async def pause(self, wait_s: float) -> None:
        """Wait for `seconds`, or until the quotas change."""
        try:
            async with timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return


class CallerQuotas:
    """The quotas of one caller during a call or stream.

    Args:
        owner: owner of the quotas; None: the caller has no quotas.
    """

    __slots__ = ("_client_id", "_owner", "_user")

    def __init__(self, owner: ClientQuotas | None, user: str = "", client_id: str = "") -> None:
        self._owner = owner
        self._user = user
        self._client_id = client_id

    def debit(self, kind: QuotaKind, amount: float) -> None:
        """Count bytes, or seconds of request time."""
        owner = self._owner
        if owner is None or not owner.accounts.quotas.limits:
            return
        account = self._account(kind)
        if account is not None:
            account.debit(amount, owner.now_s())

    def wait_ms(self, *kinds: QuotaKind) -> int:
        """Milliseconds until all these quotas are kept again, rounded up; 0: now, or nearly."""
        owner = self._owner
        if owner is None or not owner.accounts.quotas.limits:
            return 0
        wait_s = self._wait_s(kinds)
        return int(wait_s * 1000) + 1 if wait_s > _NEARLY_S else 0

    async def hold(self, *kinds: QuotaKind, at_most_s: float = WAIT_MAX_S) -> None:
        """Wait for the present `wait_ms`, but not longer than `at_most_s`. A change of the quotas may end the wait.

        The use of other callers during the wait does not prolong it, so a client that observes its waits has no further
        wait.
        """
        owner = self._owner
        if owner is None or not owner.accounts.quotas.limits:
            return
        until_s = owner.now_s() + min(self._wait_s(kinds), at_most_s)
        while (left_s := until_s - owner.now_s()) > 0:
            await owner.pause(left_s)
            until_s = min(until_s, owner.now_s() + self._wait_s(kinds))

    @asynccontextmanager
    async def timed(self, at_most_s: float) -> AsyncIterator[None]:
        """Delay a single call, as `hold`, and count the time of its work."""
        await self.hold(QuotaKind.REQUEST_PERCENTAGE, at_most_s=at_most_s)
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.debit(QuotaKind.REQUEST_PERCENTAGE, time.perf_counter() - began_s)

    def response_bytes_max(self) -> float:
        """Bytes that one response of a fetch may have; infinity without a quota."""
        account = self._account(QuotaKind.CONSUMER_BYTE_RATE)
        return float("inf") if account is None else max(1.0, account.rate * _FETCH_S)

    def admit(self, kind: QuotaKind, amount: float, what: str) -> None:
        """Count an amount if the quota is kept.

        Args:
            kind: kind of the quota.
            amount: amount of any size.
            what: plural noun of the items, for the error.

        Raises:
            TidemarkError: THROTTLING_QUOTA_EXCEEDED with the wait; then the items are not counted.
        """
        account = self._account(kind)
        if account is None or self._owner is None or amount <= 0:
            return
        wait_s = account.admit(amount, self._owner.now_s())
        if wait_s > 0:
            wait_ms = int(wait_s * 1000) + 1
            raise TidemarkError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._user} has used up its quota of {what}; nothing was changed: retry after {wait_ms} ms, or ask "
                f"an operator for more: tidemark quota set",
                {"quota": str(kind), "throttle_time_ms": str(wait_ms)},
            )

    def _account(self, kind: QuotaKind) -> Account | None:
        owner = self._owner
        if owner is None or not owner.accounts.quotas.limits:
            return None
        return owner.accounts.of(kind, self._user, self._client_id, owner.now_s())

    def _wait_s(self, kinds: tuple[QuotaKind, ...]) -> float:
        found = [account for account in map(self._account, kinds) if account is not None]
        if not found or self._owner is None:
            return 0.0
        now_s = self._owner.now_s()
        return max(account.wait_s(now_s) for account in found)


NO_QUOTAS: Final = CallerQuotas(None)
