# SPDX-License-Identifier: Apache-2.0
"""Describes log directories of brokers, moves replicas between them, and checks the log directories that reassignments
name.

Each broker decides about its own directories (rule M3). Requests go to all brokers at the same time; a broker that does
not answer does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from tidemark.admin.views import no_such_partition
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir, ReplicaLogDirOutcome
from tidemark.core.reassignment.request import named_log_dirs
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    PartitionReassignment,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
    unknown_topic,
)
from tidemark.ports import Clock
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.alter_log_dirs import Alteration, AlterLogDirs, alterations_to_proto, results_from_proto
from tidemark.rpc.log_dirs import LogDirectoryContent, Wanted, describe_log_dirs
from tidemark.rpc.receiver import receiver_headers
from tidemark.runtime.shared_calls import SharedCalls
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.zookeeper.store import MetadataStore

_DESCRIBE_DEADLINE_S: Final = 10.0
_ALTER_DEADLINE_S: Final = 10.0
_CHECKED_A_CALL: Final = 2_000
_MOVED_A_CALL: Final = 100
"""Moves in one call to a broker, which answers after it has created the directory and the first files of each copy."""

Brokers = Mapping[BrokerId, BrokerRegistration]


class DisksOfBrokers:
    """Calls brokers over gRPC; each method raises TidemarkError if the broker does not answer.

    Callers of the same description share a call that begins after their own.

    Args:
        store: has the id of the cluster, whose brokers alone accept the calls.
        clock: clock of the shared calls.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._calls: SharedCalls[tuple[str, Wanted], tuple[LogDirectoryContent, ...]] = SharedCalls(0, clock)

    async def describe(self, broker: BrokerRegistration, wanted: Wanted) -> tuple[LogDirectoryContent, ...]:
        """Describe the broker's log directories."""
        address = broker.address

        async def ask() -> tuple[LogDirectoryContent, ...]:
            headers = receiver_headers(await self._store.cluster_id(), broker.broker_id)
            return await describe_log_dirs(
                address, **wanted._asdict(), deadline_s=_DESCRIBE_DEADLINE_S, headers=headers
            )

        try:
            return await self._calls.result((address, wanted), ask)
        except TidemarkError as error:
            facts = {**error.metadata, "broker": str(broker.broker_id)}
            raise TidemarkError(
                error.code, f"broker {broker.broker_id} does not answer: {error.message}", facts
            ) from None

    async def alter(self, broker: BrokerRegistration, wanted: AlterLogDirs) -> Sequence[Alteration]:
        """Move replicas between the broker's log directories."""
        headers = receiver_headers(await self._store.cluster_id(), broker.broker_id)
        async with channel_for_call(broker.address, f"broker {broker.broker_id}") as channel:
            stub: Any = BrokerServiceStub(channel)
            request = alterations_to_proto(wanted)
            response = await stub.AlterReplicaLogDirs(request, timeout=_ALTER_DEADLINE_S, metadata=headers)
        return results_from_proto(response)


