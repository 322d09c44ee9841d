# SPDX-License-Identifier: Apache-2.0
"""Brokers suspected by their heartbeats, damped against flapping and guarded (rules C5, C6). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.model import BrokerEpoch, BrokerId

_FLAP_WINDOW_MS: Final = 60_000
_HOLD_FIRST_MS: Final = 500
_HOLD_MAX_MS: Final = 10_000


@dataclass(slots=True)
class _Suspicion:
    """State of failure detection for one broker, in one broker epoch.

    Attributes:
        broker_epoch: a registration in another epoch begins unsuspected.
        suspected: the controller acts against the broker.
        times: times at which the broker became suspected, within `_FLAP_WINDOW_MS`; never empty once suspected.
        trusted_again_ms: end of the hold, if heartbeats are answered until then; None: heartbeats are not
            answered.
    """

    broker_epoch: BrokerEpoch
    suspected: bool = False
    times: tuple[int, ...] = ()
    trusted_again_ms: int | None = None


class FailureDetector:
    """Suspected brokers. A broker that answers again stays suspected for a hold, which doubles with each relapse.

    Attributes:
        _elected_ms: time when this controller was elected.
        _suspicions: of brokers that were suspected in their present broker epoch.
        _ignoring_until_ms: until this time no broker counts as suspected, since too many were suspected at the same
            time.
    """

    def __init__(self, *, session_timeout_ms: int, elected_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._elected_ms = elected_ms
        self._suspicions: dict[BrokerId, _Suspicion] = {}
        self._ignoring_until_ms = -1

    def suspected(self, now_ms: int) -> frozenset[BrokerId]:
        """Brokers that count as failed now; none while `guard` ignores failure detection."""
        if now_ms < self._ignoring_until_ms:
            return frozenset()
        return frozenset(broker for broker, suspicion in self._suspicions.items() if suspicion.suspected)

    def suspect(self, broker: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> bool:
        """A refused reconnect or a missed deadline; returns whether the broker was not suspected before."""
        suspicion = self._suspicions.get(broker)
        if suspicion is None or suspicion.broker_epoch != broker_epoch:
            suspicion = self._suspicions[broker] = _Suspicion(broker_epoch)
        suspicion.trusted_again_ms = None
        if suspicion.suspected:
            return False
        suspicion.suspected = True
        recent = tuple(time for time in suspicion.times if now_ms - time < _FLAP_WINDOW_MS)
        suspicion.times = (*recent, now_ms)
        return True

    def trust(self, broker: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> None:
        """The broker answers heartbeats again: start the hold, after which the broker is no longer suspected."""
        suspicion = self._suspicions.get(broker)
        if suspicion is None or not suspicion.suspected or suspicion.broker_epoch != broker_epoch:
            return
        relapses = len(suspicion.times) - 1
        hold_ms = 0 if relapses == 0 else min(_HOLD_FIRST_MS << min(relapses - 1, 10), _HOLD_MAX_MS)
        if suspicion.trusted_again_ms is None:
            suspicion.trusted_again_ms = now_ms + hold_ms

    def forget(self, broker: BrokerId) -> None:
        """The registration ended or was replaced: ZooKeeper decides from here on."""
        self._suspicions.pop(broker, None)

    def on_time(self, now_ms: int) -> None:
        """Stop suspecting the brokers whose hold is over."""
        for suspicion in self._suspicions.values():
            if suspicion.trusted_again_ms is not None and now_ms >= suspicion.trusted_again_ms:
                suspicion.suspected = False
                suspicion.trusted_again_ms = None

    def guard(self, live_count: int, now_ms: int) -> bool:
        """Ignore failure detection for a session timeout when too many brokers are suspected at the same time: the
        controller is probably the one that is partitioned (rule C6).

        Returns:
            whether this controller should resign: it has been active for more than two session timeouts.
        """
        if now_ms < self._ignoring_until_ms:
            return False
        window_ms = self._session_timeout_ms
        recent = [one for one in self._suspicions.values() if one.suspected and now_ms - one.times[-1] < window_ms]
        if len(recent) <= 1 or len(recent) * 3 <= live_count:
            return False
        self._ignoring_until_ms = now_ms + self._session_timeout_ms
        return now_ms - self._elected_ms > 2 * self._session_timeout_ms
