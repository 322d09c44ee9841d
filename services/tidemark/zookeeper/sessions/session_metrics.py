# SPDX-License-Identifier: Apache-2.0
"""Metrics of the ZooKeeper session: its state, the latency of requests, expiries and disconnects.

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
    """Counters since the start of the process.

    Attributes:
        state: a state of `STATES`; also "closed" before the first session.
        expiries: sessions that ZooKeeper expired.
        disconnects: lost connections.
        failed: requests without an answer.
        timeout_ms: session timeout that the server granted last; 0 before the first.
        nodes_open: every session may change the znodes, as far as this session knows.
    """

    def __init__(self) -> None:
        self.state = "closed"
        self.nodes_open = True
        self.expiries = self.disconnects = self.failed = self.timeout_ms = 0
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._total_s = 0.0

    def connected(self, timeout_ms: int) -> None:
        """Note that a session was established or restored."""
        self.state, self.timeout_ms = "connected", timeout_ms

    def suspended(self) -> None:
        """Note that the connection was lost; the session may still live."""
        self.state = "suspended"
        self.disconnects += 1

    def expired(self) -> None:
        """Note that ZooKeeper expired the session."""
        self.state = "expired"
        self.expiries += 1

    def closed(self) -> None:
        """Note that this process closed the session; an expired session stays expired until the next session."""
        if self.state != "expired":
            self.state = "closed"

    def answered(self, seconds: float) -> None:
        """Count an answered request, including a request that ZooKeeper refused."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def latency(self) -> str:
        """The histogram of request latencies."""
        doc = "Time from a request to ZooKeeper to its answer"
        return histogram("tidemark_zookeeper_request_seconds", doc, _BOUNDS_S, tuple(self._counts), self._total_s)


class SessionMetrics:
    """Renders the metrics as text.

    Args:
        lease_until_ms: end of the lease (rule F1) on the clock of `now_ms`; 0 without a session.
        not_after_s: end of the validity of the session's certificate, in seconds since 1970; 0 without TLS.
    """

    def __init__(
        self,
        tally: SessionTally,
        lease_until_ms: Callable[[], int],
        now_ms: Callable[[], int],
        not_after_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._not_after_s = not_after_s
        self._tally = tally
        self._lease_until_ms = lease_until_ms
        self._now_ms = now_ms

    def render(self, names: Collection[str] = ()) -> str:
        """The metric families as text."""
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
            + gauge(
                f"{name}_certificate_expiry_timestamp_seconds",
                "End of the validity of the certificate for ZooKeeper; 0: plain text",
                self._not_after_s(),
            )
            + gauge(f"{name}_nodes_open", "1 if every session may change the znodes", int(tally.nodes_open))
            + counter(f"{name}_requests_failed_total", "Requests without an answer", tally.failed)
            + tally.latency()
        )
