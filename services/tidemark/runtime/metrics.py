# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: a registry, names `tidemark_*` in base units, bounded cardinality, and the /metrics port.

For services only: no module that the client imports may import this one.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import socket
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from tidemark.model import host_port, invalid_config
from tidemark.runtime import metrics_text
from tidemark.runtime.host_port import listening_socket
from tidemark.runtime.loop_metrics import LATENCY_BUCKETS_S, DurationsByLabel, Sum
from tidemark.runtime.metrics_text import TextSource

LABEL_SETS_MAX: Final = 1000
"""Largest number of label sets of one metric; later ones are counted under `OTHER`."""

OTHER: Final = "_other"

_PREFIX: Final = "tidemark_"
_WAKE_S: Final = 0.05
_ZIP_LEVEL: Final = 1
"""Compression level; for megabytes of similar lines higher levels take many times longer and save little."""
_IDLE_S: Final = 30.0
"""Seconds after which an idle connection of a scraper is closed."""
_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 16
"""Largest number of connections of scrapers; each needs a thread and a descriptor."""

_log = logging.getLogger(__name__)

# The creation time of a counter would be a second series for each counter.
disable_created_metrics()  # type: ignore[no-untyped-call]


class LabelLimit:
    """Bounds the cardinality of one metric: the first label sets are kept, later ones become `OTHER`."""

    def __init__(self, limit: int = LABEL_SETS_MAX) -> None:
        self._limit = limit
        self._seen: set[tuple[str, ...]] = set()

    def admit(self, *values: str) -> tuple[str, ...]:
        """Returns `values`, or `OTHER` for each value once the limit is reached."""
        if values in self._seen:
            return values
        if len(self._seen) >= self._limit:
            return (OTHER,) * len(values)
        self._seen.add(values)
        return values

    def forget(self, *values: str) -> None:
        """Remove a label set, which makes room for another."""
        self._seen.discard(values)


class Metrics:
    """The metrics of one process. Callers give names without the prefix; code and dashboards use the same names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._sources: list[TextSource] = []
        self._rendering = threading.Lock()
        self._seconds = 0.0

    def show(self, source: TextSource) -> None:
        """Add a text source to each scrape."""
        self._sources.append(source)

    def hide(self, source: TextSource) -> None:
        """Remove a text source from later scrapes."""
        self._sources.remove(source)

    def render(self, names: Collection[str] = ()) -> bytes:
        """All present samples, or the named ones, in Prometheus' text format; one scrape at a time."""
        with self._rendering:
            if names:
                return self._some(names)
            began_s = time.perf_counter()
            doc = "Time to answer the previous scrape"
            own = metrics_text.gauge(f"{_PREFIX}scrape_seconds", doc, self._seconds)
            text = b"".join([generate_latest(self.registry), *map(str.encode, self._texts()), own.encode()])
            self._seconds = time.perf_counter() - began_s
            return text

    def _some(self, names: Collection[str]) -> bytes:
        """The named samples; sources are not called for samples of the registry."""
        text = generate_latest(self.registry.restricted_registry(names))
        sources = self._texts(names) if any(name.encode() not in text for name in names) else ()
        return text + "".join([metrics_text.only(names, one) for one in sources]).encode()

    def _texts(self, names: Collection[str] = ()) -> Iterator[str]:
        for source in tuple(self._sources):
            try:
                yield source.render(names)
            except Exception:  # noqa: BLE001 - the other sources are still rendered
                _log.exception("a source of metrics failed", extra={"source": type(source).__name__})

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """Make the counter `tidemark_<name>`; the library adds `_total`."""
        return Counter(_PREFIX + name, doc, labels, registry=self.registry)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """Make the gauge `tidemark_<name>`."""
        return Gauge(_PREFIX + name, doc, labels, registry=self.registry)

    def histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        """Make the histogram `tidemark_<name>`, in seconds unless the name states otherwise."""
        return Histogram(_PREFIX + name, doc, labels, registry=self.registry, buckets=tuple(buckets))

    def loop_counter(self, name: str, doc: str) -> Sum:
        """Make the counter `tidemark_<name>`, which one thread writes; the library adds `_total`."""
        made = Sum(_PREFIX + name, doc)
        self.registry.register(made)
        return made

    def loop_histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), values: Sequence[str] = ("",)
    ) -> DurationsByLabel:
        """Make the histogram `tidemark_<name>`, which one thread writes."""
        made = DurationsByLabel(_PREFIX + name, doc, labels, values)
        self.registry.register(made)
        return made


METRICS: Final = Metrics()
"""The metrics of this process; tests create their own."""

_BUILD: Final = METRICS.gauge("build_info", "Always 1", ("version", "service"))


