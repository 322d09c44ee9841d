# SPDX-License-Identifier: Apache-2.0
"""Which brokers the heartbeats speak against, damped and guarded (rules C5, C6). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.model import BrokerEpoch, BrokerId

_FLAP_WINDOW_MS: Final = 60_000
_HOLD_FIRST_MS: Final = 500
_HOLD_MAX_MS: Final = 10_000


@dataclass(slots=True)
class _Record:
    broker_epoch: BrokerEpoch
    suspected: bool = False
    times: tuple[int, ...] = ()
    trusted_again_ms: int | None = None


class Suspicions:
    """Suspected brokers. One that comes back is trusted again after a hold that doubles with each relapse."""

    def __init__(self, *, session_timeout_ms: int, elected_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._elected_ms = elected_ms
        self._records: dict[BrokerId, _Record] = {}
        self._ignoring_until_ms = -1

    def suspected(self, now_ms: int) -> frozenset[BrokerId]:
        """Brokers to act against now; none while the heartbeats themselves are in doubt."""
        if now_ms < self._ignoring_until_ms:
            return frozenset()
        return frozenset(broker for broker, record in self._records.items() if record.suspected)

    def suspect(self, broker: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> bool:
        """A refused reconnect or a missed deadline; whether that is news."""
        record = self._records.get(broker)
        if record is None or record.broker_epoch != broker_epoch:
            record = self._records[broker] = _Record(broker_epoch)
        record.trusted_again_ms = None
        if record.suspected:
            return False
        record.suspected = True
        recent = tuple(time for time in record.times if now_ms - time < _FLAP_WINDOW_MS)
        record.times = (*recent, now_ms)
        return True

    def trust(self, broker: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> None:
        """It answers again."""
        record = self._records.get(broker)
        if record is None or not record.suspected or record.broker_epoch != broker_epoch:
            return
        relapses = len(record.times) - 1
        hold_ms = 0 if relapses == 0 else min(_HOLD_FIRST_MS << min(relapses - 1, 10), _HOLD_MAX_MS)
        if record.trusted_again_ms is None:
            record.trusted_again_ms = now_ms + hold_ms

    def forget(self, broker: BrokerId) -> None:
        """Its node is gone, or it registered anew: ZooKeeper's word counts now."""
        self._records.pop(broker, None)

    def on_time(self, now_ms: int) -> None:
        """End the holds that are over."""
        for record in self._records.values():
            if record.trusted_again_ms is not None and now_ms >= record.trusted_again_ms:
                record.suspected = False
                record.trusted_again_ms = None

    def guard(self, live_count: int, now_ms: int) -> bool:
        """Stop acting when too many are suspected at once: more likely it is us (rule C6).

        Returns:
            whether this controller should resign: it has been in office for more than two session timeouts.
        """
        if now_ms < self._ignoring_until_ms:
            return False
        window_ms = self._session_timeout_ms
        recent = [
            record for record in self._records.values() if record.suspected and now_ms - record.times[-1] < window_ms
        ]
        if len(recent) <= 1 or len(recent) * 3 <= live_count:
            return False
        self._ignoring_until_ms = now_ms + self._session_timeout_ms
        return now_ms - self._elected_ms > 2 * self._session_timeout_ms
