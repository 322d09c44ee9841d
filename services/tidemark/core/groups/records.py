# SPDX-License-Identifier: Apache-2.0
"""The records of `__consumer_offsets` (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Any, Final

from tidemark.core.groups.state import (
    Change,
    Committed,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupKey,
    GroupMetadata,
    GroupPartition,
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
)
from tidemark.core.state_records import Form, StateRecords, by_topic, object_of, one_by_one


def _topics_out(topics: Mapping[str, TopicFacts]) -> dict[str, list[Any]]:
    return {name: list(topics[name]) for name in sorted(topics)}


def _topics_in(found: Mapping[str, Any]) -> dict[str, TopicFacts]:
    return {name: TopicFacts(*facts[:2]) for name, facts in found.items()}


def _partitions_in(found: Any) -> Partitions:
    return frozenset(starmap(GroupPartition, one_by_one(found)))


_PARTITIONS: Final = Form(by_topic, _partitions_in)
_RECORDS: Final = StateRecords(
    Change,
    {
        "group": (GroupKey, object_of(GroupMetadata, optional=("protocol",), topics=Form(_topics_out, _topics_in))),
        "assigned": (TargetMetadataKey, object_of(TargetMetadata)),
        "member": (MemberMetadataKey, object_of(MemberMetadata, topics=Form(list, tuple))),
        "target": (
            TargetAssignmentKey,
            Form(lambda found: {"partitions": by_topic(found)}, lambda found: _partitions_in(found["partitions"])),
        ),
        "holding": (
            CurrentAssignmentKey,
            object_of(
                CurrentAssignment,
                optional=("sequence", "joined"),
                state=Form(str, MemberState),
                assigned=_PARTITIONS,
                revoking=_PARTITIONS,
            ),
        ),
        "offset": (
            OffsetKey,
            object_of(Committed, sparse=("turn",), turn=Form(list, lambda found: Turn(*found[:2]))),
        ),
    },
    "a consumer group",
)
encode: Final = _RECORDS.encode
decode: Final = _RECORDS.decode
