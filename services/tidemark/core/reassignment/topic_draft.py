# SPDX-License-Identifier: Apache-2.0
"""Changes of a topic's node by the reassignments of its partitions (rule M1, steps 1 and 10, and cancelling). Pure.

During a reassignment, a partition's AR is its target followed by the replicas that are being removed. `original`,
`adding` and `removing` of the node name OAR, RAR - OAR and AR - RAR.
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.model import BrokerId, TopicDescription


class TopicDraft:
    """A topic's node that is being composed; without a change, `result` equals the node."""

    def __init__(self, topic: TopicDescription) -> None:
        self._topic = topic
        self._partitions = dict(topic.partitions)
        self._adding, self._removing, self._original = dict(topic.adding), dict(topic.removing), dict(topic.original)

    def add(self, index: int, target: tuple[BrokerId, ...]) -> None:
        """Step 1: AR = RAR + OAR."""
        original = self._partitions[index]
        self._original[index] = original
        self._adding[index] = tuple(broker for broker in target if broker not in original)
        self._assign(index, target, original)

    def revert(self, index: int) -> None:
        """The target becomes OAR; added replicas are removed."""
        self._adding[index] = ()
        self._assign(index, self._original[index], self._partitions[index])

    def complete(self, index: int, target: tuple[BrokerId, ...]) -> None:
        """Step 10: AR = RAR, and the reassignment is no longer named."""
        self._partitions[index] = target
        for field in (self._adding, self._removing, self._original):
            field.pop(index, None)

    def _assign(self, index: int, target: tuple[BrokerId, ...], others: tuple[BrokerId, ...]) -> None:
        self._removing[index] = tuple(broker for broker in others if broker not in target)
        self._partitions[index] = (*target, *self._removing[index])

    def result(self) -> TopicDescription:
        """The node to write."""
        return replace(
            self._topic,
            partitions=self._partitions,
            adding=self._adding,
            removing=self._removing,
            original=self._original,
        )
