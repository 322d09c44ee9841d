# SPDX-License-Identifier: Apache-2.0
"""The records of `__consumer_offsets`: keys and values as canonical JSON (docs/formats.md).

A later version may add fields and kinds of keys; readers ignore unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidemark.core.groups.state import (
    CONSUMER,
    Change,
    Committed,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupKey,
    GroupMetadata,
    GroupPartition,
    Key,
    MemberMetadata,
    MemberMetadataKey,
    MemberState,
    OffsetKey,
    Partitions,
    TargetAssignmentKey,
    TargetMetadata,
    TargetMetadataKey,
    TopicFacts,
    Turn,
    Value,
)
from tidemark.model import ErrorCode, TidemarkError

_KINDS: Final[dict[str, Callable[..., Key]]] = {
    "group": GroupKey,
    "assigned": TargetMetadataKey,
    "member": MemberMetadataKey,
    "target": TargetAssignmentKey,
    "holding": CurrentAssignmentKey,
    "offset": OffsetKey,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode(change: Change) -> tuple[bytes, bytes | None]:
    """Key and value of a record; the value is None for a tombstone."""
    key = _dump([_NAMES[type(change.key)], *change.key])
    return key, None if change.value is None else _dump(_value_out(change.value))


def decode(key: bytes, value: bytes | None) -> Change | None:
    """The change of a record; None for a kind of key of a later version.

    Raises:
        TidemarkError: INVALID_PAYLOAD if the record is not valid.
    """
    try:
        kind, *parts = json.loads(key)
        make = _KINDS.get(kind)
        if make is None:
            return None
        found = make(*parts)
        return Change(found, None if value is None else _value_in(found, json.loads(value)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"{key!r} is not a record of a consumer group: {type(error).__name__}: {error}"
        ) from error


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _value_out(value: Value) -> object:
    match value:
        case GroupMetadata():
            return {
                "protocol": value.protocol,
                "epoch": value.epoch,
                "topics": {name: list(value.topics[name]) for name in sorted(value.topics)},
                "empty_since_ms": value.empty_since_ms,
            }
        case TargetMetadata():
            return {"epoch": value.epoch, "assignor": value.assignor}
        case MemberMetadata():
            return {
                "instance_id": value.instance_id,
                "client_id": value.client_id,
                "client_host": value.client_host,
                "rebalance_timeout_ms": value.rebalance_timeout_ms,
                "topics": list(value.topics),
                "assignor": value.assignor,
            }
        case CurrentAssignment():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "state": str(value.state),
                "assigned": by_topic(value.assigned),
                "revoking": by_topic(value.revoking),
                "sequence": value.sequence,
                "joined": value.joined,
            }
        case Committed():
            return {
                "offset": value.offset,
                "leader_epoch": value.leader_epoch,
                "metadata": value.metadata,
                "topic_id": value.topic_id,
                "incarnation": value.incarnation,
                "committed_at_ms": value.committed_at_ms,
                **({"turn": list(value.turn)} if value.turn.committer_id else {}),
            }
    return {"partitions": by_topic(value)}


def _value_in(key: Key, found: dict[str, Any]) -> Value:
    match key:
        case GroupKey():
            topics = {name: TopicFacts(*facts[:2]) for name, facts in found["topics"].items()}
            return GroupMetadata(found.get("protocol", CONSUMER), found["epoch"], topics, found["empty_since_ms"])
        case TargetMetadataKey():
            return TargetMetadata(found["epoch"], found["assignor"])
        case MemberMetadataKey():
            return MemberMetadata(
                found["instance_id"],
                found["client_id"],
                found["client_host"],
                found["rebalance_timeout_ms"],
                tuple(found["topics"]),
                found["assignor"],
            )
        case CurrentAssignmentKey():
            return CurrentAssignment(
                found["epoch"],
                found["previous_epoch"],
                MemberState(found["state"]),
                _partitions_in(found["assigned"]),
                _partitions_in(found["revoking"]),
                found.get("sequence", 0),
                found.get("joined", 0),
            )
        case OffsetKey():
            return Committed(
                found["offset"],
                found["leader_epoch"],
                found["metadata"],
                found["topic_id"],
                found["incarnation"],
                found["committed_at_ms"],
                Turn(*found.get("turn", ())[:2]),
            )
    return _partitions_in(found["partitions"])


def by_topic(partitions: Iterable[GroupPartition]) -> list[tuple[str, str, list[int]]]:
    """The partitions as (topic, topic id, partition indexes), all sorted."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for topic, topic_id, partition in sorted(partitions):
        grouped.setdefault((topic, topic_id), []).append(partition)
    return [(topic, topic_id, indexes) for (topic, topic_id), indexes in grouped.items()]


def _partitions_in(found: list[Any]) -> Partitions:
    return frozenset(GroupPartition(topic, topic_id, index) for topic, topic_id, indexes in found for index in indexes)
