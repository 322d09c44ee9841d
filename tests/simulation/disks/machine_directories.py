# SPDX-License-Identifier: Apache-2.0
"""The log directory of a machine, as the registration of its broker uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.model import BrokerEpoch, ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.directories.log_directory import PreviousDirectory

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode


class MachineDirectories:
    """`RegisteredLogs` of one process: one directory, the incarnation as the start of the process found it."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._machine = node.machine
        found = node.machine.incarnation
        incarnation = (f"boot-{found[0]}", BrokerEpoch(found[1])) if found is not None else None
        self.previous = (PreviousDirectory(node.machine.directory_id, None, incarnation),)

    @property
    def directory_ids(self) -> tuple[str, ...]:
        return () if self._machine.failed else (self._machine.directory_id,)

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        return {partition: log.identity for partition, log in self._machine.logs.items()}

    def sync(self) -> None:
        """A failed directory is skipped, as the log manager skips it."""
        if self._machine.failed:
            return
        if not self._node.logs.can_sync():
            raise TidemarkError(ErrorCode.STORAGE_ERROR, "the simulated disk refused a sync")
        self._node.logs.sync()

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        machine = self._machine
        machine.registered(broker_epoch)
        if not machine.failed:
            machine.incarnation = (machine.boot, broker_epoch)
            self._node.logs.confirm_registration(broker_epoch, boot_id)
