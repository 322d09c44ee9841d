# SPDX-License-Identifier: Apache-2.0
"""Resources with dynamic settings: topics, brokers, and all brokers together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class ConfigKind(StrEnum):
    """Kinds of resources with settings in ZooKeeper; the value is part of paths."""

    TOPIC = "topics"
    BROKER = "brokers"


CLUSTER_DEFAULT: Final = "default"
"""Name of the settings of kind BROKER that apply to every broker without a setting of its own."""


class ConfigResource(NamedTuple):
    """A topic by its name, a broker by its id, or every broker (`CLUSTER_DEFAULT`)."""

    kind: ConfigKind
    name: str


EVERY_BROKER: Final = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)


class VersionedConfigs(NamedTuple):
    """Explicit settings, and the version of their node; -1: there is no node."""

    configs: Mapping[str, str]
    version: int
