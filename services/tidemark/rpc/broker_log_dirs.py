# SPDX-License-Identifier: Apache-2.0
"""Log directories of several brokers, and log directory moves: model <-> proto of the admin service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir, ReplicaLogDirOutcome
from tidemark.model import BrokerId, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.message import OPTIONAL_ERROR, PARTITION, Codec
from tidemark.rpc.log_dirs import LogDirectoryContent, add_contents, contents_to_proto
from tidemark.v1 import admin_log_dirs_pb2 as pb


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """The log directories of a broker, or the error of the request to this broker."""

    broker_id: BrokerId
    log_dirs: tuple[LogDirectoryContent, ...] = ()
    error: TidemarkError | None = None


def broker_to_proto(found: BrokerLogDirs) -> Iterator[pb.DescribeBrokerLogDirsResponse]:
    """The messages for one broker, at least one."""
    if found.error is not None:
        yield pb.DescribeBrokerLogDirsResponse(broker_id=found.broker_id, error=errors.to_proto(found.error))
        return
    for part in contents_to_proto(found.log_dirs):
        yield pb.DescribeBrokerLogDirsResponse(broker_id=found.broker_id, log_dirs=part.log_dirs)


class BrokersFromProto:
    """Joins the messages of an answer."""

    def __init__(self) -> None:
        self._errors: dict[BrokerId, TidemarkError | None] = {}
        self._parts: dict[BrokerId, dict[str, LogDirectoryContent]] = {}

    def add(self, message: pb.DescribeBrokerLogDirsResponse) -> None:
        """Add the log directories, or the error, of one message to its broker."""
        broker = BrokerId(message.broker_id)
        self._errors[broker] = errors.error_in(message)
        add_contents(self._parts.setdefault(broker, {}), message.log_dirs)

    def result(self) -> list[BrokerLogDirs]:
        """The brokers of the answer, by id."""
        return [
            BrokerLogDirs(broker, tuple(self._parts[broker].values()), error)
            for broker, error in sorted(self._errors.items())
        ]


_PLACE: Final = Codec(ReplicaLogDir, pb.BrokerReplicaLogDir, partition=PARTITION)
places_to_proto: Final = _PLACE.to_protos
places_from_proto: Final = _PLACE.from_protos

_PLACED: Final = Codec(ReplicaLogDirOutcome, pb.BrokerReplicaLogDirResult, partition=PARTITION, error=OPTIONAL_ERROR)
placed_to_proto: Final = _PLACED.to_protos
placed_from_proto: Final = _PLACED.from_protos
