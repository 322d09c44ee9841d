# SPDX-License-Identifier: Apache-2.0
"""/admin/reassign_partitions as the controller reads it: which entries count, which are refused, which are removed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import FinishReassignments
from tidemark.core.controller.reassignment import Reassignment
from tidemark.core.reassignment.request import check_reassignments, named_log_dirs
from tidemark.model import (
    ErrorCode,
    PartitionReassignment,
    ReassignmentRequests,
    Refusal,
    TidemarkError,
    TopicPartition,
)

REASSIGN: Final = "reassign"
"""The kind of refusals of reassignments."""


class ReassignmentEntries:
    """Checks new entries, and collects entries to remove from the node until `effects` returns them.

    Attributes:
        _under_way: every reassignment; read only here.
        _malformed: why entries do not parse, until a removal of entries is confirmed; each is reported once.
        _unreadable: entries of topics that have been unreadable since this term began: they may be partly done.
        _finishing: entries to remove from the node, until the removal is confirmed. An entry that is seen again after
            that is new. _finished, _refused: the part of `_finishing` that the next `FinishReassignments` names.
    """

    def __init__(self, ctx: ControllerContext, under_way: Mapping[TopicPartition, Reassignment]) -> None:
        self._ctx = ctx
        self._under_way = under_way
        self._unreadable: set[PartitionReassignment] = set()
        self._malformed: set[str] = set()
        self._finishing: set[PartitionReassignment] = set()
        self._finished: list[PartitionReassignment] = []
        self._refused: list[Refusal] = []

    def accept(self, requests: ReassignmentRequests, *, resumed: bool) -> dict[TopicPartition, PartitionReassignment]:
        """The valid entries of the present node.

        Args:
            requests: the node.
            resumed: the first read of this term: an earlier controller may have begun an entry.
        """
        unreadable = {entry for entry in requests.moves if self._ctx.is_unread(entry.partition.topic)}
        accepted = {
            entry.partition: entry
            for entry in requests.moves
            if entry not in self._finishing and entry not in unreadable
        }
        for refusal in requests.malformed:
            if refusal.error.message not in self._malformed:
                self._malformed.add(refusal.error.message)
                self._report(refusal)
        changed = [entry for entry in accepted.values() if self._known(entry.partition) != entry]
        for entry, error in self._checked(changed, changed if resumed else self._unreadable):
            del accepted[entry.partition]
            self.refuse(entry, error)
        self._unreadable = unreadable if resumed else self._unreadable & unreadable
        return accepted

    def _known(self, partition: TopicPartition) -> PartitionReassignment | None:
        one = self._under_way.get(partition)
        return None if one is None else one.entry

    def _checked(
        self, entries: Iterable[PartitionReassignment], resumed: Container[PartitionReassignment]
    ) -> list[tuple[PartitionReassignment, TidemarkError]]:
        """The refused entries. An entry that an earlier controller has accepted is not checked as a new entry."""
        new = []
        refused = []
        for entry in entries:
            one = self._under_way.get(entry.partition)
            if one is not None and one.named_in_node:
                if not entry.cancel and one.target != entry.replicas and entry not in resumed:
                    refused.append((entry, _in_progress(one)))
            elif not entry.cancel and not (self.is_at_target(entry) and not named_log_dirs(entry)):
                new.append(entry)
        errors = check_reassignments(new, self._ctx.topics, set(self._ctx.brokers), (), self._ctx.older)
        for entry in new:
            error = errors.get(entry.partition)
            if error is not None and not (entry in resumed and error.code is ErrorCode.BROKER_NOT_AVAILABLE):
                refused.append((entry, error))
        return refused

    def is_at_target(self, entry: PartitionReassignment) -> bool:
        """Whether AR is the target of the entry, in its order."""
        topic = self._ctx.topics.get(entry.partition.topic)
        return topic is not None and topic.partitions.get(entry.partition.partition) == entry.replicas

    def finish(self, entry: PartitionReassignment) -> None:
        """Mark the entry for removal from the node."""
        self._finishing.add(entry)
        self._finished.append(entry)

    def refuse(self, entry: PartitionReassignment, error: TidemarkError) -> None:
        """Mark the entry for removal from the node, and keep the refusal."""
        self.finish(entry)
        self.report(entry, error)

    def report(self, entry: PartitionReassignment, error: TidemarkError) -> None:
        """Keep the refusal of a part of the entry; the entry stays."""
        self._report(Refusal(REASSIGN, entry.partition, error, entry.request_id))

    def _report(self, refusal: Refusal) -> None:
        error = refusal.error
        self._ctx.observe(
            "request_refused", refusal.partition, request=REASSIGN, code=str(error.code), why=error.message
        )
        self._refused.append(refusal)

    def finished(self, entries: Iterable[PartitionReassignment]) -> None:
        """Note that these entries have left the node."""
        self._finishing.difference_update(entries)
        self._malformed.clear()

    def effects(self) -> Iterator[FinishReassignments]:
        """Entries to remove from the node, each one once."""
        if self._finished or self._refused:
            yield FinishReassignments(tuple(self._finished), tuple(self._refused))
            self._finished, self._refused = [], []


def _in_progress(one: Reassignment) -> TidemarkError:
    return TidemarkError(
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        f"{one.partition} is being reassigned from {list(one.original)} to {list(one.target)} already; wait for that "
        "reassignment, or cancel it",
    )
