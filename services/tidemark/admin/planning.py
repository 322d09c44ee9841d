# SPDX-License-Identifier: Apache-2.0
"""What a topic to create must be, and what it becomes: every check before anything is written (rules C4, C7, R4).

Plain functions over what was read from ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.core.groups.coordinator_partition import OFFSETS_TOPIC
from tidemark.core.planning.placement import assign_replicas, check_counts
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicDescription
from tidemark.runtime.configuration import topic_settings
from tidemark.zookeeper.codecs import encode_topic
from tidemark.zookeeper.topics import NODE_BYTES_MAX

_SAMPLE_PARTITIONS: Final = 20_000
"""So many partitions never fit into a node; more need not be computed to know how many would."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """What is asked for; `replication_factor` 0 is the default, `topic_id` "" is a new one."""

    topic: str
    partitions: int
    replication_factor: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str = ""


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


def new_topic_id() -> str:
    """Uuid in hex: never that of another topic, so that nobody takes a topic for one of the same name before it."""
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
    draining: Collection[BrokerId] = (),
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> TopicDescription:
    """The topic node to write for a request whose name was checked.

    Args:
        request: what is asked for.
        brokers: the live ones.
        existing: every topic there is; their preferred leaders decide where this one starts (rule C4).
        topic_id: of the request, or a new one.
        default_replication_factor: taken for 0.
        draining: brokers that are removed: nothing new is placed on them.
        new_uuid: gives the incarnations (rule C7).

    Raises:
        TidemarkError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, UNKNOWN_CONFIG or INVALID_CONFIG; INVALID_REQUEST
            for `__consumer_offsets`.
    """
    _check_is_not_the_clusters_own(
        request.topic,
        ErrorCode.INVALID_REQUEST,
        "is the cluster's own: brokers make it for the first consumer group, compacted and with "
        "offsets.topic.num.partitions partitions, and it would stay as it is made",
    )
    factor = request.replication_factor or default_replication_factor
    open_brokers = _open_brokers(brokers, draining)
    check_counts(len(open_brokers), partitions=request.partitions, replication_factor=factor)
    check_configs(request.configs, replication_factor=factor)
    assigned = assign_replicas(
        open_brokers,
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
    _check_fits(planned, request.partitions, factor)
    return planned


def plan_partitions(
    topic: TopicDescription,
    total_count: int,
    assignments: Sequence[tuple[BrokerId, ...]],
    brokers: Mapping[BrokerId, BrokerRegistration],
    existing: Iterable[TopicDescription],
    *,
    draining: Collection[BrokerId] = (),
) -> TopicDescription:
    """The topic as it would be with `total_count` partitions; the new ones continue rule C4 or are given.

    Args:
        topic: as it is.
        total_count: partitions it shall have.
        assignments: replicas of each new one; none: they are placed, with as many replicas as partition 0 has.
        brokers: the live ones.
        existing: every topic there is, this one included.
        draining: brokers that are removed: nothing new is placed on them.

    Raises:
        TidemarkError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, EMPTY_REPLICAS, DUPLICATE_REPLICA or
            BROKER_NOT_AVAILABLE.
    """
    there = len(topic.partitions)
    where = {"topic": topic.topic, "partition_count": str(there)}
    if total_count < there:
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.topic} has {there} partitions, more than {total_count}: remove some with "
            "tidemark topic remove-partitions",
            where,
        )
    missing = total_count - there
    if assignments and len(assignments) != missing:
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{missing} partitions are to be added to the {there} of {topic.topic}, and replicas of "
            f"{len(assignments)} are given: give those of each, or none",
            where,
        )
    if not missing:
        return topic
    check_count_may_change(topic.topic)
    if assignments:
        for replicas in assignments:
            _check_replicas(topic.topic, replicas, brokers, draining)
        added = tuple(assignments)
    else:
        added = assign_replicas(
            _open_brokers(brokers, draining),
            partitions=min(missing, _SAMPLE_PARTITIONS),
            replication_factor=_replication_factor(topic),
            existing=[replicas for other in existing for replicas in other.partitions.values()],
        )
    planned = replace(
        topic,
        partitions={**topic.partitions, **{there + index: replicas for index, replicas in enumerate(added)}},
        incarnations={**topic.incarnations, **{there + index: uuid.uuid4().hex for index in range(len(added))}},
    )
    _check_fits(planned, total_count, len(added[0]))
    return planned


def check_count_may_change(topic: str) -> None:
    """Refuse it for `__consumer_offsets` (INVALID_PARTITIONS): no group would be found any more where it is."""
    _check_is_not_the_clusters_own(
        topic,
        ErrorCode.INVALID_PARTITIONS,
        "keeps the number of partitions that it was made with: each consumer group belongs to one of them "
        "by that number; offsets.topic.num.partitions says how many a new cluster gets",
    )


def check_may_go(topic: str) -> None:
    """Refuse it for `__consumer_offsets` (INVALID_REQUEST): all groups would forget how far they have read."""
    _check_is_not_the_clusters_own(
        topic,
        ErrorCode.INVALID_REQUEST,
        "is the cluster's own: it remembers how far every consumer group has read, and is not deleted; "
        "to forget a group: `tidemark group delete`",
    )


def _check_is_not_the_clusters_own(topic: str, code: ErrorCode, why: str) -> None:
    if topic == OFFSETS_TOPIC:
        raise TidemarkError(code, f"{topic} {why}", {"topic": topic})


def _replication_factor(topic: TopicDescription) -> int:
    """Of the first partition; while it is moved, what it had before."""
    first = min(topic.partitions)
    return len(topic.original.get(first, topic.partitions[first]))


def _check_replicas(
    topic: str,
    replicas: tuple[BrokerId, ...],
    brokers: Collection[BrokerId],
    draining: Collection[BrokerId],
) -> None:
    where = {"topic": topic}
    if not replicas:
        raise TidemarkError(ErrorCode.EMPTY_REPLICAS, "a partition needs at least one replica", where)
    listed = ",".join(str(broker) for broker in replicas)
    if len(set(replicas)) < len(replicas):
        raise TidemarkError(
            ErrorCode.DUPLICATE_REPLICA, f"replicas {listed}: a broker holds one replica at most", where
        )
    for broker in replicas:
        if broker not in brokers:
            raise TidemarkError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"replicas {listed}: broker {broker} is not live; start it", where
            )
        if broker in draining:
            raise TidemarkError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"replicas {listed}: broker {broker} is being removed; name another, or add it again with "
                f"tidemark cluster add-brokers {broker}",
                where,
            )


def _open_brokers(
    brokers: Mapping[BrokerId, BrokerRegistration], draining: Collection[BrokerId]
) -> dict[BrokerId, str]:
    """Those on which something may be placed, with their racks."""
    return {broker_id: broker.rack for broker_id, broker in brokers.items() if broker_id not in draining}


def _check_fits(planned: TopicDescription, partitions: int, factor: int) -> None:
    node_bytes = len(encode_topic(planned))
    if node_bytes > NODE_BYTES_MAX or len(planned.partitions) < partitions:
        fitting = len(planned.partitions) * NODE_BYTES_MAX // node_bytes
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions with {factor} replicas do not fit into one ZooKeeper node; about {fitting} do",
            {"partitions_max": str(fitting)},
        )