class LogDirAdministration:
    """Describes log directories of brokers, and moves replicas between them.

    Args:
        store: started.
        disks: calls brokers.
    """

    def __init__(self, store: MetadataStore, disks: DisksOfBrokers) -> None:
        self._store = store
        self._disks = disks

    async def describe(
        self,
        brokers: Collection[BrokerId],
        topics: Collection[str] = (),
        partitions: Collection[TopicPartition] = (),
        *,
        include_isr_changes: bool = False,
    ) -> list[BrokerLogDirs]:
        """Describe the log directories of brokers (empty: all live ones); `error` is set for a broker that does not
        answer.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC, COORDINATION_UNAVAILABLE.
        """
        named = sorted({*topics, *(partition.topic for partition in partitions)})
        for topic in named:
            check_topic_name(topic)
        live, known = await asyncio.gather(self._store.live_brokers(), self._store.topics(named))
        for topic in named:
            if topic not in known:
                raise unknown_topic(topic)
        asked = sorted(set(brokers) or live)
        wanted = Wanted(frozenset(topics), frozenset(partitions), include_isr_changes)
        return list(await asyncio.gather(*(self._describe(one, live, wanted) for one in asked)))

    async def _describe(self, broker: BrokerId, live: Brokers, wanted: Wanted) -> BrokerLogDirs:
        try:
            if broker not in live:
                raise not_live(broker)
            return BrokerLogDirs(broker, await self._disks.describe(live[broker], wanted))
        except TidemarkError as error:
            return BrokerLogDirs(broker, error=error)

    async def alter(
        self, places: Sequence[ReplicaLogDir], *, throttle_bytes_per_s: int, validate_only: bool
    ) -> list[ReplicaLogDirOutcome]:
        """Move replicas between log directories of their brokers; returns a result for each, in the same order.

        Raises:
            TidemarkError: INVALID_REQUEST, COORDINATION_UNAVAILABLE; other errors are in the results.
        """
        _check(places, throttle_bytes_per_s)
        names = sorted({place.partition.topic for place in places})
        live, topics = await asyncio.gather(self._store.live_brokers(), self._store.topics(names))
        found: dict[tuple[BrokerId, TopicPartition], TidemarkError | None] = {}
        for place in places:
            found[place[:2]] = _obstacle(place, topics)
        fine = [place for place in places if found[place[:2]] is None]
        found |= await self._ask(fine, live, throttle_bytes_per_s, validate_only=validate_only)
        return [ReplicaLogDirOutcome(place.broker_id, place.partition, found[place[:2]]) for place in places]

    async def check_reassignments(
        self, moves: Sequence[PartitionReassignment], live: Brokers
    ) -> dict[TopicPartition, TidemarkError]:
        """Ask brokers whether the log directories in these moves can take replicas; returns a refusal per partition."""
        places = [
            ReplicaLogDir(broker, move.partition, directory)
            for move in moves
            if not move.cancel
            for broker, directory in named_log_dirs(move).items()
        ]
        found = await self._ask(places, live, 0, validate_only=True)
        refused: dict[TopicPartition, TidemarkError] = {}
        for place in places:
            error = found[place[:2]]
            if error is not None:
                refused.setdefault(place.partition, error)
        return refused

    async def _ask(
        self, places: Sequence[ReplicaLogDir], live: Brokers, throttle_bytes_per_s: int, *, validate_only: bool
    ) -> dict[tuple[BrokerId, TopicPartition], TidemarkError | None]:
        by_broker: defaultdict[BrokerId, list[tuple[TopicPartition, str]]] = defaultdict(list)
        for place in places:
            by_broker[place.broker_id].append((place.partition, place.log_dir))
        wanted = {
            broker: AlterLogDirs(tuple(replicas), throttle_bytes_per_s, validate_only)
            for broker, replicas in by_broker.items()
        }
        answers = await asyncio.gather(*(self._ask_one(broker, live, wanted[broker]) for broker in wanted))
        return {key: error for answer in answers for key, error in answer.items()}

    async def _ask_one(
        self, broker: BrokerId, live: Brokers, wanted: AlterLogDirs
    ) -> dict[tuple[BrokerId, TopicPartition], TidemarkError | None]:
        results: dict[tuple[BrokerId, TopicPartition], TidemarkError | None] = {}
        step = _CHECKED_A_CALL if wanted.validate_only else _MOVED_A_CALL
        for start in range(0, len(wanted.replicas), step):
            some = wanted.replicas[start : start + step]
            part = AlterLogDirs(some, wanted.throttle_bytes_per_s, wanted.validate_only)
            try:
                if broker not in live:
                    raise not_live(broker)
                answers = await self._disks.alter(live[broker], part)
                results |= {(broker, partition): _of(broker, partition, error) for partition, error in answers}
            except TidemarkError as error:
                results |= {(broker, partition): _of(broker, partition, error) for partition, _ in some}
        return results


def _check(places: Sequence[ReplicaLogDir], throttle_bytes_per_s: int) -> None:
    if not places:
        raise invalid_request("name replicas to move, each with its broker and directory")
    if throttle_bytes_per_s < 0:
        raise invalid_request(f"a throttle of {throttle_bytes_per_s} bytes/s is less than 0 (the brokers' setting)")
    if len({place[:2] for place in places}) < len(places):
        raise invalid_request("a replica is named more than once; name one directory for each")


def _obstacle(place: ReplicaLogDir, topics: Mapping[str, TopicDescription]) -> TidemarkError | None:
    """Return the error that this service finds without a call to the broker; None without an error."""
    partition, broker = place.partition, place.broker_id
    where = {**partition.facts, "broker": str(broker)}
    topic = topics.get(partition.topic)
    if topic is None or partition.partition not in topic.partitions:
        return no_such_partition(partition, topic)
    replicas = topic.partitions[partition.partition]
    if broker not in replicas:
        listed = ", ".join(str(one) for one in replicas)
        return TidemarkError(
            ErrorCode.NOT_A_REPLICA,
            f"broker {broker} holds no replica of {partition}, whose replicas are on {listed}. Name one of these, or "
            "reassign the partition to this broker with tidemark reassign, which takes log_dirs",
            where,
        )
    if not place.log_dir:
        sentence = f"no directory is named for {partition} on broker {broker}: give its path or uuid"
        return TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, sentence, where)
    return None


def not_live(broker: BrokerId) -> TidemarkError:
    """Make the error for a broker that is not registered now."""
    return TidemarkError(
        ErrorCode.BROKER_NOT_AVAILABLE,
        f"broker {broker} is not live: start it, or name another",
        {"broker": str(broker)},
    )


def _of(broker: BrokerId, partition: TopicPartition, error: TidemarkError | None) -> TidemarkError | None:
    """Add the replica to the error."""
    if error is None:
        return None
    facts = {**partition.facts, "broker": str(broker)}
    return TidemarkError(error.code, f"{partition} on broker {broker}: {error.message}", {**error.metadata, **facts})
