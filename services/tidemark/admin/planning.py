# SPDX-License-Identifier: Apache-2.0
"""Validation and replica placement of new topics and partitions, before any write (rules C4, C7, R4).

Functions of data read from ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.core.config_resource import ConfigKind
from tidemark.core.internal_topics import INTERNAL_TOPICS
from tidemark.core.planning.placement import assign_replicas, check_counts
from tidemark.core.schemas.compatibility import COMPATIBILITY
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    SchemaText,
    TidemarkError,
    TopicDescription,
    invalid_config,
)
from tidemark.runtime.configuration.entries import check_alterable
from tidemark.runtime.configuration.settings import topic_settings
from tidemark.zookeeper.codecs import encode_topic
from tidemark.zookeeper.topics import NODE_BYTES_MAX

_MIN_ISR: Final = "min.insync.replicas"
MIN_ISR_DEFAULT: Final = topic_settings({}).min_insync_replicas
"""min.insync.replicas of a topic without the setting."""

_SHOWN_BROKERS_MAX: Final = 10
_SAMPLE_PARTITIONS: Final = 20_000
"""More partitions than fit into a znode; placing these suffices to compute the number that fits."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A topic to create; replication factor 0: the cluster's default; topic id "": a new id; `schema`: first version of
    a typed topic.
    """

    topic: str
    partitions: int
    replication_factor: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str = ""
    schema: SchemaText | None = None


def check_configs(configs: Mapping[str, str], *, replication_factor: int, typed: bool) -> None:
    """Refuse topic settings that are unknown, out of range, above the replicas, or for typed topics only:
    UNKNOWN_CONFIG, INVALID_CONFIG.
    """
    check_alterable(ConfigKind.TOPIC, configs, ())
    settings = topic_settings(configs)
    if COMPATIBILITY in configs and not typed:
        # Brokers of 0.1.0 would use the defaults for all settings of the topic, since they do not know this one.
        raise invalid_config(
            COMPATIBILITY, f"only a typed topic has {COMPATIBILITY}, and this topic has no schema: omit the setting"
        )
    if _MIN_ISR in configs and settings.min_insync_replicas > replication_factor:
        raise invalid_config(
            _MIN_ISR,
            f"min.insync.replicas is {settings.min_insync_replicas}, more than the replication factor, "
            f"{replication_factor}: nothing could ever be acknowledged with acks=all",
        )


def new_topic_id() -> str:
    """Make a topic id, a uuid in hex, which distinguishes a topic from earlier topics of the same name."""
    return uuid.uuid4().hex


def already_exists(topic: str) -> TidemarkError:
    """Make the error TOPIC_ALREADY_EXISTS, with metadata `topic`."""
    sentence = f"there is a topic {topic} already: use that topic, or choose another name"
    return TidemarkError(ErrorCode.TOPIC_ALREADY_EXISTS, sentence, {"topic": topic})


def plan_topic(
    request: TopicRequest,
    brokers: Mapping[BrokerId, BrokerRegistration],
    existing: Iterable[TopicDescription],
    *,
    topic_id: str,
    default_replication_factor: int,
    default_min_insync_replicas: int = MIN_ISR_DEFAULT,
    draining: Collection[BrokerId] = (),
) -> TopicDescription:
    """Plan the znode of a topic whose name is valid.

    Args:
        request: the topic to create.
        brokers: live brokers.
        existing: all topics; their preferred leaders decide where the placement starts (rule C4).
        topic_id: topic id of the request, or a new id.
        default_replication_factor: replaces a replication factor of 0.
        default_min_insync_replicas: of a request without min.insync.replicas; at most the replication factor.
        draining: brokers that get no new replicas.

    Raises:
        TidemarkError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, UNKNOWN_CONFIG or INVALID_CONFIG; INVALID_REQUEST
            for an internal topic, and for a schema while a live broker cannot store typed batches.
    """
    _check_not_internal(
        request.topic,
        ErrorCode.INVALID_REQUEST,
        "is an internal topic: brokers create it, compacted, for the first consumer group or transactional id; "
        "offsets.topic.num.partitions and transaction.state.log.num.partitions set the number of partitions",
    )
    factor = request.replication_factor or default_replication_factor
    if request.schema is not None:
        _check_store_typed(brokers)
    open_brokers = _open_brokers(brokers, draining)
    check_counts(len(open_brokers), partitions=request.partitions, replication_factor=factor)
    check_configs(request.configs, replication_factor=factor, typed=request.schema is not None)
    configs = _with_min_isr(request.configs, default_min_insync_replicas, factor)
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
        incarnations={partition: uuid.uuid4().hex for partition in range(len(assigned))},
        configs=configs,
        schemas={} if request.schema is None else {1: request.schema},
    )
    _check_fits(planned, request.partitions, factor)
    return planned


def _check_store_typed(brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
    older = sorted(broker for broker, found in brokers.items() if not found.stores_typed)
    if older:
        named = (
            "broker "
            + ", ".join(map(str, older[:_SHOWN_BROKERS_MAX]))
            + (" ..." if len(older) > _SHOWN_BROKERS_MAX else "")
        )
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a typed topic needs a version of Tidemark that has them on every live broker: upgrade {named} first",
            {"brokers": ",".join(map(str, older[:_SHOWN_BROKERS_MAX]))},
        )


def _with_min_isr(configs: Mapping[str, str], default: int, replication_factor: int) -> dict[str, str]:
    """Add min.insync.replicas, unless given or the default of all topics."""
    if _MIN_ISR in configs or default == MIN_ISR_DEFAULT:
        return dict(configs)
    return {**configs, _MIN_ISR: str(min(default, replication_factor))}


def plan_partitions(
    topic: TopicDescription,
    total_count: int,
    assignments: Sequence[tuple[BrokerId, ...]],
    brokers: Mapping[BrokerId, BrokerRegistration],
    existing: Iterable[TopicDescription],
    *,
    draining: Collection[BrokerId] = (),
) -> TopicDescription:
    """Plan the topic with `total_count` partitions.

    Args:
        topic: the topic now.
        total_count: number of partitions to reach.
        assignments: replicas of each new partition; empty: placed by rule C4, with the replication factor of
            partition 0.
        brokers: live brokers.
        existing: all topics, including this one.
        draining: brokers that get no new replicas.

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
            f"{topic.topic} has {there} partitions and gets {missing} more, but replicas of {len(assignments)} are "
            "given: give the replicas of each new partition, or of none",
            where,
        )
    if not missing:
        return topic
    check_count_may_change(topic.topic)
    if topic.schemas:
        named = {broker for replicas in assignments for broker in replicas}
        _check_store_typed({broker: found for broker, found in brokers.items() if broker in named})
        brokers = {broker: found for broker, found in brokers.items() if found.stores_typed}
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
    """Refuse an internal topic (INVALID_PARTITIONS): its keys are mapped to its partitions by their number."""
    _check_not_internal(
        topic,
        ErrorCode.INVALID_PARTITIONS,
        "keeps the number of partitions that it was created with: groups and transactional ids are mapped to "
        "partitions by that number. offsets.topic.num.partitions and transaction.state.log.num.partitions set the "
        "number for a new cluster",
    )


