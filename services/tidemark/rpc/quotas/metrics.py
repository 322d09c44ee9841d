# SPDX-License-Identifier: Apache-2.0
"""Metrics of the use of quotas, by user and client id, with a bounded number of series."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from tidemark.core.quotas.accounts import OTHERS, Account, Accounts
from tidemark.core.quotas.quotas import QuotaKind
from tidemark.runtime.metrics import LABEL_SETS_MAX
from tidemark.runtime.metrics_text import family, labels


class _Family(NamedTuple):
    name: str
    doc: str
    kinds: tuple[QuotaKind, ...]
    value: Callable[[Account], float]


_FAMILIES: Final = (
    _Family(
        "quota_produced_bytes_total",
        "Bytes of produce requests under a quota",
        (QuotaKind.PRODUCER_BYTE_RATE,),
        lambda account: account.used,
    ),
    _Family(
        "quota_fetched_bytes_total",
        "Bytes of fetches under a quota",
        (QuotaKind.CONSUMER_BYTE_RATE,),
        lambda account: account.used,
    ),
    _Family(
        "quota_request_seconds_total",
        "Request time under a quota",
        (QuotaKind.REQUEST_PERCENTAGE,),
        lambda account: account.used,
    ),
    _Family(
        "quota_created_partitions_total",
        "Partitions created under a quota",
        (QuotaKind.PARTITION_CREATION_RATE,),
        lambda account: account.used,
    ),
    _Family(
        "quota_throttled_requests_total",
        "Requests that went beyond a quota",
        tuple(QuotaKind),
        lambda account: account.throttled,
    ),
    _Family(
        "quota_throttle_seconds_total",
        "Time for which answers requested clients to wait",
        tuple(QuotaKind),
        lambda account: account.throttle_s,
    ),
)


class QuotaMetrics:
    """A source of metrics as text. Accounts beyond the limit share one series of each family and kind.

    The common series keeps the sums of accounts that were closed or got their own series: a counter never falls.
    """

    def __init__(self, accounts: Accounts, limit: int = LABEL_SETS_MAX) -> None:
        self._accounts = accounts
        self._limit = limit
        self._named: set[Account] = set()
        self._others: dict[tuple[str, QuotaKind], float] = {}
        self._counted: dict[Account, dict[str, float]] = {}
        """Values of the accounts of the common series at the scrape before."""

    def render(self, names: Collection[str] = ()) -> str:
        """The metric families as text."""
        accounts = list(self._accounts)
        self._named &= set(accounts)
        room = self._limit - len(self._named)
        nameless = [one for one in accounts if one not in self._named and one.shared_by != OTHERS]
        self._named.update(nameless[:room])
        self._count_others([one for one in accounts if one not in self._named])
        return "".join(self._family(one, accounts) for one in _FAMILIES)

    def _count_others(self, accounts: list[Account]) -> None:
        before, self._counted = self._counted, {}
        for account in accounts:
            values = {one.name: one.value(account) for one in _FAMILIES if account.kind in one.kinds}
            self._counted[account] = values
            for name, value in values.items():
                key = (name, account.kind)
                self._others[key] = self._others.get(key, 0) + value - before.get(account, {}).get(name, 0)

    def _family(self, one: _Family, accounts: list[Account]) -> str:
        own = [(each.kind, each.shared_by, one.value(each)) for each in accounts if each in self._named]
        others = [(kind, OTHERS, value) for (name, kind), value in self._others.items() if name == one.name]
        samples: dict[str, float] = {}
        for kind, (user, client_id), value in (*own, *others):
            if kind in one.kinds:
                by_kind = {"kind": str(kind)} if len(one.kinds) > 1 else {}
                samples[labels(**by_kind, user=user or "", client_id=client_id or "")] = value
        return family(f"tidemark_{one.name}", "counter", one.doc, samples)
