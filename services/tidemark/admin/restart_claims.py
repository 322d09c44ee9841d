# SPDX-License-Identifier: Apache-2.0
"""Claims of a restart: the admin service permits the restart of one broker at a time.

Two brokers that ask at the same time would both find all replicas in sync. A claim is written before the state of the
partitions is read. So the second broker finds either the claim, or an ISR without the first broker.

The clocks of admin services differ. So each service measures the time of a claim since it first read the claim, and the
date in the claim only ends old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tidemark.model import BrokerEpoch, BrokerId
from tidemark.ports import Clock, RestartClaim
from tidemark.zookeeper.store import MetadataStore

CLAIM_MS: Final = 30_000
"""Longest time from a permission until the broker leaves its ISRs; afterwards a broker that did not stop blocks no
other broker.
"""
_CLOCKS_MS: Final = 300_000
"""Largest difference of clocks: a service ignores a claim that has been over for this time when it first reads it."""


class RestartClaims:
    """Takes and ends the claim of a restart in ZooKeeper.

    Args:
        store: started.
        clock: measures the time of claims, and dates them, in ms since 1970.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: RestartClaim | None = None
        self._seen_at_ms = 0

    async def holder(self, live: Mapping[BrokerId, BrokerEpoch]) -> BrokerId | None:
        """The broker whose claim of a restart is still valid; None: there is no such claim."""
        claim = await self._store.restart_claim()
        return claim.broker_id if claim is not None and self._is_valid(claim, live) else None

    async def take(self, broker: BrokerId, live: Mapping[BrokerId, BrokerEpoch]) -> RestartClaim | None:
        """Claim the restart for a live broker, even if this broker has the claim already; None while another broker has
        the claim.
        """
        before = await self._store.restart_claim()
        if before is not None and before.broker_id != broker and self._is_valid(before, live):
            return None
        version = -1 if before is None else before.version
        claim = RestartClaim(broker, live[broker], self._wall_ms() + CLAIM_MS, version)
        return replace(claim, version=version + 1) if await self._store.write_restart_claim(claim) else None

    async def give_up(self, claim: RestartClaim) -> None:
        """End the claim, unless another broker has claimed the restart meanwhile."""
        await self._store.end_restart_claim(claim)

    def _is_valid(self, claim: RestartClaim, live: Mapping[BrokerId, BrokerEpoch]) -> bool:
        now_ms = self._clock.now_ms()
        if claim != self._seen:
            self._seen, self._seen_at_ms = claim, now_ms
        is_young = now_ms - self._seen_at_ms < CLAIM_MS and self._wall_ms() < claim.until_ms + _CLOCKS_MS
        return is_young and live.get(claim.broker_id) == claim.broker_epoch

    def _wall_ms(self) -> int:
        return self._clock.wall_us() // 1000
