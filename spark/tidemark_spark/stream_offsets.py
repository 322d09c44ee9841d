# SPDX-License-Identifier: Apache-2.0
"""Offsets of a streaming query as in its checkpoint, and their advance by a micro-batch. Pure.

An offset has the cluster id, the topic id and the incarnation of the partition (rules C7, K1, E4). The offset also has
the epoch of the leader that reported the offset. So a recreated topic or partition of the same name is detected. An
offset that did not change keeps exactly the same text, since Spark starts a micro-batch when the text differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.model import NO_EPOCH

if TYPE_CHECKING:
    from tidemark.client.consuming.range_reader import StatedOffset

VERSION: Final = 1


class DataLossError(RuntimeError):
    """Records were deleted or truncated before the query read them."""


class CheckpointError(RuntimeError):
    """The checkpoint belongs to another cluster, or cannot be parsed."""


class Position(NamedTuple):
    """Position of a query in one partition.

    Attributes:
        offset: offset of the next record to read.
        leader_epoch: epoch of the leader that reported the offset; no record before the offset has a higher epoch.
        incarnation: uuid of the partition (rule C7).
        begin: start offset of the query in the partition, in the end of the first micro-batch with records of the
            partition; else None. PySpark before 4.2: only for partitions that the query found during its run.
        skipped: total number of records deleted before the query read them.
    """

    offset: int
    leader_epoch: int
    incarnation: str
    begin: int | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Positions of a query in one topic, by partition."""

    topic_id: str
    partitions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Positions of a query, by topic."""

    cluster_id: str
    topics: Mapping[str, TopicPosition]

    def to_json(self) -> dict[str, Any]:
        """JSON for the checkpoint; equal offsets have equal text."""
        return {
            "version": VERSION,
            "cluster": self.cluster_id,
            "topics": {
                name: {
                    "id": topic.topic_id,
                    "partitions": {str(index): _to_json(topic.partitions[index]) for index in sorted(topic.partitions)},
                }
                for name, topic in sorted(self.topics.items())
            },
        }

    def position(self, topic: str, partition: int) -> Position | None:
        """Position of the query in a partition."""
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)


def from_json(value: Mapping[str, Any]) -> StreamOffset:
    """Parse the result of `to_json`; raises CheckpointError."""
    version = value.get("version") if isinstance(value, Mapping) else None
    if version != VERSION:
        raise CheckpointError(
            f"the checkpoint is not an offset of the source tidemark in version {VERSION}: {str(value)[:200]}; "
            "give the query a new checkpointLocation"
        )
    try:
        topics = {
            name: TopicPosition(
                topic["id"], {int(index): _position(entry) for index, entry in topic["partitions"].items()}
            )
            for name, topic in value["topics"].items()
        }
        return StreamOffset(value["cluster"], topics)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {error!r} in {str(value)[:200]}") from error


def _to_json(position: Position) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "offset": position.offset,
        "leaderEpoch": position.leader_epoch,
        "incarnation": position.incarnation,
    }
    if position.begin is not None:
        entry["begin"] = position.begin
    if position.skipped:
        entry["skipped"] = position.skipped
    return entry


def _position(entry: Mapping[str, Any]) -> Position:
    return Position(
        entry["offset"], entry["leaderEpoch"], entry["incarnation"], entry.get("begin"), entry.get("skipped", 0)
    )


# -- from one micro-batch to the next ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Available:
    """The offsets that the topics have now.

    Attributes:
        latest: high watermarks.
        log_starts: log start offsets by (topic, partition), only of partitions where they were fetched.
    """

    latest: StreamOffset
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)


class _Way(NamedTuple):
    """Start and largest end of a micro-batch in one partition."""

    begin: int
    end: Position
    known: Position | None
    skipped: int = 0


def advance(start: StreamOffset, available: Available, limit: int | None, *, is_first: bool = False) -> StreamOffset:
    """The end of the next micro-batch.

    This object skips and counts lost records; `losses` describes them, for queries that fail instead.

    Args:
        start: end of the last micro-batch.
        available: current offsets.
        limit: most offsets of the micro-batch; None: no limit.
        is_first: whether `start` is the start of the query, which Spark does not store: the end then states it.
    """
    ways = _ways(start, available)
    lengths = {where: way.end.offset - way.begin for where, way in ways.items()}
    shares = lengths if limit is None else share(lengths, limit)
    topics: dict[str, TopicPosition] = {}
    for name, topic in available.latest.topics.items():
        moved = {index: _moved(ways[name, index], shares[name, index], is_first=is_first) for index in topic.partitions}
        topics[name] = TopicPosition(topic.topic_id, moved)
    return StreamOffset(start.cluster_id, topics)


def _ways(start: StreamOffset, available: Available) -> dict[tuple[str, int], _Way]:
    return {
        (name, index): _way(start, available, name, index)
        for name, topic in available.latest.topics.items()
        for index in topic.partitions
    }


def _way(start: StreamOffset, available: Available, topic: str, partition: int) -> _Way:
    end = available.latest.topics[topic].partitions[partition]
    first = available.log_starts.get((topic, partition), 0)
    known = start.position(topic, partition)
    before = start.topics.get(topic)
    same = before is not None and before.topic_id == available.latest.topics[topic].topic_id
    if known is None or not same or known.incarnation != end.incarnation:
        return _Way(min(first, end.offset), end, None, 0 if known is None else known.skipped)
    if end.offset < known.offset and _only_isolated(known, end):
        return _Way(known.offset, known, known, known.skipped)
    if end.offset < known.offset:  # the log was truncated, and the query has read the rest
        return _Way(end.offset, end, None, known.skipped + known.offset - end.offset)
    begin = min(max(known.offset, first), end.offset)
    return _Way(begin, end, known, known.skipped + begin - known.offset)


def _only_isolated(known: Position, now: Position) -> bool:
    """Whether a lower end comes without a truncation, which needs a higher leader epoch.

    Either the query has read uncommitted records before, and now ends at last stable offsets, or a leader answers that
    was replaced.
    """
    return now.leader_epoch <= known.leader_epoch


def is_cut(known: Position, now: Position) -> bool:
    """Whether a partition ends below the position of a query, at a leader that was elected since."""
    return known.incarnation == now.incarnation and now.offset < known.offset and not _only_isolated(known, now)


def _moved(way: _Way, count: int, *, is_first: bool) -> Position:
    if way.known is not None and way.begin + count == way.known.offset:
        return way.known
    begin = way.begin if way.known is None or is_first else None
    return Position(way.begin + count, way.end.leader_epoch, way.end.incarnation, begin, way.skipped)


def share(lengths: Mapping[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """Divide `limit` offsets among partitions in proportion to their offsets.

    Each partition with offsets gets at least one, as in Spark's Kafka source, so a limit below the number of these
    partitions is exceeded: otherwise one large partition could keep the others waiting forever.
    """
    total = sum(lengths.values())
    waiting = sorted((where for where in lengths if lengths[where]), key=lambda where: (-lengths[where], where))
    limit = max(limit, len(waiting))
    if total <= limit:
        return dict(lengths)
    rest, left = limit - len(waiting), total - len(waiting)
    shares = dict.fromkeys(lengths, 0)
    for where in waiting:
        shares[where] = 1 + rest * (lengths[where] - 1) // left
    over = limit - sum(shares.values())
    for where in waiting:  # the remainder of the divisions, one each: there are more partitions with offsets left
        given = min(1, over, lengths[where] - shares[where])
        shares[where] += given
        over -= given
    return shares


def clamp(available: StreamOffset, target: StreamOffset, start: StreamOffset | None = None) -> StreamOffset:
    """Current offsets, limited to an earlier target; later partitions are excluded.

    The broker that stated the target may not have known every partition of `start`: these stay at the start. So do
    partitions whose start is above the target: a new query states its start after its target.
    """
    topics = {}
    for name, topic in available.topics.items():
        bounds: dict[int, Position] = {}
        for known in (start, target):
            found = None if known is None else known.topics.get(name)
            if found is not None and found.topic_id == topic.topic_id:
                bounds |= {
                    index: one for index, one in found.partitions.items() if not _is_before(one, bounds.get(index))
                }
        kept = {
            index: position if position.offset <= bounds[index].offset else bounds[index]
            for index, position in topic.partitions.items()
            if index in bounds
        }
        if kept:
            topics[name] = TopicPosition(topic.topic_id, kept)
    return StreamOffset(available.cluster_id, topics)


def first_start(initial: StreamOffset, end: StreamOffset) -> StreamOffset:
    """The start of a query's first micro-batch, which an earlier process may have planned.

    The end states the start offsets. Those of `initial` may be later ones, and of partitions that came later.
    """
    topics = {}
    for name, topic in end.topics.items():
        before = initial.topics.get(name)
        known = before.partitions if before is not None and before.topic_id == topic.topic_id else {}
        found = {}
        for index, position in topic.partitions.items():
            one = known.get(index)
            if one is not None and one.incarnation != position.incarnation:
                one = None
            if position.begin is not None and (one is None or one.offset != position.begin):
                one = Position(position.begin, NO_EPOCH, position.incarnation)
            if one is not None:
                found[index] = one
        topics[name] = TopicPosition(topic.topic_id, found)
    return StreamOffset(initial.cluster_id, topics)


def _is_before(one: Position, other: Position | None) -> bool:
    return other is not None and one.incarnation == other.incarnation and one.offset < other.offset


def waiting(start: StreamOffset, available: Available) -> int:
    """Number of offsets that the next micro-batch could have."""
    return sum(way.end.offset - way.begin for way in _ways(start, available).values())


# -- errors --------------------------------------------------------------------------------------------------------


def check_cluster(start: StreamOffset, cluster_id: str) -> None:
    """Check that a checkpoint belongs to the cluster that answered; raises CheckpointError."""
    if start.cluster_id != cluster_id:
        raise CheckpointError(
            f"the checkpoint is of cluster {start.cluster_id}, and 'tidemark.bootstrap' leads to cluster {cluster_id}; "
            "correct the address, or give the query a new checkpointLocation"
        )


def losses(start: StreamOffset, available: Available) -> list[str]:
    """Losses since a start, one sentence each."""
    found = []
    for name, topic in start.topics.items():
        now = available.latest.topics.get(name)
        if now is None:
            found.append(f"topic {name} ({topic.topic_id}) was deleted, or is not read any more")
        elif now.topic_id != topic.topic_id:
            found.append(
                f"topic {name} was deleted and created again: the query has read {topic.topic_id}, "
                f"the name now has {now.topic_id}"
            )
        else:
            for index, position in topic.partitions.items():
                sentence = _loss(f"{name}-{index}", position, now.partitions.get(index), available, name, index)
                if sentence:
                    found.append(sentence)
    return found


def _loss(where: str, known: Position, now: Position | None, available: Available, topic: str, index: int) -> str:
    if now is None:
        return f"{where} was removed, or is not read any more"
    if now.incarnation != known.incarnation:
        return f"{where} was removed and added again: it has other records now"
    if now.offset < known.offset and not _only_isolated(known, now):
        return (
            f"{where}: the query has read up to offset {known.offset} (leader epoch {known.leader_epoch}), and it now "
            f"ends at {now.offset} (leader epoch {now.leader_epoch}). An unclean election truncated its log"
        )
    first = available.log_starts.get((topic, index), 0)
    return deleted(topic, index, known.offset, first) if first > known.offset else ""


def deleted(topic: str, partition: int, offset: int, first: int) -> str:
    """The sentence about records from `offset` on that a query did not read before the log start moved to `first`."""
    return f"{topic}-{partition}: offsets {offset} to {first} were deleted before they were read"


def truncated(topic: str, partition: int, end: Position, now: StatedOffset) -> str:
    """The sentence about a micro-batch whose last records the log does not have any more."""
    return (
        f"{topic}-{partition}: the micro-batch ends at offset {end.offset} (leader epoch {end.leader_epoch}), and the "
        f"log now ends at {now.offset} (leader epoch {now.leader_epoch}). An unclean election truncated its log"
    )
