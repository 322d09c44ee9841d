# SPDX-License-Identifier: Apache-2.0
"""Described settings (value, source, documentation), and the checks and differences of a change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.core.config_resource import ConfigKind
from tidemark.model import ErrorCode, TidemarkError, invalid_config
from tidemark.runtime.configuration.key import ConfigKey, Scope, Value
from tidemark.runtime.configuration.keys import keys_of, unknown_config

LAG_KEY: Final = "replica.lag.time.max.ms"
HEARTBEAT_KEY: Final = "replica.heartbeat.interval.ms"
_TICKS_MS: Final = 200
"""Two ticks: a heartbeat is sent at the first tick after its interval, and the leader may handle the message late."""

OWNERS: Final = {ConfigKind.TOPIC: "topic", ConfigKind.BROKER: "broker"}
"""Owner of the table rows of each kind of resource."""


class ConfigSource(StrEnum):
    """Source of the effective value of a setting."""

    UNKNOWN = "unknown"  # the broker does not answer
    DEFAULT = "default"
    STATIC = "static"  # a flag, the environment or the file of the broker's process
    CLUSTER = "cluster"  # set for every broker
    BROKER = "broker"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or a broker.

    Attributes:
        value: effective value as text; None: unknown.
        scope: "static", "broker-dynamic" or "topic".
        default_value: default; None: the setting is required.
    """

    key: str
    value: str | None
    source: ConfigSource
    type: str
    unit: str
    scope: str
    documentation: str
    valid_values: str
    default_value: str | None


class ConfigChange(NamedTuple):
    """Value of a setting before and after a change; None: not set."""

    key: str
    before: str | None
    after: str | None


def check_alterable(kind: ConfigKind, set_: Mapping[str, str], deleted: Collection[str]) -> None:
    """Check a change against the table; raises UNKNOWN_CONFIG or INVALID_CONFIG."""
    known = keys_of(OWNERS[kind])
    for name in set_:
        if name in deleted:
            raise invalid_config(name, f"{name} is both set and deleted: choose one of them")
        if name not in known:
            raise unknown_config(name, known, f"a {OWNERS[kind]}")
        if known[name].scope is Scope.STATIC:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is static: set it in the broker's own configuration (--{name}, {known[name].environment_name} "
                "or its file) and restart the broker",
                {"config": name, "scope": str(Scope.STATIC)},
            )
        known[name].parse(set_[name])


def check_deletable(kind: ConfigKind, deleted: Collection[str], present: Collection[str]) -> None:
    """Raise UNKNOWN_CONFIG for keys neither in the table nor set; another version may have set unknown keys."""
    known = keys_of(OWNERS[kind])
    for name in sorted(deleted):
        if name not in known and name not in present:
            raise unknown_config(name, known, f"a {OWNERS[kind]}")


def check_lag(lag_max_ms: int, heartbeat_interval_ms: int) -> None:
    """Raise INVALID_CONFIG if `replica.lag.time.max.ms` is too low for idle followers, which send heartbeats only."""
    least = lag_ms_min(heartbeat_interval_ms)
    if lag_max_ms < least:
        raise invalid_config(
            LAG_KEY,
            f"{LAG_KEY} is {lag_max_ms}, expected {least} and up with {HEARTBEAT_KEY} {heartbeat_interval_ms}: "
            "followers with nothing to fetch would leave the ISR repeatedly",
        )


def lag_ms_min(heartbeat_interval_ms: int) -> int:
    """Lowest `replica.lag.time.max.ms`, in milliseconds, with which idle followers stay in the ISR."""
    return heartbeat_interval_ms + max(heartbeat_interval_ms, _TICKS_MS)


