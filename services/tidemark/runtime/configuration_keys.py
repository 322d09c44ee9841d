"""The one typed table of settings: Kafka's dotted keys with type, unit, range, default, scope and meaning.

Everything else is derived from it: the settings classes' loading, the refusals, `--help` and docs/configuration.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration_group_keys import ASSIGNORS_DEFAULT, ASSIGNORS_DOC, GROUP_NUMBERS
from tidemark.runtime.configuration_key import I32_MAX, I64_MAX, UNLIMITED, ConfigKey, Kind, Scope, whole_number
from tidemark.runtime.configuration_metrics_keys import METRICS_SWITCHES

_DAY_MS: Final = 24 * 3600 * 1000

_ALL: Final = ("broker", "controller", "admin")


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
        "Silence after which ZooKeeper ends our session",
        unit="ms",
        minimum=1,
        defaults=(("controller", "4000"),),  # another one takes over then, which is cheap
    ),
    ConfigKey(
        "listeners",
        Kind.ADDRESS,
        _ALL,
        "127.0.0.1:9192",
        "Where the service listens; port 0 lets the system choose",
        defaults=(("controller", "127.0.0.1:9193"), ("admin", "127.0.0.1:9194")),
    ),
    ConfigKey("advertised.listeners", Kind.ADDRESS, _ALL, "", "What others are told to call; default: listeners"),
    ConfigKey(
        "metrics.listeners", Kind.ADDRESS, _ALL, "", "Where /metrics is served; default: the same host, port + 100"
    ),
    ConfigKey(
        "log.level",
        Kind.CHOICE,
        _ALL,
        "info",
        "Least level logged",
        choices=("debug", "info", "warning", "error"),
        scope=Scope.BROKER_DYNAMIC,
    ),
    ConfigKey("log.format", Kind.CHOICE, _ALL, "json", "Form of log lines", choices=("json", "text")),
    whole_number("shutdown.grace.ms", _ALL, 10_000, "ms", "How long a graceful stop may take before calls are cut"),
    ConfigKey(
        "termination.message.path",
        Kind.STRING,
        _ALL,
        "",
        "File that one line is written to when the service refuses to start or fails: why; "
        "/dev/termination-log in a pod",
    ),
)

_BROKER: Final = (
    whole_number(
        "advertised.check.timeout.ms",
        ("broker",),
        30_000,
        "ms",
        "How long the broker tries, before it registers, to reach itself at its advertised address, and else refuses "
        "to start; 0: not at all, for an address that leads here from elsewhere only",
        maximum=_DAY_MS,
    ),
    whole_number("broker.id", ("broker",), None, "", "Id of the broker, kept in its directories", maximum=I32_MAX),
    ConfigKey("broker.rack", Kind.STRING, ("broker",), "", "Rack; replicas of a partition are kept apart by it"),
    ConfigKey("log.dirs", Kind.PATHS, ("broker",), None, "Directories that hold the logs, one a disk"),
    ConfigKey(
        "log.dir.choice",
        Kind.CHOICE,
        ("broker",),
        "fewest-replicas",
        "Of several log directories, the one that a new replica goes to",
        choices=("fewest-replicas", "most-free-bytes"),
    ),
    ConfigKey(
        "log.dirs.trust.boot.id",
        Kind.BOOL,
        ("broker",),
        "true",
        "Whether the page cache is there as long as the kernel has not rebooted; false on network volumes",
    ),
    ConfigKey("admin.address", Kind.ADDRESS, ("broker",), "", "Address of the admin service, told to clients"),
    whole_number(
        "replica.lag.time.max.ms",
        ("broker",),
        10_000,
        "ms",
        "A follower not caught up for so long leaves the ISR",
        minimum=100,
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.lag.max.bytes",
        ("broker",),
        0,
        "bytes",
        "A follower further behind for half of replica.lag.time.max.ms leaves the ISR too; 0: time alone counts",
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.fetch.max.bytes",
        ("broker",),
        1 << 20,
        "bytes",
        "Soft limit of one chunk of replication",
        minimum=1024,
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.heartbeat.interval.ms", ("broker",), 500, "ms", "Longest silence on a replication stream", minimum=10
    ),
    ConfigKey(
        "replica.selector.class",
        Kind.CHOICE,
        ("broker",),
        "rack-aware",
        "Whom consumers read from: an in-sync replica in their rack if they state one, or always the leader",
        choices=("rack-aware", "leader"),
        scope=Scope.BROKER_DYNAMIC,
    ),
    whole_number(
        "replica.high.watermark.checkpoint.interval.ms",
        ("broker",),
        5000,
        "ms",
        "How often high watermarks and recovery points are written, after everything before them is on disk",
        minimum=10,
    ),
    whole_number(
        "producer.id.expiration.ms",
        ("broker",),
        86_400_000,
        "ms",
        "An idempotent producer silent for so long may be forgotten; when it goes on it gets a new id",
        minimum=1000,
    ),
    ConfigKey("log.cleaner.enable", Kind.BOOL, ("broker",), "true", "Whether the logs of compacted topics are cleaned"),
    whole_number(
        "log.cleaner.backoff.ms", ("broker",), 15_000, "ms", "How often it is looked for logs to clean", minimum=10
    ),
    whole_number(
        "log.cleaner.dedupe.buffer.size",
        ("broker",),
        128 << 20,
        "bytes",
        "Memory for the keys of the logs that are cleaned, of all directories; more keys take more passes",
        minimum=1 << 20,
        maximum=1 << 31,
    ),
    whole_number(
        "log.cleaner.io.buffer.size",
        ("broker",),
        32 << 20,
        "bytes",
        "How much of a log is read, and compacted, at a time; a few times this is held in memory, per directory",
        minimum=1 << 16,
        maximum=1 << 30,
    ),
    whole_number(
        "log.cleaner.io.max.bytes.per.second",
        ("broker",),
        UNLIMITED,
        "bytes/s",
        "Reads and writes of the cleaner together, per directory",
        minimum=1024,
        unlimited=True,
    ),
    whole_number(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ("broker",),
        UNLIMITED,
        "bytes/s",
        "Copying of replicas into other log directories, of all that name no limit of their own together",
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
        "Threads for each log directory that open logs at the start, and scan what a kill left past recovery points",
        minimum=1,
        maximum=64,
    ),
    whole_number(
        "log.retention.check.interval.ms",
        ("broker",),
        300_000,
        "ms",
        "How often leaders look at what retention lets go, and segments are rolled by age while nothing is appended",
        minimum=10,
    ),
    whole_number("stray.grace.ms", ("broker",), 3_600_000, "ms", "How long data that is no longer ours is kept"),
    whole_number(
        "controlled.shutdown.max.wait.ms",
        ("broker",),
        30_000,
        "ms",
        "How long a broker that is told to stop waits for the controller to move its leaderships; 0: not at all",
    ),
)

_CONTROLLER: Final = (
    whole_number("controller.id", ("controller",), None, "", "Id of the controller", maximum=I32_MAX),
    whole_number(
        "controller.heartbeat.interval.ms", ("controller",), 500, "ms", "How often brokers are asked", minimum=10
    ),
    whole_number(
        "controller.heartbeat.timeout.ms",
        ("controller",),
        2500,
        "ms",
        "Silence after which a broker is suspected",
        minimum=50,
    ),
    whole_number(
        "reassignment.moves.per.broker.max",
        ("controller",),
        50,
        "",
        "Replicas that one broker takes in or gives out at a time while partitions are moved",
        minimum=1,
    ),
    whole_number(
        "leader.imbalance.check.interval.ms",
        ("controller",),
        300_000,
        "ms",
        "How often leadership goes back to preferred replicas by itself; 0: never",
    ),
    whole_number(
        "leader.imbalance.per.broker.percentage",
        ("controller",),
        10,
        "",
        "Of the partitions that prefer a broker, how many percent may be led elsewhere before they go back",
        maximum=100,
    ),
)

_ADMIN: Final = (
    whole_number("admin.request.timeout.ms", ("admin",), 30_000, "ms", "How long a request is watched", minimum=1),
    whole_number(
        "default.replication.factor",
        ("admin",),
        3,
        "",
        "Replicas of a topic that names no number",
        minimum=1,
        maximum=32_767,
    ),
)

_TOPIC: Final = (
    _topic_int(
        "min.insync.replicas",
        2,
        "",
        "Replicas that must have a record before acks=all is answered",
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
    _topic_int("segment.bytes", 1 << 30, "bytes", "A segment is rolled at this size", minimum=1024, maximum=I32_MAX),
    _topic_int("segment.ms", 7 * _DAY_MS, "ms", "A segment is rolled at this age", minimum=1),
    _topic_int(
        "index.interval.bytes", 4096, "bytes", "Log bytes between two entries of an index", minimum=1, maximum=I32_MAX
    ),
    _topic_int(
        "retention.ms",
        7 * _DAY_MS,
        "ms",
        "A segment whose newest record is older than this is deleted, once all of it is committed",
        unlimited=True,
    ),
    _topic_int(
        "retention.bytes",
        UNLIMITED,
        "bytes",
        "The oldest segments are deleted while a partition has this much without them; the active one stays",
        unlimited=True,
    ),
    _topic_choice(
        "cleanup.policy",
        ("delete", "compact", "compact,delete"),
        "What becomes of old segments: delete: they go by retention; compact: of each key the latest record stays",
    ),
    _topic_int(
        "delete.retention.ms",
        _DAY_MS,
        "ms",
        "How long a compacted topic keeps a record without a value (a tombstone) after what it covers is gone",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        Kind.RATIO,
        ("topic",),
        "0.5",
        "A compacted log is cleaned when this share of its bytes has come since the last time",
        scope=Scope.TOPIC,
    ),
    _topic_int("min.compaction.lag.ms", 0, "ms", "A segment with a record younger than this is not compacted yet"),
    _topic_int(
        "file.delete.delay.ms",
        60_000,
        "ms",
        "How long the files of a deleted segment are kept under another name, for whoever is reading them",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        Kind.BOOL,
        ("topic",),
        "false",
        "Whether a replica that may lack acknowledged records may lead",
        scope=Scope.TOPIC,
    ),
    _topic_choice("message.timestamp.type", ("CreateTime", "LogAppendTime"), "Whose clock gives records their time"),
    _topic_int(
        "message.timestamp.before.max.ms",
        UNLIMITED,
        "ms",
        "How far a record's time may lie before the broker's",
        unlimited=True,
    ),
    _topic_int(
        "message.timestamp.after.max.ms",
        3_600_000,
        "ms",
        "How far a record's time may lie after the broker's",
        unlimited=True,
    ),
    _topic_choice(
        "flush.policy",
        ("os", "group-commit", "interval"),
        "What acks=all means: os, interval = in the page cache of every ISR member; group-commit = on its disk",
    ),
    _topic_int(
        "flush.interval.ms",
        1000,
        "ms",
        "With flush.policy=interval: how long a record may wait for its flush to disk",
        minimum=1,
        maximum=_DAY_MS,
    ),
)

_GROUPS: Final = (
    *(
        whole_number(row.name, ("broker",), row.default, row.unit, row.doc, minimum=row.minimum, maximum=row.maximum)
        for row in GROUP_NUMBERS
    ),
    *(ConfigKey(key, Kind.BOOL, ("broker",), "true", doc, scope=Scope.BROKER_DYNAMIC) for key, doc in METRICS_SWITCHES),
    ConfigKey("group.consumer.assignors", Kind.STRING, ("broker",), ASSIGNORS_DEFAULT, ASSIGNORS_DOC),
)

KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for key in (*_COMMON, *_BROKER, *_GROUPS, *_CONTROLLER, *_ADMIN, *_TOPIC)}
)
"""The table, by name, in the order of the documentation."""


def keys_of(owner: str) -> Mapping[str, ConfigKey]:
    """The rows that `owner` ("broker", "controller", "admin" or "topic") reads."""
    return {name: key for name, key in KEYS.items() if owner in key.owners}


def unknown_config(name: str, known: Iterable[str], where: str) -> TidemarkError:
    """The refusal of a key that `where` does not have, with the nearest name there is."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    if name in KEYS:
        hint = f"; it is a setting of: {', '.join(KEYS[name].owners)}"
    return TidemarkError(ErrorCode.UNKNOWN_CONFIG, f"{where} has no setting {name}{hint}", {"config": name})
