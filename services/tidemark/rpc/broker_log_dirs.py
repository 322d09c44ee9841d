# SPDX-License-Identifier: Apache-2.0
"""Log directories of many brokers at once, and replicas moved between them: model <-> proto of the admin service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir, ReplicaLogDirOutcome
from tidemark.model import BrokerId, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.log_dirs import LogDirectoryContent, content_from_proto, contents_to_proto
from tidemark.rpc.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import admin_log_dirs_pb2 as pb


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """The log directories of a broker, or why it said nothing."""

    broker_id: BrokerId
    log_dirs: tuple[LogDirectoryContent, ...] = ()
    error: TidemarkError | None = None


def broker_to_proto(found: BrokerLogDirs) -> Iterator[pb.DescribeBrokerLogDirsResponse]:
    """The messages about a broker, one at least."""
    if found.error is not None:
        yield pb.DescribeBrokerLogDirsResponse(broker_id=found.broker_id, error=errors.to_proto(found.error))
        return
    for part in contents_to_proto(found.log_dirs):
        yield pb.DescribeBrokerLogDirsResponse(broker_id=found.broker_id, log_dirs=part.log_dirs)


class BrokersFromProto:
    """Puts the parts of an answer together."""

    def __init__(self) -> None:
        self._errors: dict[BrokerId, TidemarkError | None] = {}
        self._parts: dict[BrokerId, dict[str, LogDirectoryContent]] = {}

    def add(self, message: pb.DescribeBrokerLogDirsResponse) -> None:
        """One part."""
        broker = BrokerId(message.broker_id)
        self._errors[broker] = errors.from_proto(message.error) if message.HasField("error") else None
        known = self._parts.setdefault(broker, {})
        for part in map(content_from_proto, message.log_dirs):
            before = known.get(part.directory_id)
            whole = part if before is None else replace(part, replicas=before.replicas + part.replicas)
            known[part.directory_id] = whole

    def result(self) -> list[BrokerLogDirs]:
        """By broker."""
        return [
            BrokerLogDirs(broker, tuple(self._parts[broker].values()), error)
            for broker, error in sorted(self._errors.items())
        ]


def places_to_proto(places: Iterable[ReplicaLogDir]) -> list[pb.BrokerReplicaLogDir]:
    """Replicas to move."""
    return [
        pb.BrokerReplicaLogDir(
            broker_id=place.broker_id, partition=ref_to_proto(place.partition), log_dir=place.log_dir
        )
        for place in places
    ]


def places_from_proto(messages: Iterable[pb.BrokerReplicaLogDir]) -> list[ReplicaLogDir]:
    """Replicas to move."""
    return [ReplicaLogDir(BrokerId(one.broker_id), ref_from_proto(one.partition), one.log_dir) for one in messages]


def placed_to_proto(placed: Iterable[ReplicaLogDirOutcome]) -> list[pb.BrokerReplicaLogDirResult]:
    """What became of them."""
    return [
        pb.BrokerReplicaLogDirResult(
            broker_id=one.broker_id,
            partition=ref_to_proto(one.partition),
            error=None if one.error is None else errors.to_proto(one.error),
        )
        for one in placed
    ]


def placed_from_proto(messages: Iterable[pb.BrokerReplicaLogDirResult]) -> list[ReplicaLogDirOutcome]:
    """What became of them."""
    return [
        ReplicaLogDirOutcome(
            BrokerId(one.broker_id),
            ref_from_proto(one.partition),
            errors.from_proto(one.error) if one.HasField("error") else None,
        )
        for one in messages
    ]
