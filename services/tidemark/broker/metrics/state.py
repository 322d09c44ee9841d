# SPDX-License-Identifier: Apache-2.0
"""The state of a broker: starting, recovering (logs are being opened), running, stopping."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from tidemark.runtime.metrics_text import family, labels

STATES: Final = ("starting", "recovering", "running", "stopping")


class BrokerState:
    """A source of metrics as text.

    Attributes:
        state: "starting", "running" or "stopping".
        remaining_logs: returns the number of logs that are not open yet.
    """

    def __init__(self) -> None:
        self.state = "starting"
        self.remaining_logs: Callable[[], int] = lambda: 0

    def render(self, names: Collection[str] = ()) -> str:
        """One family; the current state has the value 1."""
        state = "recovering" if self.state != "stopping" and self.remaining_logs() else self.state
        return family(
            "tidemark_broker_state",
            "gauge",
            "1 for the present state of the broker",
            {labels(state=one): int(one == state) for one in STATES},
        )
