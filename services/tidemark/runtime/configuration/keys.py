# SPDX-License-Identifier: Apache-2.0
"""The table of all settings: dotted keys as in Kafka, with type, unit, range, default, scope and meaning.

The settings classes, error messages, `--help` and docs/configuration.md are derived from this table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.group_keys import (
    ASSIGNORS_DEFAULT,
    ASSIGNORS_DOC,
    GROUP_NUMBERS,
    TRANSACTION_NUMBERS,
)
from tidemark.runtime.configuration.key import I32_MAX, I64_MAX, UNLIMITED, ConfigKey, Kind, Scope, whole_number
from tidemark.runtime.configuration.service_keys import CONSOLE, LIMITS, METRICS_SWITCHES

_DAY_MS: Final = 24 * 3600 * 1000

_ALL: Final = ("broker", "controller", "admin")
_PROCESSES: Final = (*_ALL, "console")
_CLIENTS: Final = ("broker", "admin")
"""Services that clients call."""


def _topic_int(
    name: str, default: int, unit: str, doc: str, *, minimum: int = 0, maximum: int = I64_MAX, unlimited: bool = False
) -> ConfigKey:
    return whole_number(
        name, ("topic",), default, unit, doc, minimum=minimum, maximum=maximum, unlimited=unlimited, scope=Scope.TOPIC
    )


def _topic_choice(name: str, choices: tuple[str, ...], doc: str) -> ConfigKey:
    return ConfigKey(name, Kind.CHOICE, ("topic",), choices[0], doc, choices=choices, scope=Scope.TOPIC)


_COMMON: Final = (
    ConfigKey("zookeeper.connect", Kind.STRING, _ALL, None, "ZooKeeper's addresses: host:port[,host:port...][/chroot]"),
    ConfigKey(
        "zookeeper.session.timeout.ms",
        Kind.INT,
        _ALL,
        "6000",
        "Time without contact after which ZooKeeper expires the session of the service",
        unit="ms",
        minimum=1,
        defaults=(("controller", "4000"),),  # failover to another controller is cheap
    ),
    ConfigKey(
        "zookeeper.tls.ca.file",
        Kind.STRING,
        _ALL,
        "",
        "PEM file with the certificates of the authorities of ZooKeeper's servers; with it, sessions use TLS, and "
        "zookeeper.connect names ZooKeeper's TLS port",
    ),
    ConfigKey(
        "zookeeper.tls.certificate.file",
        Kind.STRING,
        _ALL,
        "",
        "PEM file with the certificate for ZooKeeper, whose subject is the same for all services; default: "
        "tls.certificate.file",
    ),
    ConfigKey(
        "zookeeper.tls.key.file",
        Kind.STRING,
        _ALL,
        "",
        "PEM file with the key of zookeeper.tls.certificate.file; default: tls.key.file",
    ),
    ConfigKey(
        "listeners",
        Kind.LISTENERS,
        _ALL,
        "127.0.0.1:9192",
        "Address that the service listens on; with port 0 the system chooses a port. With TLS, several by name: "
        "internal (certificates; the services' own calls), clients.mtls (certificates), clients.token (bearer tokens). "
        "While a cluster moves, also plain (everything, in plain text). Services use the first of internal and plain",
        defaults=(("controller", "127.0.0.1:9193"), ("admin", "127.0.0.1:9194")),
    ),
    ConfigKey(
        "advertised.listeners",
        Kind.LISTENERS,
        _ALL,
        "",
        "Address that other processes connect to, for each name of listeners; default: listeners",
    ),
    ConfigKey(
        "metrics.listeners", Kind.ADDRESS, _PROCESSES, "", "Address of /metrics; default: host of listeners, port + 100"
    ),
    ConfigKey(
        "metrics.tls",
        Kind.CHOICE,
        _ALL,
        "none",
        "TLS of /metrics: none; server: with the certificate of this service; mutual: a scraper needs a certificate of "
        "tls.ca.file, too",
        choices=("none", "server", "mutual"),
    ),
    ConfigKey(
        "health.listeners",
        Kind.ADDRESS,
        _ALL,
        "",
        "Plain-text address that serves only gRPC's health service, for probes that cannot use TLS",
    ),
    ConfigKey(
        "tls.ca.file",
        Kind.STRING,
        _ALL,
        "",
        "PEM file with the certificates of the authorities to trust. With this file, every port and every connection "
        "of this service uses TLS, and callers need a certificate",
    ),
    ConfigKey(
        "tls.certificate.file",
        Kind.STRING,
        _ALL,
        "",
        "PEM file with this service's certificate, followed by its intermediates; read again when it changes",
    ),
    ConfigKey("tls.key.file", Kind.STRING, _ALL, "", "PEM file with the key of tls.certificate.file"),
    ConfigKey(
        "authorization.enabled",
        Kind.BOOL,
        ("broker", "admin"),
        "false",
        "Check every call against the access rules (ACLs); without a rule nothing is allowed. Set the same value at "
        "all brokers and admin services",
    ),
    ConfigKey(
        "super.users",
        Kind.PRINCIPALS,
        ("broker", "admin"),
        "",
        "Principals that are allowed everything, without access rules",
    ),
    ConfigKey(
        "clients.tls.ca.file",
        Kind.STRING,
        _CLIENTS,
        "",
        "PEM file with the authorities of clients' certificates on clients.mtls; default: tls.ca.file",
    ),
    ConfigKey(
        "clients.tls.certificate.file",
        Kind.STRING,
        _CLIENTS,
        "",
        "PEM file with the certificate that clients.mtls and clients.token show; default: tls.certificate.file",
    ),
    ConfigKey(
        "clients.tls.key.file", Kind.STRING, _CLIENTS, "", "PEM file with the key of clients.tls.certificate.file"
    ),
    ConfigKey(
        "tls.principal.mapping.rules",
        Kind.STRING,
        _CLIENTS,
        "",
        "Rules that name users by the subjects of certificates without a URI name, with the syntax of Kafka's "
        "ssl.principal.mapping.rules; empty: such callers are User:ANONYMOUS",
    ),
    ConfigKey(
        "tokens.file",
        Kind.STRING,
        _CLIENTS,
        "",
        "File of static tokens, a line NAME: SHA-256 for each (tidemark token create); read again when it changes",
    ),
    ConfigKey(
        "tokens.issuers.file",
        Kind.STRING,
        _CLIENTS,
        "",
        "YAML file of the issuers whose JSON web tokens are accepted, by alias; read again when it changes",
    ),
    whole_number(
        "tokens.clock.skew.ms",
        _CLIENTS,
        30_000,
        "ms",
        "Difference of clocks for which an expired token, or one that is not valid yet, is still accepted",
        maximum=3_600_000,
    ),
    whole_number(
        "connections.max.age.ms",
        _ALL,
        12 * 3600 * 1000,
        "ms",
        "Age at which a connection with TLS is closed, after up to 30 s for its calls. Its client opens another one, "
        "with its present certificate",
        minimum=1000,
        maximum=I32_MAX,
        unlimited=True,
    ),
    *LIMITS,
    ConfigKey(
        "log.level",
        Kind.CHOICE,
        _PROCESSES,
        "info",
        "Lowest level that is logged",
        choices=("debug", "info", "warning", "error"),
        scope=Scope.BROKER_DYNAMIC,
    ),
    ConfigKey("log.format", Kind.CHOICE, _PROCESSES, "json", "Format of log lines", choices=("json", "text")),
    whole_number(
        "shutdown.grace.ms",
        _PROCESSES,
        10_000,
        "ms",
        "Time limit of a graceful stop, after which running calls are aborted",
    ),
    ConfigKey(
        "termination.message.path",
        Kind.STRING,
        _PROCESSES,
        "",
        "File that receives one line with the reason when the service cannot start or fails; "
        "/dev/termination-log in a pod",
    ),
)

_BROKER: Final = (
    whole_number(
        "advertised.check.timeout.ms",
        ("broker",),
        30_000,
        "ms",
        "Time limit for the broker to reach itself at its advertised address. A broker that fails this check does not "
        "start. 0 skips the check, for an address that only works from other hosts",
        maximum=_DAY_MS,
    ),
    whole_number(
        "broker.id", ("broker",), None, "", "Id of the broker, stored in its log directories", maximum=I32_MAX
    ),
    ConfigKey(
        "broker.rack", Kind.STRING, ("broker",), "", "Rack of the broker; replicas of a partition are spread over racks"
    ),
    ConfigKey("log.dirs", Kind.PATHS, ("broker",), None, "Log directories, one per disk"),
    ConfigKey(
        "log.dir.choice",
        Kind.CHOICE,
        ("broker",),
        "fewest-replicas",
        "Rule that chooses the log directory of a new replica",
        choices=("fewest-replicas", "most-free-bytes"),
    ),
    ConfigKey(
        "log.dirs.trust.boot.id",
        Kind.BOOL,
        ("broker",),
        "true",
        "Whether the page cache survives until the kernel reboots; set false on network volumes",
    ),
    ConfigKey(
        "admin.address",
        Kind.LISTENERS,
        ("broker",),
        "",
        "Address of the admin service, sent to clients in metadata; with names, each client gets that of its listener",
    ),
    whole_number(
        "replica.lag.time.max.ms",
        ("broker",),
        10_000,
        "ms",
        "Time after which a follower that is not caught up leaves the ISR",
        minimum=100,
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.lag.max.bytes",
        ("broker",),
        0,
        "bytes",
        "A follower that lags by more for half of replica.lag.time.max.ms leaves the ISR too; 0 disables this",
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.fetch.max.bytes",
        ("broker",),
        1 << 20,
        "bytes",
        "Soft limit of one chunk on a replication stream; above 4 MiB it has no further effect",
        minimum=1024,
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.heartbeat.interval.ms",
        ("broker",),
        500,
        "ms",
        "Longest time without a message on a replication stream",
        minimum=10,
    ),
    ConfigKey(
        "replica.selector.class",
        Kind.CHOICE,
        ("broker",),
        "rack-aware",
        "Replica that a consumer with a rack reads from: an in-sync replica in its rack, or always the leader",
        choices=("rack-aware", "leader"),
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.high.watermark.checkpoint.interval.ms",
        ("broker",),
        5000,
        "ms",
        "Interval of checkpoints: the broker syncs its logs, then writes high watermarks and recovery points",
        minimum=10,
    ),
    whole_number(
        "producer.id.expiration.ms",
        ("broker",),
        86_400_000,
        "ms",
        "Time without a batch after which a broker may expire an idempotent producer; the producer then gets a new id",
        minimum=1000,
    ),
    ConfigKey(
        "log.cleaner.enable", Kind.BOOL, ("broker",), "true", "Whether the cleaner compacts logs of compacted topics"
    ),
    whole_number(
        "log.cleaner.backoff.ms",
        ("broker",),
        15_000,
        "ms",
        "Interval at which the cleaner searches for logs to compact",
        minimum=10,
    ),
    whole_number(
        "log.cleaner.dedupe.buffer.size",
        ("broker",),
        128 << 20,
        "bytes",
        "Memory of the cleaner for keys, all log directories together; more keys take more passes",
        minimum=1 << 20,
        maximum=1 << 31,
    ),
    whole_number(
        "log.cleaner.io.buffer.size",
        ("broker",),
        32 << 20,
        "bytes",
        "Bytes of a log that are compacted at a time; the cleaner needs a few times this memory, per log directory",
        minimum=1 << 16,
        maximum=1 << 30,
    ),
    whole_number(
        "log.cleaner.io.max.bytes.per.second",
        ("broker",),
        UNLIMITED,
        "bytes/s",
        "Throttle of the cleaner's reads and writes together, per log directory",
        minimum=1024,
        unlimited=True,
    ),
    whole_number(
        "log.scrub.interval.ms",
        ("broker",),
        7 * _DAY_MS,
        "ms",
        "Interval in which the scrubber reads every sealed batch once, and has damaged ones repaired; 0: never",
        minimum=0,
    ),
    whole_number(
        "log.scrub.io.max.bytes.per.second",
        ("broker",),
        10 << 20,
        "bytes/s",
        "Throttle of the scrubber's reads, per log directory",
        minimum=1024,
        unlimited=True,
    ),
    whole_number(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ("broker",),
        UNLIMITED,
        "bytes/s",
        "Throttle of log directory moves, for all moves without a throttle of their own together",
        minimum=1024,
        unlimited=True,
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number("num.read.threads", ("broker",), 2, "", "Threads that read from disk", minimum=1, maximum=256),
    whole_number(
        "num.recovery.threads.per.data.dir",
        ("broker",),
        2,
        "",
        "Threads per log directory that open logs at the start, and recover logs that were not closed cleanly",
        minimum=1,
        maximum=64,
    ),
    whole_number(
        "log.retention.check.interval.ms",
        ("broker",),
        300_000,
        "ms",
        "Interval at which leaders apply retention, and roll segments by age without an append",
        minimum=10,
    ),
    whole_number("stray.grace.ms", ("broker",), 3_600_000, "ms", "Time after which a stray replica is deleted"),
    whole_number(
        "controlled.shutdown.max.wait.ms",
        ("broker",),
        30_000,
        "ms",
        "Time limit of controlled shutdown, in which the controller moves leadership away; 0 skips controlled shutdown",
    ),
)

_CONTROLLER: Final = (
    whole_number("controller.id", ("controller",), None, "", "Id of the controller", maximum=I32_MAX),
    whole_number(
        "controller.heartbeat.interval.ms", ("controller",), 500, "ms", "Interval of heartbeats to brokers", minimum=10
    ),
    whole_number(
        "controller.heartbeat.timeout.ms",
        ("controller",),
        2500,
        "ms",
        "Time without an answer after which a broker is suspected",
        minimum=50,
    ),
    whole_number(
        "reassignment.moves.per.broker.max",
        ("controller",),
        50,
        "",
        "Reassignments that copy from or to one broker at a time",
        minimum=1,
    ),
    whole_number(
        "leader.election.wait.ms",
        ("controller",),
        5_000,
        "ms",
        "After a crash of all eligible replicas of a partition, the time that the first one waits for the others. The "
        "one with the furthest log is then elected. 0: the first one is elected",
        maximum=600_000,
    ),
    whole_number(
        "leader.imbalance.check.interval.ms",
        ("controller",),
        300_000,
        "ms",
        "Interval at which the controller elects preferred replicas by itself; 0 disables this",
    ),
    whole_number(
        "leader.imbalance.per.broker.percentage",
        ("controller",),
        10,
        "",
        "Percentage of a broker's preferred partitions led by others, above which preferred replicas are elected",
        maximum=100,
    ),
)

_ADMIN: Final = (
    whole_number(
        "admin.request.timeout.ms",
        ("admin",),
        30_000,
        "ms",
        "Time for which the admin service waits for a request to complete",
        minimum=1,
    ),
    whole_number(
        "default.replication.factor",
        ("admin",),
        3,
        "",
        "Replication factor of a topic created without one",
        minimum=1,
        maximum=32_767,
    ),
    whole_number(
        "default.min.insync.replicas",
        ("admin",),
        2,
        "",
        "min.insync.replicas of a topic created without it; at most the replication factor of the topic",
        minimum=1,
        maximum=32_767,
    ),
)

_TOPIC: Final = (
    _topic_int(
        "min.insync.replicas",
        2,
        "",
        "In-sync replicas that must have a record before acks=all is acknowledged",
        minimum=1,
        maximum=32_767,
    ),
    _topic_int("max.message.bytes", 1 << 20, "bytes", "Largest batch", minimum=1024, maximum=8 << 20),
    _topic_int(
        "max.message.uncompressed.bytes",
        16 << 20,
        "bytes",
        "Largest batch, uncompressed",
        minimum=1024,
        maximum=256 << 20,
    ),
    _topic_int("segment.bytes", 1 << 30, "bytes", "Size at which a segment is rolled", minimum=1024, maximum=I32_MAX),
    _topic_int("segment.ms", 7 * _DAY_MS, "ms", "Age at which a segment is rolled", minimum=1),
    _topic_int(
        "index.interval.bytes", 4096, "bytes", "Bytes of log between two index entries", minimum=1, maximum=I32_MAX
    ),
    _topic_int(
        "retention.ms",
        7 * _DAY_MS,
        "ms",
        "Age of its newest record above which a segment is deleted, once all of the segment is committed",
        unlimited=True,
    ),
    _topic_int(
        "retention.bytes",
        UNLIMITED,
        "bytes",
        "Bytes that retention keeps of a partition: the oldest segments beyond them are deleted, never the active one",
        unlimited=True,
    ),
    _topic_choice(
        "cleanup.policy",
        ("delete", "compact", "compact,delete"),
        "Treatment of old segments: delete removes them by retention; compact keeps the latest record of each key",
    ),
    _topic_int(
        "delete.retention.ms",
        _DAY_MS,
        "ms",
        "Time for which a compacted topic keeps a tombstone after the records that it deletes are removed",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        Kind.RATIO,
        ("topic",),
        "0.5",
        "Share of bytes appended since the last compaction, from which on a log is compacted again",
        scope=Scope.TOPIC,
    ),
    _topic_int("min.compaction.lag.ms", 0, "ms", "Age below which a record keeps its segment from being compacted"),
    _topic_int(
        "file.delete.delay.ms",
        60_000,
        "ms",
        "Time for which files of a deleted segment are kept under another name, for readers that have them open",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        Kind.BOOL,
        ("topic",),
        "false",
        "Whether a replica that may lack acknowledged records may be elected",
        scope=Scope.TOPIC,
    ),
    _topic_choice(
        "schema.compatibility",
        ("backward", "forward", "full", "none"),
        "Allowed changes of a typed topic's schema. With backward, readers with the newest version read batches of "
        "every earlier one; with forward, readers with every earlier version read batches of the newest one",
    ),
    _topic_choice(
        "message.timestamp.type",
        ("CreateTime", "LogAppendTime"),
        "Clock of the record timestamps: the producer's (CreateTime) or the leader's (LogAppendTime)",
    ),
    _topic_int(
        "message.timestamp.before.max.ms",
        UNLIMITED,
        "ms",
        "How far a record's timestamp may be before the broker's clock",
        unlimited=True,
    ),
    _topic_int(
        "message.timestamp.after.max.ms",
        3_600_000,
        "ms",
        "How far a record's timestamp may be after the broker's clock",
        unlimited=True,
    ),
    _topic_choice(
        "flush.policy",
        ("os", "group-commit", "interval"),
        "Meaning of acks=all: os, interval: in the page cache of every ISR member; group-commit: on its disk",
    ),
    _topic_int(
        "flush.interval.ms",
        1000,
        "ms",
        "Longest time from append to flush with flush.policy=interval",
        minimum=1,
        maximum=_DAY_MS,
    ),
)

_GROUPS: Final = (
    *(
        whole_number(row.name, ("broker",), row.default, row.unit, row.doc, minimum=row.minimum, maximum=row.maximum)
        for row in (*GROUP_NUMBERS, *TRANSACTION_NUMBERS)
    ),
    *(ConfigKey(key, Kind.BOOL, ("broker",), "true", doc, scope=Scope.BROKER_DYNAMIC) for key, doc in METRICS_SWITCHES),
    ConfigKey("group.consumer.assignors", Kind.STRING, ("broker",), ASSIGNORS_DEFAULT, ASSIGNORS_DOC),
)

KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for key in (*_COMMON, *_BROKER, *_GROUPS, *_CONTROLLER, *_ADMIN, *CONSOLE, *_TOPIC)}
)
"""All rows by name, in the order of the documentation."""


def keys_of(owner: str) -> Mapping[str, ConfigKey]:
    """Rows of one `owner`: "broker", "controller", "admin", "console" or "topic"."""
    return {name: key for name, key in KEYS.items() if owner in key.owners}


def unknown_config(name: str, known: Iterable[str], where: str) -> TidemarkError:
    """UNKNOWN_CONFIG for a key that `where` does not have, with the most similar known key."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; docs/configuration.md lists the settings"
    if name in KEYS:
        hint = f"; it is a setting of: {', '.join(KEYS[name].owners)}"
    return TidemarkError(ErrorCode.UNKNOWN_CONFIG, f"{where} has no setting {name}{hint}", {"config": name})