def tell_what_runs(service: str) -> None:
    """Set `tidemark_build_info`; `service`: "broker", "controller", "admin" or "console"."""
    try:
        ours = version("tidemark")
    except PackageNotFoundError:  # run from a source tree
        ours = "unknown"
    _BUILD.labels(ours, service).set(1)


Secure: TypeAlias = Callable[[socket.socket], socket.socket]


class _Scraper:
    """A connection to /metrics; `rests_since_s`: when it last waited for its client, None while an answer is made."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        self.connection = connection
        self.host = host
        self.rests_since_s: float | None = time.monotonic()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    metrics: Metrics
    secure: Secure | None = None

    def __init__(self, host: str, port: int) -> None:
        self._scrapers: dict[socket.socket, _Scraper] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        listening = listening_socket(host, port, _BACKLOG)
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, listening.getsockname()[:2]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve on a new thread. At the limit, a connection that waits for its client makes room."""
        with self._lock:
            room = len(self._scrapers) < _CONNECTIONS_MAX or self._make_room(client_address[0])
            if room:
                self._scrapers[request] = _Scraper(request, client_address[0])
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self, host: str) -> bool:
        """End a connection of the address with the most. The connection that has waited longest is ended; or, if
        this address has more connections than `host`, one that waits for an answer.
        """
        all_of = Counts(one.host for one in self._scrapers.values())
        resting = [one for one in self._scrapers.values() if one.rests_since_s is not None]
        if resting:
            most = max(all_of[one.host] for one in resting)
            longest = min((one for one in resting if all_of[one.host] == most), key=lambda one: one.rests_since_s or 0)
        else:
            busiest, count = all_of.most_common(1)[0]
            if count <= all_of[host] + 1:
                return False
            longest = [one for one in self._scrapers.values() if one.host == busiest][-1]
        del self._scrapers[longest.connection]
        with contextlib.suppress(OSError):  # the client may have closed the connection
            longest.connection.shutdown(socket.SHUT_RDWR)
        return True

    @contextlib.contextmanager
    def turn(self, connection: socket.socket) -> Iterator[bool]:
        """Wait for the turn to make an answer; False for a connection that made room meanwhile."""
        scraper = self._scrapers.get(connection)
        if scraper is not None:
            scraper.rests_since_s = None
        try:
            with self._turn:
                yield connection in self._scrapers
        finally:
            if scraper is not None:
                scraper.rests_since_s = time.monotonic()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection until its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._scrapers.pop(request, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not log a connection that a scraper broke off."""
        _log.debug("a scrape broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of any path with the metrics; `?name[]=a&name[]=b` selects samples."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _IDLE_S
    server: _Server

    def setup(self) -> None:
        """Bound the handshake by the time limit of an idle connection."""
        self._accepted = self.request
        if self.server.secure is not None:
            self.request.settimeout(_IDLE_S)
            self.request = self.server.secure(self.request)
        super().setup()

    def finish(self) -> None:
        """End the connection, with TLS too."""
        super().finish()
        if self.server.secure is not None:
            self.request.close()

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query).get("name[]", [])
        zipped = "gzip" in self.headers.get("Accept-Encoding", "")
        with self.server.turn(self._accepted) as wanted:
            if not wanted:
                self.close_connection = True
                return
            body = self.server.metrics.render(asked)
            if zipped:
                body = gzip.compress(body, _ZIP_LEVEL)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the scraper has closed the connection
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log a scrape."""


class MetricsServer:
    """Serves /metrics on separate threads."""

    def __init__(self, host: str, port: int, metrics: Metrics, secure: Secure | None = None) -> None:
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise invalid_config(
                "metrics.listeners",
                f"metrics.listeners is {host_port(host, port)}: cannot listen there ({error.strerror or error})",
            ) from error
        self._server.metrics, self._server.secure = metrics, secure
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The listening port, even after a start with port 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving; the port is free afterwards."""
        host, port = self._server.server_address[:2]
        ending = threading.Thread(target=self._server.shutdown, name="metrics end")
        ending.start()
        while ending.is_alive():  # the server polls every half second; a connection wakes the server immediately
            with contextlib.suppress(OSError):
                socket.create_connection((str(host), port), timeout=_WAKE_S).close()
            ending.join(_WAKE_S)
        self._thread.join()
        self._server.server_close()


def start_metrics_server(
    host: str, port: int, metrics: Metrics = METRICS, *, secure: Secure | None = None
) -> MetricsServer:
    """Serve `metrics` at host:port/metrics; raises INVALID_CONFIG when the port is taken.

    Args:
        secure: makes a connection a TLS connection, with a separate descriptor; None: plain text.
    """
    return MetricsServer(host, port, metrics, secure)
