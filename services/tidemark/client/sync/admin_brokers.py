# SPDX-License-Identifier: Apache-2.0
"""Brokers that are added, removed and restarted, for the blocking admin client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.client.aio.admin.brokers import BrokerCalls as AsyncBrokerCalls
from tidemark.client.aio.admin.brokers import PlannedMoves, RemovalProgress
from tidemark.client.aio.admin.reassignments import WATCH_INTERVAL_MS
from tidemark.client.sync.admin_reassignments import iterate
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.core.planning.restart_safety import RestartObstacle


class BrokerCalls:
    """Part of the blocking `AdminClient`; see the async one for what arguments mean."""

    _client: AsyncBrokerCalls
    _background: BackgroundLoop

    def plan_brokers(
        self,
        *,
        add: Sequence[int] = (),
        remove: Sequence[int] = (),
        topics: Sequence[str] = (),
        spread: Sequence[int] = (),
    ) -> PlannedMoves:
        """What would move, and what that costs; nothing is changed."""
        return self._background.call(self._client.plan_brokers(add=add, remove=remove, topics=topics, spread=spread))

    def add_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
    ) -> PlannedMoves:
        """Give live brokers their share of the replicas; returns when the moves are begun, not when they are done."""
        return self._background.call(
            self._client.add_brokers(
                brokers,
                throttle_bytes_per_s=throttle_bytes_per_s,
                validate_only=validate_only,
                request_id=request_id,
            )
        )

    def remove_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        interval_ms: int = WATCH_INTERVAL_MS,
    ) -> Iterator[RemovalProgress]:
        """Drain brokers and deregister them, with news; what is under way goes on when you stop listening."""
        news = self._client.remove_brokers(
            brokers,
            throttle_bytes_per_s=throttle_bytes_per_s,
            validate_only=validate_only,
            request_id=request_id,
            interval_ms=interval_ms,
        )
        return iterate(self._background, news)

    def obstacles_to_restart(self, broker: int) -> list[RestartObstacle]:
        """Why the broker must not be restarted now, the gravest first; none: it is safe."""
        return self._background.call(self._client.obstacles_to_restart(broker))
