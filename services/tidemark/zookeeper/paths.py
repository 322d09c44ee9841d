# SPDX-License-Identifier: Apache-2.0
"""Paths of all znodes (docs/formats.md)."""

from __future__ import annotations

import re
from typing import Final

from tidemark.model import BrokerId, ElectionKind, TopicPartition

CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKERS: Final = "/brokers/ids"
BROKER_EPOCHS: Final = "/brokers/epochs"
TOPICS: Final = "/brokers/topics"
TOPIC_DELETIONS: Final = "/admin/delete_topics"
TOPIC_CONFIGS: Final = "/config/topics"
UNCLEAN_ELECTIONS: Final = "/admin/unclean_elections"
MOVES: Final = "/admin/reassign_partitions"
PARTITIONS_ADD: Final = "/admin/partitions_add"
PARTITIONS_REMOVE: Final = "/admin/partitions_remove"
REFUSALS: Final = "/admin/refusals"
PRODUCER_IDS: Final = "/producer_ids"
ACLS: Final = "/security/acls"
QUOTAS: Final = "/security/quotas"

PARENTS: Final = (
    "/cluster",
    BROKERS,
    BROKER_EPOCHS,
    TOPICS,
    TOPIC_DELETIONS,
    PARTITIONS_ADD,
    PARTITIONS_REMOVE,
    "/admin/requests",
    UNCLEAN_ELECTIONS,
    TOPIC_CONFIGS,
    "/config/brokers",
    "/config/clients",
    "/security",
)
"""Parent znodes that a store creates when it starts."""

INCARNATION_PREFIX: Final = "i-"

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER_MAX: Final = (1 << 31) - 1

_ELECTIONS: Final = {
    ElectionKind.PREFERRED: "/admin/preferred_replica_election",
    ElectionKind.LAST_KNOWN: "/admin/last_known_election",
    ElectionKind.REBUILD_STATE: "/admin/last_known_election",
}


def number_in(name: str) -> int | None:
    """The broker, partition or version with this name; None for a name that no process writes."""
    number = int(name) if _NUMBER.fullmatch(name) else -1
    return number if 0 <= number <= _NUMBER_MAX else None


def broker(broker_id: BrokerId) -> str:
    """Path of the ephemeral znode with the broker's registration."""
    return f"{BROKERS}/{broker_id}"


def broker_epoch(broker_id: BrokerId) -> str:
    """Path of the persistent znode whose version is the broker epoch (rule Z3)."""
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic(name: str) -> str:
    """Path of the znode with the topic's assignment."""
    return f"{TOPICS}/{name}"


def topic_config(name: str) -> str:
    """Path of the znode with the topic's explicit settings."""
    return f"{TOPIC_CONFIGS}/{name}"


def topic_deletion(name: str) -> str:
    """Path of the znode that exists until the controller has deleted the topic."""
    return f"{TOPIC_DELETIONS}/{name}"


def elections(kind: ElectionKind) -> str:
    """Path of the znode that exists while an election request of this kind is open."""
    return _ELECTIONS[kind]


def unclean_elections(of: TopicPartition) -> str:
    """Path of the znode with the loss reports of the partition."""
    return f"{UNCLEAN_ELECTIONS}/{of.topic}-{of.partition}"


def partition(partition: TopicPartition) -> str:
    """Path of the parent of the partition's znodes."""
    return f"{TOPICS}/{partition.topic}/{partition.partition}"


def state(of: TopicPartition) -> str:
    """Path of the partition's leaderAndISR node."""
    return f"{partition(of)}/leaderAndISR"


def incarnation(of: TopicPartition, incarnation_id: str) -> str:
    """Path of the znode that exists as long as this incarnation of the partition does (rules R9, C7)."""
    return f"{partition(of)}/{INCARNATION_PREFIX}{incarnation_id}"
