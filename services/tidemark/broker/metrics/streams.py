# SPDX-License-Identifier: Apache-2.0
"""Which streams are open, and how many connections of clients they come on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidemark.runtime.metrics import Metrics

KINDS: Final = ("produce", "fetch", "metadata")
"""Of clients; followers have one each."""


class OpenStreams:
    """Counted from the call on to its end. A connection counts while it has a stream of a client.

    Args:
        replica_count: gives how many streams of followers there are.
    """

    def __init__(self, metrics: Metrics, replica_count: Callable[[], int]) -> None:
        streams = metrics.gauge("broker_streams", "Open streams, by kind", ("kind",))
        self._streams = {kind: streams.labels(kind) for kind in KINDS}
        streams.labels("replica").set_function(replica_count)
        self._peers: Counter[str] = Counter()
        connections = metrics.gauge("broker_connections", "Connections of clients with an open stream")
        connections.set_function(lambda: len(self._peers))

    @contextmanager
    def open(self, kind: str, context: Any) -> Iterator[None]:
        """While a stream of a client is served."""
        # Asked now: when the caller has left, gRPC has freed the call, and asking ends the process.
        peer = context.peer()
        self._streams[kind].inc()
        self._peers[peer] += 1
        try:
            yield
        finally:
            self._streams[kind].dec()
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]
