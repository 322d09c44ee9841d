# SPDX-License-Identifier: Apache-2.0
"""What has settings that change while the cluster runs: topics, brokers, and all brokers together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class ConfigKind(StrEnum):
    """What has settings of its own in ZooKeeper; the value is part of paths."""

    TOPIC = "topics"
    BROKER = "brokers"


CLUSTER_DEFAULT: Final = "default"
"""Name of the settings of kind BROKER that hold for every broker which has none of its own."""


class ConfigResource(NamedTuple):
    """A topic by its name, a broker by its id, or every broker (`CLUSTER_DEFAULT`)."""

    kind: ConfigKind
    name: str


class VersionedConfigs(NamedTuple):
    """The explicit settings, and the version of the node they were read at; -1: there is none."""

    configs: Mapping[str, str]
    version: int
