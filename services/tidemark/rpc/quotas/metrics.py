# SPDX-License-Identifier: Apache-2.0
"""Metrics of the use of quotas, by user and client id, with a bounded number of series."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from tidemark.core.quotas.accounts import Account, Accounts
from tidemark.core.quotas.quotas import QuotaKind
from tidemark.runtime.metrics import LABEL_SETS_MAX, OTHER
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
    """A source of metrics as text. Accounts beyond the limit share one series of each family and kind."""

    def __init__(self, accounts: Accounts, limit: int = LABEL_SETS_MAX) -> None:
        self._accounts = accounts
        self._limit = limit

    def render(self, names: Collection[str] = ()) -> str:
        """The metric families as text."""
        accounts = list(self._accounts)
        return "".join(self._family(one, accounts) for one in _FAMILIES)

    def _family(self, one: _Family, accounts: list[Account]) -> str:
        samples: dict[str, float] = {}
        for at, account in enumerate(accounts):
            if account.kind not in one.kinds:
                continue
            user, client_id = account.shared_by if at < self._limit else (OTHER, OTHER)
            by_kind = {"kind": str(account.kind)} if len(one.kinds) > 1 else {}
            of = labels(**by_kind, user=user or "", client_id=client_id or "")
            samples[of] = samples.get(of, 0) + one.value(account)
        return family(f"tidemark_{one.name}", "counter", one.doc, samples)
