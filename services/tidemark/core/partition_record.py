"""One partition, and its topic's policy, as the controller knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.core.election import PartitionFacts
from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch, ReplicaIdentity, TopicPartition

NO_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The settings of a topic that elections go by."""

    min_insync_replicas: int
    unclean_allowed: bool


@dataclass(slots=True)
class PartitionRecord:
    """One partition as the controller knows it.

    Attributes:
        state: the node; None: it has none yet. `version` is the node's.
        writing: what is being written, None when nothing is; no second write begins before it is answered.
        limit: how many writes may go together, halved by each conflict (rule Z2).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    policy: TopicPolicy
    state: LeaderAndIsr | None = None
    version: int = -1
    writing: LeaderAndIsr | None = None
    reading: bool = False
    limit: int = NO_LIMIT
    group: int = 1
    refused_epoch: LeaderEpoch | None = None
    damaged: frozenset[IsrEntry] = frozenset()

    def facts(self) -> PartitionFacts:
        """What `decide` goes by."""
        return PartitionFacts(
            assigned=self.assigned,
            min_isr=min(self.policy.min_insync_replicas, len(self.assigned)),
            state=self.state,
            unclean_allowed=self.policy.unclean_allowed,
            damaged=self.damaged,
            refused_epoch=self.refused_epoch,
        )
