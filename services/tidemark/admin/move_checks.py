"""Moves that cannot be, refused before anything is written (seed 002, 4.1): each with its own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tidemark.model import (
    BrokerId,
    ErrorCode,
    Move,
    MoveRequests,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)


def refuse_moves(
    moves: Sequence[Move],
    topics: Mapping[str, TopicDescription],
    live: Collection[BrokerId],
    requests: MoveRequests,
) -> dict[TopicPartition, TidemarkError]:
    """The refusal of each partition that has one; the first thing that is wrong with it.

    Args:
        moves: new ones.
        topics: all of them.
        live: registered brokers.
        requests: what is wanted already.
    """
    times = Counter(move.partition for move in moves)
    busy = {move.partition for move in requests.moves}
    refused = {}
    for move in moves:
        found = _wrong(move, times[move.partition], topics.get(move.partition.topic), live, busy)
        if found is not None:
            code, sentence = found
            where = {"topic": move.partition.topic, "partition": str(move.partition.partition)}
            refused[move.partition] = TidemarkError(code, sentence, where)
    return refused


def _wrong(
    move: Move,
    times: int,
    topic: TopicDescription | None,
    live: Collection[BrokerId],
    busy: Collection[TopicPartition],
) -> tuple[ErrorCode, str] | None:
    name, index = move.partition, move.partition.partition
    if times > 1:
        return ErrorCode.DUPLICATE_PARTITION, f"{name} is named {times} times: say once where it goes"
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC, f"there is no topic {name.topic}"
    if index not in topic.partitions:
        return ErrorCode.UNKNOWN_PARTITION, f"{name.topic} has no partition {index}: it has {len(topic.partitions)}"
    if not move.replicas:
        return ErrorCode.EMPTY_REPLICAS, f"{name} needs at least one replica"
    if len(set(move.replicas)) < len(move.replicas):
        return ErrorCode.DUPLICATE_REPLICA, f"{name} names a broker twice: a broker holds one replica at most"
    if move.log_dirs and len(move.log_dirs) != len(move.replicas):
        return (
            ErrorCode.LOG_DIRS_MISMATCH,
            f"{name} has {len(move.replicas)} replicas and {len(move.log_dirs)} log_dirs: give one for each, or none",
        )
    away = [broker for broker in move.replicas if broker not in live]
    if away:
        return (
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"{name} cannot go to broker {', '.join(map(str, away))}: not live; start it first",
        )
    if name in busy or index in topic.original:
        return (
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"{name} is being moved already: wait for it, or cancel it (tidemark reassign cancel)",
        )
    return None
