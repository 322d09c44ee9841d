# SPDX-License-Identifier: Apache-2.0
"""The use of quotas: one account for each quota and for each group of callers that shares it.

Bounded: callers choose their client ids, so there may be any number of them. Callers beyond the limit share one account
for each kind of quota. Callers whose quota is of a user share one account for each user. A user cannot choose another
name, and must not be charged for the client ids of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tidemark.core.quotas.bucket import Bucket
from tidemark.core.quotas.quotas import QuotaEntity, QuotaKind, Quotas

WAIT_MAX_S: Final = 30.0
"""Longest wait of one request. Use beyond this is not counted, except for partitions."""
BURST_S: Final = 1.0
"""A caller that was idle may use its quota of this time in one burst."""
ACCOUNTS_MAX: Final = 10_000
_CLOSE_EVERY_S: Final = 1.0
"""Interval at which a full table closes unused accounts."""
_OTHER: Final = "_other"
OTHERS: Final = QuotaEntity(_OTHER, _OTHER)
"""Client ids beyond `ACCOUNTS_MAX` whose quota has no user, and users beyond twice that number."""

_UNITS: Final[Mapping[QuotaKind, float]] = MappingProxyType({QuotaKind.REQUEST_PERCENTAGE: 0.01})
"""Factor from the unit of a limit to the unit of its amounts: amounts of request time are seconds."""


class Account:
    """The use of one quota by the callers that share it.

    Attributes:
        kind: kind of the quota.
        shared_by: the callers.
        rate: bytes, seconds of request time, or partitions per second.
        used: bytes, seconds or partitions since the account exists.
        throttled: requests whose answers stated a wait.
        throttle_s: the sum of these waits.
    """

    __slots__ = ("bucket", "kind", "rate", "shared_by", "throttle_s", "throttled", "used", "wait_max_s")

    def __init__(self, kind: QuotaKind, shared_by: QuotaEntity) -> None:
        self.kind = kind
        self.shared_by = shared_by
        self.rate = 1.0
        self.bucket = Bucket()
        self.used = 0.0
        self.throttled = 0
        self.throttle_s = 0.0
        self.wait_max_s = math.inf if kind is QuotaKind.PARTITION_CREATION_RATE else WAIT_MAX_S

    def wait_s(self, now_s: float) -> float:
        """Seconds until the quota is kept again."""
        return self.bucket.wait_s(self.rate, now_s, BURST_S)

    def debit(self, amount: float, now_s: float) -> float:
        """Count an amount, and return the seconds to wait."""
        self.used += amount
        wait_s = self.bucket.debit(amount, self.rate, now_s, BURST_S, self.wait_max_s)
        if wait_s > 0:
            self.throttled += 1
            self.throttle_s += wait_s
        return wait_s

    def admit(self, amount: float, now_s: float) -> float:
        """Count an amount if the quota is kept, and return 0; otherwise the seconds to wait, and nothing is counted.

        An amount of any size is admitted, so that a request larger than the quota can ever succeed (KIP-599).
        """
        wait_s = self.wait_s(now_s)
        if wait_s > 0:
            self.throttled += 1
            self.throttle_s += wait_s
            return wait_s
        self.used += amount
        self.bucket.debit(amount, self.rate, now_s, BURST_S, self.wait_max_s)
        return 0.0


class Accounts:
    """All accounts of quota use in one process.

    Attributes:
        quotas: the present quotas.
    """

    def __init__(self, accounts_max: int = ACCOUNTS_MAX) -> None:
        self.quotas = Quotas()
        self._accounts_max = accounts_max
        self._accounts: dict[tuple[QuotaKind, QuotaEntity], Account] = {}
        self._found: dict[tuple[QuotaKind, str, str], Account | None] = {}
        """Accounts by caller, until the quotas change."""
        self._look_again_s = -math.inf

    def __iter__(self) -> Iterator[Account]:
        return iter(tuple(self._accounts.values()))

    def use(self, quotas: Quotas) -> None:
        """Put quotas into effect. Accounts keep their debts, at their new rates."""
        self.quotas = quotas
        self._found.clear()

    def of(self, kind: QuotaKind, user: str, client_id: str, now_s: float) -> Account | None:
        """The account that a caller uses; None: no quota of this kind applies."""
        if not self.quotas.limits:
            return None
        key = (kind, user, client_id)
        try:
            return self._found[key]
        except KeyError:
            pass
        if len(self._found) >= 2 * self._accounts_max:
            self._found.clear()
        found = self._found[key] = self._look_up(kind, user, client_id, now_s)
        return found

    def _look_up(self, kind: QuotaKind, user: str, client_id: str, now_s: float) -> Account | None:
        decision = self.quotas.decide(kind, user, client_id)
        if decision is None:
            return None
        account = self._accounts.get((kind, decision.shared_by))
        if account is None:
            account = self._opened(kind, decision.shared_by, now_s)
        account.rate = decision.limit * _UNITS.get(kind, 1.0)
        return account

    def _opened(self, kind: QuotaKind, shared_by: QuotaEntity, now_s: float) -> Account:
        if len(self._accounts) >= self._accounts_max:
            if now_s >= self._look_again_s:
                self._look_again_s = now_s + _CLOSE_EVERY_S
                self._close_idle(now_s)
            if len(self._accounts) >= self._accounts_max:
                shared_by = self._without_client_id(kind, shared_by)
        return self._accounts.setdefault((kind, shared_by), Account(kind, shared_by))

    def _without_client_id(self, kind: QuotaKind, shared_by: QuotaEntity) -> QuotaEntity:
        """The callers that share an account in a full table: all other client ids of a user."""
        if shared_by.user is None:
            return OTHERS
        if shared_by.client_id is not None:
            shared_by = shared_by._replace(client_id=_OTHER)
        known = (kind, shared_by) in self._accounts or len(self._accounts) < 2 * self._accounts_max
        return shared_by if known else OTHERS

    def _close_idle(self, now_s: float) -> None:
        """Remove the accounts without a debt: a new account would be equal, apart from the sums."""
        idle = [key for key, one in self._accounts.items() if one.bucket.wait_s(one.rate, now_s) == 0]
        for key in idle:
            del self._accounts[key]
        if idle:
            self._found.clear()
