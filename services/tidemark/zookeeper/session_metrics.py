# SPDX-License-Identifier: Apache-2.0
"""What a ZooKeeper session tells Prometheus: its state, how long requests take, and what became of sessions before it.

The session writes plain numbers on the event loop; a scrape reads them on its own thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from typing import Final

from tidemark.runtime.metrics_text import counter, family, gauge, histogram, labels

STATES: Final = ("connected", "suspended", "expired", "closed")
_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class SessionTally:
    """What happened since the process began.

    Attributes:
        state: one of `STATES`; "closed" before the first session too.
        expiries: sessions that ZooKeeper declared dead.
        disconnects: times that the connection was lost.
        failed: requests without an answer.
        timeout_ms: what the server granted last; 0 before.
    """

    def __init__(self) -> None:
        self.state = "closed"
        self.expiries = self.disconnects = self.failed = self.timeout_ms = 0
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._total_s = 0.0

    def connected(self, timeout_ms: int) -> None:
        """A session is there, or is there again."""
        self.state, self.timeout_ms = "connected", timeout_ms

    def suspended(self) -> None:
        """The connection is lost; the session may live on."""
        self.state = "suspended"
        self.disconnects += 1

    def expired(self) -> None:
        """ZooKeeper has ended the session."""
        self.state = "expired"
        self.expiries += 1

    def closed(self) -> None:
        """By us. One that has expired stays so until there is another."""
        if self.state != "expired":
            self.state = "closed"

    def answered(self, seconds: float) -> None:
        """A request was, if only with a refusal."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def latency(self) -> str:
        """The histogram."""
        doc = "Time from a request to ZooKeeper to its answer"
        return histogram("tidemark_zookeeper_request_seconds", doc, _BOUNDS_S, tuple(self._counts), self._total_s)


class SessionMetrics:
    """A source of text.

    Args:
        lease_until_ms: end of the lease (rule F1) on the same clock as `now_ms`; 0 with no session.
    """

    def __init__(self, tally: SessionTally, lease_until_ms: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self._tally = tally
        self._lease_until_ms = lease_until_ms
        self._now_ms = now_ms

    def render(self, names: Collection[str] = ()) -> str:
        """All families."""
        tally, lease_ms = self._tally, max(0, self._lease_until_ms() - self._now_ms())
        name, state = "tidemark_zookeeper", tally.state
        states = {labels(state=one): int(one == state) for one in STATES}
        return (
            family(f"{name}_session_state", "gauge", "1 for the state of the session", states)
            + counter(f"{name}_session_expiries_total", "Sessions that ZooKeeper expired", tally.expiries)
            + counter(f"{name}_disconnects_total", "Lost connections", tally.disconnects)
            + gauge(
                f"{name}_session_timeout_seconds", "Session timeout that the server granted", tally.timeout_ms / 1000
            )
            + gauge(f"{name}_lease_seconds", "Time until the session lease ends", lease_ms / 1000)
            + counter(f"{name}_requests_failed_total", "Requests without an answer", tally.failed)
            + tally.latency()
        )
