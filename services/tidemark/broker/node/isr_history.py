# SPDX-License-Identifier: Apache-2.0
"""The last ISR changes of each partition, as this broker noted them as the leader; kept in memory only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tidemark.core.isr_change_reasons import IsrChange, parsed
from tidemark.core.replication.effects import Observed
from tidemark.model import BrokerId, LeaderEpoch, ReplicaIdentity, TopicPartition

CHANGES_MAX: Final = 10
"""Largest number of changes that are kept of one partition."""
PARTITIONS_MAX: Final = 20_000
"""Limit of the partitions with changes; the one whose last change is the oldest is removed first."""


class IsrHistory:
    """Keeps `CHANGES_MAX` changes of a partition; a partition without a change needs no memory.

    Args:
        wall_us: time since 1970.
    """

    def __init__(self, wall_us: Callable[[], int]) -> None:
        self._wall_us = wall_us
        self._changes: dict[tuple[TopicPartition, str], deque[IsrChange]] = {}

    def observe(self, effect: Observed) -> None:
        """Keep the change, if the core observed one."""
        if effect.kind != "isr_changed" or effect.partition is None:
            return
        fields = effect.fields
        key = (effect.partition, str(fields["incarnation"]))
        changes = self._changes.pop(key, None) or deque(maxlen=CHANGES_MAX)
        changes.append(
            IsrChange(
                self._wall_us() // 1000,
                LeaderEpoch(int(fields["leader_epoch"])),
                int(fields["partition_epoch"]),
                _shared_ids(str(fields["isr"])),
                parsed(str(fields["reasons"])),
            )
        )
        self._changes[key] = changes
        if len(self._changes) > PARTITIONS_MAX:
            del self._changes[next(iter(self._changes))]

    def of(self, partition: TopicPartition, identity: ReplicaIdentity) -> tuple[IsrChange, ...]:
        """The changes of a partition, the oldest first."""
        return tuple(self._changes.get((partition, identity.incarnation), ()))


@lru_cache(1_024)
def _shared_ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(one)) for one in text.split(",") if one)
