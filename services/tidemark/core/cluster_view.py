# SPDX-License-Identifier: Apache-2.0
"""Cluster metadata as clients see it, and how updates are merged (rule K2). Pure; brokers and clients share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.model import (
    NO_LEADER,
    REMEMBERED_BATCHES,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    invalid_request,
)

NO_CONTROLLER_EPOCH = ControllerEpoch(-1)

_Position = tuple[ControllerEpoch, int]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Leader and replicas of one partition, as of one version (`partition_epoch`) of leaderAndISR.

    Attributes:
        state_unreadable: leaderAndISR was damaged or deleted; set by the admin service only.
    """

    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    assigned_replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]
    incarnation: str = ""
    lineage: int = 0
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    partition_epoch: int = -1
    state_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; a recreated topic of the same name has another id and a larger `created_zxid`.

    Attributes:
        partitions: all partitions, or the changed ones.
        partition_count: of the topic, also where `partitions` has some of them only; 0: not known.
        schema_version: newest version of the schema; 0: the topic has none.
    """

    topic: str
    topic_id: str
    created_zxid: int = -1
    modified_zxid: int = -1
    partitions: Mapping[int, PartitionView] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    error: TidemarkError | None = None
    partition_count: int = 0
    schema_version: int = 0

    @property
    def count(self) -> int:
        """Number of partitions, counting a new topic that the metadata does not have yet."""
        known = len(self.partitions)  # no max(): a producer calls this for each record
        return known if known > self.partition_count else self.partition_count


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The metadata of the whole cluster, a part of it, or changes.

    Attributes:
        brokers: always all brokers.
        topics: in changes, each topic has only the partitions that changed.
        deleted_topics: deleted since the update before.
        complete: the update has the whole cluster, or its first part.
        part: index of the part; 0 for changes and for a snapshot of one message.
        more_parts: another part follows; with changes: others that are older than this message follow. The answer of a
            broker that lacks such changes does not prove that a topic was deleted.
        hidden_topics: topics with a node that does not parse; known metadata of these topics stays.
        sequence: rises with each message of a controller's term to any broker; 0: not numbered. A broker's answer has
            the number of the newest message that the broker has applied.
        dated: kept by clients only: controller epoch and sequence of the newest answer about a topic.
        forgetful: kept by clients only: `remembered_batches` of each broker, live or not, that last stated fewer than
            brokers of this version.
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
    dated: Mapping[str, _Position] = field(default_factory=dict, compare=False)
    forgetful: Mapping[BrokerId, int] = field(default_factory=dict, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether this update has the whole cluster or a part of it, instead of changes."""
        return self.complete or self.part > 0

    @property
    def remembered_batches(self) -> int:
        """Number of batches of a producer that every broker remembers, live or known to this client (rule P1)."""
        live = (broker.remembered_batches for broker in self.brokers.values())
        return min((*live, *self.forgetful.values()), default=REMEMBERED_BATCHES)


def apply(view: ClusterView, update: ClusterView) -> ClusterView:
    """The view after an update: newer topics and partitions replace older ones.

    Updates of an older controller epoch are ignored.
    """
    if update.controller_epoch < view.controller_epoch:
        return view
    topics = _hidden(view, update) if update.complete else dict(view.topics)
    for name in update.deleted_topics:
        topics.pop(name, None)
    for name, topic in update.topics.items():
        topics[name] = merge_topic(view.topics.get(name), topic)
    return _applied(view, update, topics)


def taken_over(view: ClusterView, update: ClusterView) -> ClusterView:
    """A client's view after the answer of a broker.

    An answer of a lagging broker removes no newer metadata: the controller's sequence decides whether a topic was
    created or deleted last. A new cluster may have the addresses of an earlier one. Its epochs and zxids are lower, so
    its view replaces the known one.
    """
    is_other = "" not in (view.cluster_id, update.cluster_id) and view.cluster_id != update.cluster_id
    known = ClusterView() if is_other else view
    if update.controller_epoch < known.controller_epoch:
        return known
    at, late = _position(update), _late_topics(known, update)
    evidence = {name for name, topic in update.topics.items() if _is_evidence(update, topic)}
    told = {
        name: topic
        for name, topic in update.topics.items()
        if not _stays(known.topics.get(name), topic, late=name in late, evidence=name in evidence)
    }
    stay = (update.topics.keys() - told.keys()) | (late if update.complete else set())
    kept = {name: known.topics[name] for name in stay if name in known.topics}
    deleted = tuple(name for name in update.deleted_topics if name not in late)
    brokers = known.brokers if update.sequence and at < _position(known) else update.brokers
    after = apply(known, replace(update, brokers=brokers, topics={**kept, **told}, deleted_topics=deleted))
    dated = {**known.dated, **dict.fromkeys({*deleted, *evidence} - late, at)}
    if update.complete:
        dated = {name: position for name, position in dated.items() if name in after.topics}
    counts = {**known.forgetful, **{broker_id: one.remembered_batches for broker_id, one in brokers.items()}}
    forgetful = {broker_id: count for broker_id, count in counts.items() if count < REMEMBERED_BATCHES}
    return replace(after, dated=dated, forgetful=forgetful)