def changes_between(before: Mapping[str, str], after: Mapping[str, str]) -> list[ConfigChange]:
    """Differences between two sets of settings, sorted by key."""
    return [
        ConfigChange(key, before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def text_of(value: Value) -> str:
    """Text of a value, as in the table and in files."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) if all(isinstance(one, Path) for one in value) else ";".join(map(str, value))
    return str(value)


def topic_entries(configs: Mapping[str, str], keys: Collection[str] = ()) -> list[ConfigEntry]:
    """Settings of a topic: all, or `keys` of them; raises UNKNOWN_CONFIG."""
    rows = _rows("topic", keys)
    return [
        _entry(row, "topic", *_first((configs.get(row.name), ConfigSource.TOPIC), _default(row, "topic")))
        for row in rows
    ]


def cluster_entries(cluster: Mapping[str, str], keys: Collection[str] = ()) -> list[ConfigEntry]:
    """Settings of all brokers; a static setting has no value here. Raises UNKNOWN_CONFIG."""
    return [_entry(row, "broker", *_of_all(row, cluster)) for row in _rows("broker", keys)]


def _of_all(row: ConfigKey, cluster: Mapping[str, str]) -> tuple[str | None, ConfigSource]:
    if row.scope is Scope.STATIC:
        return None, ConfigSource.UNKNOWN
    return _first((cluster.get(row.name), ConfigSource.CLUSTER), _default(row, "broker"))


def absent_broker_entries(
    cluster: Mapping[str, str], broker: Mapping[str, str], keys: Collection[str] = ()
) -> list[ConfigEntry]:
    """Settings of a broker that does not answer, as ZooKeeper has them. Raises UNKNOWN_CONFIG."""
    unknown = (None, ConfigSource.UNKNOWN)
    return [
        _entry(row, "broker", *_first(_dynamic(row, broker, ConfigSource.BROKER), _dynamic(row, cluster), unknown))
        for row in _rows("broker", keys)
    ]


def broker_entries(
    static: Mapping[str, str],
    cluster: Mapping[str, str],
    broker: Mapping[str, str],
    keys: Collection[str] = (),
) -> list[ConfigEntry]:
    """Settings of a running broker.

    Args:
        static: settings of the broker's process, with defaults.
        cluster: settings of all brokers.
        broker: settings of this broker.
        keys: keys to return; empty: all.

    Raises:
        TidemarkError: UNKNOWN_CONFIG.
    """
    entries = []
    for row in _rows("broker", keys):
        given = static.get(row.name)
        source = ConfigSource.DEFAULT if given == row.default_for("broker") else ConfigSource.STATIC
        found = _first(_dynamic(row, broker, ConfigSource.BROKER), _dynamic(row, cluster), (given, source))
        entries.append(_entry(row, "broker", *found))
    return entries


def _dynamic(
    row: ConfigKey, configs: Mapping[str, str], source: ConfigSource = ConfigSource.CLUSTER
) -> tuple[str | None, ConfigSource]:
    """Dynamic value of a setting; None for a static setting, which brokers do not read from ZooKeeper."""
    return None if row.scope is Scope.STATIC else configs.get(row.name), source


def _default(row: ConfigKey, owner: str) -> tuple[str | None, ConfigSource]:
    return row.default_for(owner), ConfigSource.DEFAULT


def _first(*candidates: tuple[str | None, ConfigSource]) -> tuple[str | None, ConfigSource]:
    return next((found for found in candidates if found[0] is not None), candidates[-1])


def _rows(owner: str, keys: Collection[str]) -> Iterable[ConfigKey]:
    known = keys_of(owner)
    for name in keys:
        if name not in known:
            raise unknown_config(name, known, f"a {owner}")
    return [known[name] for name in keys or known]


def _entry(row: ConfigKey, owner: str, value: str | None, source: ConfigSource) -> ConfigEntry:
    return ConfigEntry(
        key=row.name,
        value=value,
        source=source,
        type=str(row.kind),
        unit=row.unit,
        scope=str(row.scope),
        documentation=row.doc,
        valid_values=row.valid_values,
        default_value=row.default_for(owner),
    )
