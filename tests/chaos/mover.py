# SPDX-License-Identifier: Apache-2.0
"""Reassigns partitions during all other faults; at the end it reassigns every partition to all brokers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from tidemark.client import AdminClient
from tidemark.model import BrokerId, PartitionReassignment, TidemarkError, TopicPartition

_PAUSE_S = (0.2, 2.0)
_CALL_S = 5.0
_BROKERS = (BrokerId(0), BrokerId(1), BrokerId(2))


class Mover:
    """Requests reassignments to two or three brokers in any order, and cancels some of them; refusals are permitted.

    A requested reassignment may be running, queued, or lost with its answer: only the final reassignment must complete.
    """

    def __init__(self, admin: str, topic: str, partitions: int, seed: int, slowness: float = 1.0) -> None:
        self._admin = admin
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._chance = random.Random(seed)
        self._call_s = _CALL_S * slowness
        self.asked = self.cancelled = self.refused = 0

    def move_until(self, ended: threading.Event) -> None:
        """Request one reassignment after the other."""
        with AdminClient(admin=self._admin, timeout_s=self._call_s) as admin:
            while not ended.wait(self._chance.uniform(*_PAUSE_S)):
                partition = self._chance.choice(self._partitions)
                try:
                    if self._chance.random() < 0.25:
                        admin.alter_partition_reassignments(cancel=[partition])
                        self.cancelled += 1
                    else:
                        self._move(admin, [partition], self._chance.choice((2, 3)))
                        self.asked += 1
                except TidemarkError:
                    self.refused += 1

    def _move(self, admin: AdminClient, partitions: Sequence[TopicPartition], replicas: int) -> None:
        moves = [PartitionReassignment(one, tuple(self._chance.sample(_BROKERS, replicas))) for one in partitions]
        admin.alter_partition_reassignments(moves)

    def bring_home(self, deadline_s: float) -> list[str]:
        """Reassign every partition to all three brokers again.

        Returns the partitions whose reassignment did not complete in time.
        """
        why = "nothing was tried"
        with AdminClient(admin=self._admin, timeout_s=self._call_s) as admin:
            while time.monotonic() < deadline_s:
                try:
                    under_way = admin.list_partition_reassignments().moves
                    found = admin.describe_topics([self._partitions[0].topic])[0].partitions
                    short = [one for one in self._partitions if len(found[one.partition].assigned_replicas) < 3]
                    if not under_way and not short:
                        return []
                    why = f"running: {[str(one) for one in under_way]}; with fewer replicas: {short}"
                    if short and not under_way:
                        self._move(admin, short, 3)
                except TidemarkError as error:
                    why = str(error)
                time.sleep(0.2)
        return [f"moves did not end: {why}"]
