# SPDX-License-Identifier: Apache-2.0
"""The cluster as clients see it, and how news of it is merged (rule K2). Pure; brokers and clients share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
)

NO_CONTROLLER_EPOCH = ControllerEpoch(-1)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Leadership of one partition, as of one version (`partition_epoch`) of its node."""

    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    assigned_replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]
    incarnation: str = ""
    lineage: int = 0
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; a topic recreated under the same name has another id and a larger `created_zxid`."""

    topic: str
    topic_id: str
    created_zxid: int = -1
    modified_zxid: int = -1
    partitions: Mapping[int, PartitionView] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    error: TidemarkError | None = None
    partition_count: int = 0
    """How many there are, also where only some are told of; 0: not told."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The whole cluster, or (not `complete`) what changed.

    In a change, `brokers` is always whole, and each topic holds only the partitions that changed. A controller tells
    much in parts: the first of them is `complete`, and each but the last says that there are `more_parts`. Of
    `hidden_topics` some node cannot be understood: they are not told, or not whole, and what is known of them stays.
    `sequence` rises with each message of a controller's term to a broker; 0: not numbered.
    """

    cluster_id: str = ""
    controller_id: BrokerId = NO_LEADER
    controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    admin_address: str = ""
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    deleted_topics: tuple[str, ...] = ()
    complete: bool = False
    part: int = 0
    more_parts: bool = False
    hidden_topics: tuple[str, ...] = ()
    sequence: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether this is everything there is, or a part of that, and not a change."""
        return self.complete or self.part > 0


def apply(view: ClusterView, update: ClusterView) -> ClusterView:
    """The view after an update: newer topics and partitions win, what an old teller says of them is ignored."""
    if update.controller_epoch < view.controller_epoch:
        return view
    topics = _hidden(view, update) if update.complete else dict(view.topics)
    for name in update.deleted_topics:
        topics.pop(name, None)
    for name, topic in update.topics.items():
        topics[name] = merge_topic(view.topics.get(name), topic)
    return _applied(view, update, topics)


def _hidden(view: ClusterView, update: ClusterView) -> dict[str, TopicView]:
    """What is known of topics that the teller cannot understand."""
    return {name: view.topics[name] for name in update.hidden_topics if name in view.topics}


def _applied(view: ClusterView, update: ClusterView, topics: Mapping[str, TopicView]) -> ClusterView:
    return ClusterView(
        cluster_id=update.cluster_id or view.cluster_id,
        controller_id=update.controller_id,
        controller_epoch=update.controller_epoch,
        admin_address=update.admin_address or view.admin_address,
        brokers=update.brokers,
        topics=topics,
        complete=view.complete or update.complete,
        hidden_topics=update.hidden_topics,
    )


class ToldInParts:
    """Puts a complete view together that is told in parts: what is known stays until all of them are there.

    A part is sent when the one before it was answered, so numbers that rise keep the parts of two views apart.
    """

    def __init__(self) -> None:
        self._topics: dict[str, TopicView] = {}
        self._next_part = 0
        self._taken = (NO_CONTROLLER_EPOCH, 0)

    def take(self, view: ClusterView, update: ClusterView) -> ClusterView | None:
        """The view after an update, or a change; None: it is as before, until the last part has come, or for good
        where this comes late or again: nobody waits for the answer of what came late.

        Raises:
            TidemarkError: INVALID_REQUEST, where this is not the next part: everything is to be told again.
        """
        number = (update.controller_epoch, update.sequence)
        if update.sequence and number <= self._taken:
            return None
        whole = update.is_whole and update.controller_epoch >= view.controller_epoch
        after = self._put_together(view, update) if whole else apply(view, update)
        self._taken = max(self._taken, number)
        return after

    def _put_together(self, view: ClusterView, update: ClusterView) -> ClusterView | None:
        if update.part == 0:
            self._topics = {}
        elif update.part != self._next_part:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST,
                f"part {update.part} of the metadata came where part {self._next_part} was due: tell all of it again",
            )
        for name, topic in update.topics.items():
            self._topics[name] = merge_topic(self._topics.get(name) or view.topics.get(name), topic)
        self._next_part = update.part + 1
        if update.more_parts:
            return None
        topics = {**_hidden(view, update), **self._topics}
        self._topics, self._next_part = {}, 0
        return _applied(view, replace(update, complete=True), topics)


def merge_topic(known: TopicView | None, told: TopicView) -> TopicView:
    """What is known of a topic after it was told of (rule K2: the larger creation and modification zxid replace)."""
    if known is None or known is told or told.error is not None or told.created_zxid > known.created_zxid:
        return told
    if told.created_zxid < known.created_zxid or told.topic_id != known.topic_id:
        return known
    newer = told if told.modified_zxid >= known.modified_zxid else known
    partitions = dict(known.partitions)
    for index, partition in told.partitions.items():
        before = partitions.get(index)
        if before is None or is_newer(partition, before):
            partitions[index] = partition
    if newer.partition_count:
        partitions = {index: one for index, one in partitions.items() if index < newer.partition_count}
    return replace(newer, partitions=partitions)


def is_newer(told: PartitionView, known: PartitionView) -> bool:
    """Whether a partition's view replaces another of the same topic id; epochs compare within one incarnation."""
    if told.incarnation != known.incarnation:
        return True
    return (told.leader_epoch, told.partition_epoch) >= (known.leader_epoch, known.partition_epoch)