def _position(view: ClusterView) -> _Position:
    return view.controller_epoch, view.sequence


def _late_topics(known: ClusterView, update: ClusterView) -> set[str]:
    """Topics of which a newer answer is known; an update without a number may be the newest one."""
    at = _position(update)
    return {name for name, position in known.dated.items() if at < position} if update.sequence else set()


def _is_evidence(update: ClusterView, topic: TopicView) -> bool:
    """Whether an answer proves that the topic exists, or that it does not."""
    return topic.error is None or (topic.error.code is ErrorCode.UNKNOWN_TOPIC and not update.more_parts)


def _stays(before: TopicView | None, topic: TopicView, *, late: bool, evidence: bool) -> bool:
    """Whether the known topic stays; zxids and epochs order two answers that both describe it."""
    if before is None:
        return late
    if before.error is None:
        return topic.error is not None and (late or not evidence)
    return late and before.error.code is ErrorCode.UNKNOWN_TOPIC


def _hidden(view: ClusterView, update: ClusterView) -> dict[str, TopicView]:
    """Known metadata of topics that the sender cannot read."""
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
        more_parts=update.more_parts,
        sequence=max(update.sequence, view.sequence if view.controller_epoch == update.controller_epoch else 0),
    )


class MetadataAssembler:
    """Assembles a view that is sent in parts; the known view stays until the last part has arrived.

    Attributes:
        _topics: topics of the parts received so far.
        _next_part: the part that has to come next.
        _begun: sequence of the first part; later changes follow the last part.
        _last: controller epoch and sequence of the last update. A part is sent when the part before is acknowledged, so
            sequences also distinguish the parts of two views.
    """

    def __init__(self) -> None:
        self._topics: dict[str, TopicView] = {}
        self._next_part = 0
        self._begun = 0
        self._last = (NO_CONTROLLER_EPOCH, 0)

    def take(self, view: ClusterView, update: ClusterView) -> ClusterView | None:
        """The view after an update; None: the view stays, because parts are missing or the update is late or repeated.

        Raises:
            TidemarkError: INVALID_REQUEST: this is not the next part; the sender has to begin again.
        """
        number = (update.controller_epoch, update.sequence)
        if update.sequence and number <= self._last:
            return None
        whole = update.is_whole and update.controller_epoch >= view.controller_epoch
        after = self._assemble(view, update) if whole else apply(view, update)
        self._last = max(self._last, number)
        return after

    def _assemble(self, view: ClusterView, update: ClusterView) -> ClusterView | None:
        if update.part == 0:
            self._topics, self._begun = {}, update.sequence
        elif update.part != self._next_part:
            raise invalid_request(
                f"part {update.part} of the metadata arrived instead of part {self._next_part}: send all parts again"
            )
        for name, topic in update.topics.items():
            self._topics[name] = merge_topic(self._topics.get(name) or view.topics.get(name), topic)
        self._next_part = update.part + 1
        if update.more_parts:
            return None
        topics = {**_hidden(view, update), **self._topics}
        self._topics, self._next_part = {}, 0
        return _applied(view, replace(update, complete=True, sequence=self._begun), topics)


def merge_topic(known: TopicView | None, update: TopicView) -> TopicView:
    """A topic after an update (rules K2, S3): the larger creation and modification zxid replaces, as does the larger
    version of the schema."""
    if known is None or known is update or update.error is not None or update.created_zxid > known.created_zxid:
        return update
    if update.created_zxid < known.created_zxid or update.topic_id != known.topic_id:
        return known
    newer = update if update.modified_zxid >= known.modified_zxid else known
    partitions = dict(known.partitions)
    for index, partition in update.partitions.items():
        before = partitions.get(index)
        if before is None or is_newer(partition, before):
            partitions[index] = partition
    if newer.partition_count:
        partitions = {index: one for index, one in partitions.items() if index < newer.partition_count}
    return replace(newer, partitions=partitions, schema_version=max(known.schema_version, update.schema_version))


def is_newer(update: PartitionView, known: PartitionView) -> bool:
    """Whether an update replaces the view of a partition of the same topic id; epochs compare within an incarnation."""
    if update.incarnation != known.incarnation:
        return True
    return (update.leader_epoch, update.partition_epoch) >= (known.leader_epoch, known.partition_epoch)
