# SPDX-License-Identifier: Apache-2.0
"""Limits of connections, and switches of metrics: rows for the table in `configuration_keys`."""

from __future__ import annotations

from typing import Final

from tidemark.runtime.configuration_key import I32_MAX, ConfigKey, whole_number

_ALL: Final = ("broker", "controller", "admin")

LIMITS: Final[tuple[ConfigKey, ...]] = (
    whole_number(
        "max.connections",
        _ALL,
        0,
        "connections",
        "Connections at a time, divided equally among the listeners; 0: 10,000, or as many as the limit of open files "
        "leaves room for",
        maximum=1_000_000,
    ),
    whole_number(
        "max.connections.per.ip",
        _ALL,
        1_000,
        "connections",
        "Connections at a time of one address to one listener; the newest ones above it are closed",
        minimum=1,
        maximum=I32_MAX,
        unlimited=True,
    ),
    whole_number(
        "max.connection.creation.rate.per.ip",
        _ALL,
        200,
        "connections",
        "New connections of one address to one listener per second, and at once. Above it the kernel drops attempts, "
        "which the client's kernel repeats",
        minimum=1,
        maximum=100_000,
        unlimited=True,
    ),
    whole_number(
        "connections.max.idle.ms",
        _ALL,
        600_000,
        "ms",
        "Time without a call after which a connection is closed; its client opens another one for its next call",
        minimum=1_000,
        maximum=I32_MAX,
        unlimited=True,
    ),
    whole_number(
        "max.streams.per.connection",
        _ALL,
        100,
        "calls",
        "Calls at a time on one connection; more wait at the client",
        minimum=8,
        maximum=I32_MAX,
    ),
    whole_number(
        "max.in.flight.bytes.per.connection",
        _ALL,
        128 << 20,
        "bytes",
        "Bytes of unfinished requests and of answers that the client has not taken, above which a connection is closed",
        minimum=32 << 20,
        unlimited=True,
    ),
    whole_number(
        "max.in.flight.bytes",
        _ALL,
        512 << 20,
        "bytes",
        "Such bytes of all connections; above, the connection with the most is closed, of the address with the most",
        minimum=64 << 20,
        unlimited=True,
    ),
)

METRICS_SWITCHES: Final = (
    ("metrics.partitions", "Whether a broker exports metrics of each partition and its followers"),
    ("metrics.groups", "Whether a broker exports metrics of each consumer group and topic"),
)
"""Keys and meanings: metrics that can be disabled because they may have very many series."""
