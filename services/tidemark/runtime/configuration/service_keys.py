# SPDX-License-Identifier: Apache-2.0
"""Limits of connections, switches of metrics, the console: rows for the table in `keys`."""

from __future__ import annotations

from typing import Final

from tidemark.runtime.configuration.key import I32_MAX, ConfigKey, Kind, whole_number

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
        "New connections of one address to one listener per second, and as a burst. Above this rate the kernel drops "
        "attempts, which the client's kernel repeats",
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
        "Bytes in flight of all connections, above which the connection with the most is closed, of the address with "
        "the most",
        minimum=64 << 20,
        unlimited=True,
    ),
)

METRICS_SWITCHES: Final = (
    ("metrics.partitions", "Whether a broker exports metrics of each partition and its followers"),
    ("metrics.groups", "Whether a broker exports metrics of each consumer group and topic"),
)
"""Keys and meanings: metrics that can be disabled because they may have very many series."""

_CONSOLE: Final = ("console",)

CONSOLE: Final = (
    ConfigKey(
        "bootstrap",
        Kind.STRING,
        _CONSOLE,
        None,
        "Addresses of any brokers: host:port[,host:port...]; with cluster.tls.ca.file, of their listener clients.token",
    ),
    ConfigKey(
        "console.listeners", Kind.ADDRESS, _CONSOLE, "127.0.0.1:9195", "Address at which browsers reach the console"
    ),
    ConfigKey(
        "console.hosts",
        Kind.STRING,
        _CONSOLE,
        "",
        "Host names in the addresses of browsers, separated by commas, in addition to localhost and IP addresses. "
        "Other names are refused, since the name of a foreign web page could lead to the console's address",
    ),
    ConfigKey(
        "console.write",
        Kind.BOOL,
        _CONSOLE,
        "false",
        "Whether the pages of a cluster without security reset offsets and cancel reassignments, for every browser "
        "that can open them. With cluster.tls.ca.file the rights of each user decide",
    ),
    whole_number(
        "console.refresh.ms",
        _CONSOLE,
        2_000,
        "ms",
        "Time for which all users with the same token share an answer of the cluster, and interval of live updates",
        minimum=100,
        maximum=3_600_000,
    ),
    ConfigKey(
        "cluster.tls.ca.file",
        Kind.STRING,
        _CONSOLE,
        "",
        "PEM file with the authorities of the certificates of brokers and admin services. With this file every user "
        "gives a token, which the console forwards; without it the console uses plain text",
    ),
    ConfigKey(
        "https.certificate.file",
        Kind.STRING,
        _CONSOLE,
        "",
        "PEM file with the certificate for browsers, followed by its intermediates; empty: plain HTTP",
    ),
    ConfigKey("https.key.file", Kind.STRING, _CONSOLE, "", "PEM file with the key of https.certificate.file"),
)