def check_may_go(topic: str) -> None:
    """Refuse an internal topic (INVALID_REQUEST): all committed offsets, or all transactions, would be lost."""
    _check_not_internal(
        topic,
        ErrorCode.INVALID_REQUEST,
        "is an internal topic with the state of every consumer group or transaction, and cannot be deleted; "
        "to delete one group: `tidemark group delete`",
    )


def _check_not_internal(topic: str, code: ErrorCode, why: str) -> None:
    if topic in INTERNAL_TOPICS:
        raise TidemarkError(code, f"{topic} {why}", {"topic": topic})


def _replication_factor(topic: TopicDescription) -> int:
    """Replicas of the first partition, before its reassignment if one is running."""
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
    """Racks of the brokers that may get new replicas."""
    return {broker_id: broker.rack for broker_id, broker in brokers.items() if broker_id not in draining}


def _check_fits(planned: TopicDescription, partitions: int, factor: int) -> None:
    node_bytes = len(encode_topic(planned))
    if node_bytes > NODE_BYTES_MAX or len(planned.partitions) < partitions:
        fitting = len(planned.partitions) * NODE_BYTES_MAX // node_bytes
        raise TidemarkError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions with {factor} replicas do not fit into one znode; about {fitting} do",
            {"partitions_max": str(fitting)},
        )
