"""What a topic to create must be, and what it becomes: every check before anything is written (rules C4, C7, R4).

Plain functions over what was read from ZooKeeper.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.placement import assign_replicas, check_counts
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicDescription
from tidemark.runtime.configuration import topic_settings
from tidemark.zookeeper.codecs import encode_topic
from tidemark.zookeeper.topics import NODE_BYTES_MAX

TOPIC_NAME_CHARACTERS_MAX: Final = 249

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_SAMPLE_PARTITIONS: Final = 20_000
"""So many partitions never fit into a node; more need not be computed to know how many would."""

_REQUESTS: Final = uuid.UUID("4f1b1c0e-6a55-4f0e-9c1d-6d1f0c6f3a52")
"""Namespace of the topic ids that are derived from request ids."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """What is asked for; `replication_factor` 0 is the default, `request_id` "" is none."""

    topic: str
    partitions: int
    replication_factor: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""


def check_topic_name(name: str) -> None:
    """Refuse what cannot be the name of a topic: INVALID_TOPIC_NAME."""
    if not name:
        why = "it is empty"
    elif len(name) > TOPIC_NAME_CHARACTERS_MAX:
        why = f"it has {len(name)} characters, {TOPIC_NAME_CHARACTERS_MAX} are allowed"
    elif name in {".", ".."}:
        why = "it is a path of its own"
    elif _TOPIC_NAME.fullmatch(name) is None:
        why = "only letters, digits, '.', '_' and '-' are allowed"
    else:
        return
    shown = name if len(name) <= 40 else f"{name[:40]}..."
    raise TidemarkError(ErrorCode.INVALID_TOPIC_NAME, f"{shown!r} cannot be the name of a topic: {why}")


def check_configs(configs: Mapping[str, str], *, replication_factor: int) -> None:
    """Refuse topic settings that are unknown, out of range or beyond the replicas: UNKNOWN_CONFIG, INVALID_CONFIG."""
    settings = topic_settings(configs)
    if "min.insync.replicas" in configs and settings.min_insync_replicas > replication_factor:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"min.insync.replicas is {settings.min_insync_replicas}, more than the replication factor, "
            f"{replication_factor}: nothing could ever be acknowledged with acks=all",
            {"config": "min.insync.replicas"},
        )


def topic_id_of(request: TopicRequest) -> str:
    """Uuid in hex: derived from the request id where there is one, so that a retry finds its own topic."""
    if request.request_id:
        return uuid.uuid5(_REQUESTS, f"{request.topic}/{request.request_id}").hex
    return uuid.uuid4().hex


def already_exists(topic: str) -> TidemarkError:
    """The refusal to create what is there."""
    return TidemarkError(ErrorCode.TOPIC_ALREADY_EXISTS, f"there is a topic {topic} already", {"topic": topic})


def plan_topic(
    request: TopicRequest,
    brokers: Mapping[BrokerId, BrokerRegistration],
    existing: Iterable[TopicDescription],
    *,
    topic_id: str,
    default_replication_factor: int,
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> TopicDescription:
    """The topic node to write for a request whose name was checked.

    Args:
        request: what is asked for.
        brokers: the live ones.
        existing: every topic there is; their preferred leaders decide where this one starts (rule C4).
        topic_id: from `topic_id_of`.
        default_replication_factor: taken for 0.
        new_uuid: gives the incarnations (rule C7).

    Raises:
        TidemarkError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, UNKNOWN_CONFIG or INVALID_CONFIG.
    """
    factor = request.replication_factor or default_replication_factor
    check_counts(len(brokers), partitions=request.partitions, replication_factor=factor)
    check_configs(request.configs, replication_factor=factor)
    assigned = assign_replicas(
        {broker_id: broker.rack for broker_id, broker in brokers.items()},
        partitions=min(request.partitions, _SAMPLE_PARTITIONS),
        replication_factor=factor,
        existing=[replicas for topic in existing for replicas in topic.partitions.values()],
    )
    planned = TopicDescription(
        topic=request.topic,
        topic_id=topic_id,
        partitions=dict(enumerate(assigned)),
        incarnations={partition: new_uuid() for partition in range(len(assigned))},
        configs=dict(request.configs),
    )
    node_bytes = len(encode_topic(planned))
    if node_bytes > NODE_BYTES_MAX or len(assigned) < request.partitions:
        fitting = len(assigned) * NODE_BYTES_MAX // node_bytes
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{request.partitions} partitions with {factor} replicas do not fit into one ZooKeeper node; "
            f"about {fitting} do",
            {"partitions_max": str(fitting)},
        )
    return planned
