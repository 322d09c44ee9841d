"""Prometheus metrics: a registry, names `tidemark_*` in base units, bounded cardinality, and the /metrics port.

Server-side only: nothing that the client imports may import this module.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from tidemark.model import ErrorCode, TidemarkError

LATENCY_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

LABEL_SETS_MAX: Final = 1000
"""Different label values of one metric; what comes later is counted under `OTHER`."""

OTHER: Final = "_other"

_PREFIX: Final = "tidemark_"
_WAKE_S: Final = 0.05


class LabelLimit:
    """Keeps the cardinality of one metric bounded: the first so many label sets are kept, others become `OTHER`."""

    def __init__(self, limit: int = LABEL_SETS_MAX) -> None:
        self._limit = limit
        self._seen: set[tuple[str, ...]] = set()

    def admit(self, *values: str) -> tuple[str, ...]:
        """`values`, or as many times `OTHER` when there are too many already."""
        if values in self._seen:
            return values
        if len(self._seen) >= self._limit:
            return (OTHER,) * len(values)
        self._seen.add(values)
        return values

    def forget(self, *values: str) -> None:
        """Make room: these values are gone."""
        self._seen.discard(values)


class Metrics:
    """The metrics of one process. Names are given without the prefix and are the same in code and in dashboards."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """`tidemark_<name>`; the library adds `_total`."""
        return Counter(_PREFIX + name, doc, labels, registry=self.registry)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """`tidemark_<name>`."""
        return Gauge(_PREFIX + name, doc, labels, registry=self.registry)

    def histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        """`tidemark_<name>`, in seconds unless the name says otherwise."""
        return Histogram(_PREFIX + name, doc, labels, registry=self.registry, buckets=tuple(buckets))


METRICS: Final = Metrics()
"""The process's own; tests make theirs."""


class MetricsServer:
    """Serves /metrics on a thread of its own."""

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=metrics.registry)
        except OSError as error:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"metrics.listeners is {host}:{port}: cannot listen there ({error.strerror or error})",
                {"config": "metrics.listeners"},
            ) from error

    @property
    def port(self) -> int:
        """The port it listens on, also where 0 was asked for."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving; the port is free afterwards."""
        host, port = self._server.server_address[:2]
        ending = threading.Thread(target=self._server.shutdown, name="metrics end")
        ending.start()
        while ending.is_alive():  # it would look only every half second: whoever connects wakes it
            with contextlib.suppress(OSError):
                socket.create_connection((str(host), port), timeout=_WAKE_S).close()
            ending.join(_WAKE_S)
        self._thread.join()
        self._server.server_close()


def start_metrics_server(host: str, port: int, metrics: Metrics = METRICS) -> MetricsServer:
    """Serve `metrics` at http://host:port/metrics; raises INVALID_CONFIG when the port is taken."""
    return MetricsServer(host, port, metrics)
