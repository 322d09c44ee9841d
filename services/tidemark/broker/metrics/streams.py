# SPDX-License-Identifier: Apache-2.0
"""Metrics of open streams and of the connections that carry them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidemark.runtime.metrics import Metrics

KINDS: Final = ("produce", "fetch", "metadata")
"""Kinds of clients' streams; a follower has one replication stream."""


class OpenStreams:
    """Counts each stream from its call to its end, and each connection while it has a client's stream.

    Args:
        replica_count: returns the number of followers' streams.
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
        """Count a client's stream while the context is entered."""
        # Read before the stream begins: gRPC frees the call when the client leaves, and a later read crashes the
        # process.
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
