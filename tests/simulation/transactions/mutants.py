# SPDX-License-Identifier: Apache-2.0
"""Known defects of transactions, those that KIP-890 corrects among them; an invariant must catch each.

python -m tests.simulation.transactions.mutants [name ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tidemark.core.groups import offsets
from tidemark.core.groups.coordinator import GroupCoordinator, PendingCommit
from tidemark.core.groups.coordinator import Outcome as GroupOutcome
from tidemark.core.groups.state import Turn
from tidemark.core.pending_writes import PendingWrites
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.unstable_transactions import UncommittedEnds
from tidemark.core.transactions import coordinator, refusals
from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.phases import PREPARED, TRANSITIONS, Input, Phase
from tidemark.core.transactions.requests import Marker
from tidemark.core.transactions.state import NO_SEQUENCE, Change, EndReason, TransactionMetadata
from tidemark.core.transactions.transactional_id import TransactionalId
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.storage.log.aborted_index import AbortedIndex
from tidemark.storage.recovery.aborted_replay import aborted_row

from tests.simulation.coordination.lives import Life
from tests.simulation.same_order import in_the_same_order
from tests.simulation.transactions import replica_state
from tests.simulation.transactions.brokers import BrokerNode
from tests.simulation.transactions.lives import live

WORLDS_MAX = 250


def keeps_the_epoch_at_an_end(monkeypatch: Any) -> None:
    """The end of a transaction returns no new epoch, and its markers do not raise the epoch either: a late write joins
    the next transaction (KIP-890).
    """
    end, mark = TransactionCoordinator.end, ProducerStates._end

    def end_in_the_same_epoch(self: TransactionCoordinator, *arguments: Any) -> Any:
        with monkeypatch.context() as for_this_call:
            for_this_call.setattr(
                TransactionCoordinator, "_next_identity", lambda _, known, __: known.metadata.producer
            )
            return end(self, *arguments)

    def mark_in_the_same_epoch(self: ProducerStates, envelope: Any, entry: Any, marker: Any) -> Any:
        found = mark(self, envelope, entry, marker)
        marked = self._entries[envelope.producer_id]
        self._entries[envelope.producer_id] = marked._replace(producer_epoch=marked.producer_epoch - 1)
        return found

    monkeypatch.setattr(TransactionCoordinator, "end", end_in_the_same_epoch)
    monkeypatch.setattr(ProducerStates, "_end", mark_in_the_same_epoch)


def appends_without_asking_the_coordinator(monkeypatch: Any) -> None:
    """A leader appends the first write of a transaction without the coordinator: such a transaction may never end
    (KIP-890)."""

    def ask_later(self: BrokerNode, addition: Any, then: Callable[[], None], reply: Any) -> None:
        then()
        verify(self, addition, lambda: None, lambda _: None)

    verify = BrokerNode.verify
    monkeypatch.setattr(BrokerNode, "verify", ask_later)


def takes_writes_of_any_epoch(monkeypatch: Any) -> None:
    """The coordinator adds partitions for producers that are fenced."""
    monkeypatch.setattr(coordinator, "_check_writer", lambda *_: None)


def takes_late_markers(monkeypatch: Any) -> None:
    """A repeated marker ends the producer's next transaction, which has the epoch of the marker."""
    check = ProducerStates.check_marker

    def check_old(self: ProducerStates, envelope: Any, marker: Any) -> bool:
        check(self, envelope, marker)
        return True

    monkeypatch.setattr(ProducerStates, "check_marker", check_old)
    _end_any_transaction(monkeypatch)


def takes_markers_of_old_coordinators(monkeypatch: Any) -> None:
    """A leader accepts old markers: it checks neither the coordinator's epoch nor the producer's."""
    monkeypatch.setattr(ProducerStates, "check_marker", lambda *_: True)
    _end_any_transaction(monkeypatch)


def _end_any_transaction(monkeypatch: Any) -> None:
    """A marker ends the open transaction of its producer, which may have the epoch of the marker."""
    end = ProducerStates._end

    def end_any(self: ProducerStates, envelope: Any, entry: Any, marker: Any) -> Any:
        before = entry._replace(producer_epoch=-1) if entry is not None else None
        return end(self, envelope, before, marker)

    monkeypatch.setattr(ProducerStates, "_end", end_any)


def sends_markers_before_the_decision_is_committed(monkeypatch: Any) -> None:
    """Markers are sent before the decision is committed."""
    committed = TransactionCoordinator.committed
    changed = TransactionCoordinator._changed

    def decide(self: TransactionCoordinator, known: TransactionalId, changes: tuple[Change, ...]) -> Any:
        found = changed(self, known, changes)
        committed(self, changes)
        return found

    monkeypatch.setattr(TransactionCoordinator, "_changed", decide)


def decides_again_after_a_failover(monkeypatch: Any) -> None:
    """A new coordinator treats a decided transaction as open."""
    replay = TransactionCoordinator.replay.__func__  # type: ignore[attr-defined]

    def forget_decisions(cls: Any, changes: Iterable[Change], *arguments: Any) -> Any:
        return replay(cls, [_undecided(change) for change in changes], *arguments)

    monkeypatch.setattr(TransactionCoordinator, "replay", classmethod(forget_decisions))


def _undecided(change: Change) -> Change:
    value = change.value
    if isinstance(value, TransactionMetadata) and value.phase in PREPARED:
        return change._replace(value=replace(value, phase=Phase.ONGOING, committed=()))
    return change


def times_out_without_fencing(monkeypatch: Any) -> None:
    """The producer of a transaction that timed out continues in its epoch."""
    abort = TransactionCoordinator._abort

    def keep_epoch(
        self: TransactionCoordinator, known: TransactionalId, reason: EndReason, *rest: Any, **also: Any
    ) -> Any:
        with monkeypatch.context() as for_this_call:
            if reason is EndReason.TIMEOUT:
                for_this_call.setattr(coordinator, "_raised", lambda producer: producer)
            return abort(self, known, reason, *rest, **also)

    monkeypatch.setattr(TransactionCoordinator, "_abort", keep_epoch)


def commits_a_batch_twice(monkeypatch: Any) -> None:
    """A repeated CommitMembers is not recognized."""
    commit = TransactionCoordinator.commit_members
    monkeypatch.setattr(
        TransactionCoordinator,
        "commit_members",
        lambda self, asked, now: commit(self, replace(asked, sequence=NO_SEQUENCE), now),
    )


def commits_every_member(monkeypatch: Any) -> None:
    """CommitMembers commits members that the driver has not named."""
    decide = TransactionalId.decide

    def commit_all(self: TransactionalId, decided: Any, decision: Input, committed: Collection[int], now: Any) -> Any:
        if decision is Input.COMMIT and self.open is not None:
            committed = tuple(self.open.writers)
        return decide(self, decided, decision, committed, now)

    monkeypatch.setattr(TransactionalId, "decide", commit_all)


def takes_drivers_of_any_generation(monkeypatch: Any) -> None:
    """An earlier driver still commits."""
    monkeypatch.setattr(refusals, "check_generation", lambda *_: None)


def does_not_wait_in_init(monkeypatch: Any) -> None:
    """A producer starts while the markers of its last transaction are in flight."""
    for phase in PREPARED:
        monkeypatch.setitem(TRANSITIONS, (phase, Input.INIT), Phase.EMPTY)


def gives_an_identity_over_an_open_transaction(monkeypatch: Any) -> None:
    """A producer starts, and the transaction that its predecessor left open stays open."""
    monkeypatch.setitem(TRANSITIONS, (Phase.ONGOING, Input.INIT), Phase.EMPTY)


def expires_open_ids(monkeypatch: Any) -> None:
    """An id expires with its open transaction."""
    monkeypatch.setattr(coordinator, "CLOSED", tuple(Phase))


def completes_with_the_first_marker(monkeypatch: Any) -> None:
    """A transaction is complete when one of its partitions has its marker."""

    def marked(self: TransactionalId, producer: Any, partitions: Any, now: Any) -> tuple[Change, ...]:
        if self.open is None or self.metadata.phase not in PREPARED:
            return ()
        return self._complete(self.metadata, now)

    monkeypatch.setattr(TransactionalId, "marked", marked)


def sends_markers_to_the_own_producer_only(monkeypatch: Any) -> None:
    """Members that are aborted get no marker."""
    markers = TransactionCoordinator.markers

    def of_committed(self: TransactionCoordinator, name: str) -> Iterator[Marker]:
        metadata = self.describe(name).metadata
        for marker in markers(self, name):
            if marker.commit or not metadata.committed:
                yield marker

    monkeypatch.setattr(TransactionCoordinator, "markers", of_committed)


def shows_rows_up_to_the_high_watermark(monkeypatch: Any) -> None:
    """The last stable offset equals the high watermark."""
    monkeypatch.setattr(UncommittedEnds, "stable_offset", lambda self, high_watermark, producers: high_watermark)


def ends_transactions_with_uncommitted_markers(monkeypatch: Any) -> None:
    """The last stable offset passes a transaction whose marker is above the high watermark."""
    monkeypatch.setattr(UncommittedEnds, "add", lambda *_: None)


def opens_a_log_as_if_all_were_committed(monkeypatch: Any) -> None:
    """The last stable offset after a start passes a transaction whose marker is above the high watermark."""
    make = UncommittedEnds.__init__
    monkeypatch.setattr(UncommittedEnds, "__init__", lambda self, known_from: make(self, Offset(0)))


def names_aborts_that_begin_in_the_answer(monkeypatch: Any) -> None:
    """An answer omits an aborted transaction that began before its first offset."""
    overlapping = AbortedIndex.overlapping
    monkeypatch.setattr(
        AbortedIndex,
        "overlapping",
        lambda self, start, end: tuple(one for one in overlapping(self, start, end) if one.first_offset >= start),
    )


def names_aborts_up_to_the_first_that_ends_later(monkeypatch: Any) -> None:
    """A row of the index does not count the transactions that were open after its marker."""
    monkeypatch.setattr(replica_state, "aborted_row", lambda ended, states: aborted_row(ended, ProducerStates()))


def appends_repeated_writes(monkeypatch: Any) -> None:
    """A leader does not recognize a write that arrives twice."""
    check = ProducerStates.check

    def forget(self: ProducerStates, envelope: Any) -> None:
        try:
            check(self, envelope)
        except TidemarkError as error:
            if error.code not in (ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.DUPLICATE_SEQUENCE):
                raise

    monkeypatch.setattr(ProducerStates, "check", forget)


def reads_the_first_page_only(monkeypatch: Any) -> None:
    """A new coordinator forgets the partitions that the other records of a transaction name."""
    replay = TransactionalId.replay
    monkeypatch.setattr(TransactionalId, "replay", lambda self, _, now_ms: replay(self, {}, now_ms))


def shows_offsets_before_the_marker(monkeypatch: Any) -> None:
    """The offsets of an open transaction count as committed."""

    def commit_at_once(self: GroupCoordinator, asked: Any, producer: Any, now: Any) -> Any:
        done = self.commit(asked, now)
        return GroupOutcome(PendingCommit(producer, {}, done.answer), done.changes)

    monkeypatch.setattr(GroupCoordinator, "commit_in_transaction", commit_at_once)


def takes_offsets_of_any_generation(monkeypatch: Any) -> None:
    """A member that was evicted commits offsets in its transaction."""
    monkeypatch.setattr(offsets, "check_committer", lambda *_: None)
    monkeypatch.setattr(offsets, "_refusal", lambda *_: None)


def applies_offsets_of_aborted_transactions(monkeypatch: Any) -> None:
    """An abort marker commits offsets."""
    end = PendingWrites.end
    monkeypatch.setattr(
        PendingWrites, "end", lambda self, producer_id, epoch, *, commit: end(self, producer_id, epoch, commit=True)
    )


def applies_offsets_of_aborted_transactions_in_memory(monkeypatch: Any) -> None:
    """An abort marker commits offsets, until the next coordinator replays the log."""
    end = GroupCoordinator.end_transaction
    monkeypatch.setattr(
        GroupCoordinator,
        "end_transaction",
        lambda self, producer_id, epoch, *, commit: end(self, producer_id, epoch, commit=True),
    )


def forgets_pending_offsets_in_a_failover(monkeypatch: Any) -> None:
    """A new coordinator drops the pending offsets of open transactions."""
    replay = GroupCoordinator.replay.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        GroupCoordinator, "replay", classmethod(lambda cls, changes, now_ms, _: replay(cls, changes, now_ms))
    )


def reads_offsets_that_a_transaction_may_change(monkeypatch: Any) -> None:
    """The next owner of a partition does not wait for the end of a transaction (KIP-447)."""
    monkeypatch.setattr(GroupCoordinator, "check_stable", lambda *_: None)


def applies_late_offsets_of_a_transaction(monkeypatch: Any) -> None:
    """A commit that arrives late replaces a later commit of the same transaction."""
    monkeypatch.setattr(Turn, "precedes", lambda *_: False)


class TransactionMutant(NamedTuple):
    """A defect, the rule that it breaks, the invariant that must catch it, and the first seed that shows it.

    `transforms`: in worlds with offsets in transactions.
    """

    patch: Callable[[Any], None]
    rule: str
    caught_by: str
    shown_by: int = 0
    transforms: bool = False

    @property
    def name(self) -> str:
        return self.patch.__name__


TRANSACTION_MUTANTS = (
    TransactionMutant(keeps_the_epoch_at_an_end, "X12", "FENCED"),
    TransactionMutant(appends_without_asking_the_coordinator, "X11", "STABLE"),
    TransactionMutant(takes_writes_of_any_epoch, "X11", "STABLE"),
    TransactionMutant(takes_late_markers, "X2", "READ-COMMITTED", shown_by=35),
    TransactionMutant(takes_markers_of_old_coordinators, "X2, X14", "FENCED"),
    TransactionMutant(sends_markers_before_the_decision_is_committed, "X12", "READ-COMMITTED"),
    TransactionMutant(decides_again_after_a_failover, "X14", "ATOMIC"),
    TransactionMutant(times_out_without_fencing, "X13", "ATOMIC"),
    TransactionMutant(commits_a_batch_twice, "X16", "ATOMIC"),
    TransactionMutant(commits_every_member, "X16", "READ-COMMITTED"),
    TransactionMutant(takes_drivers_of_any_generation, "X16", "FENCED"),
    TransactionMutant(does_not_wait_in_init, "X10", "STABLE"),
    TransactionMutant(gives_an_identity_over_an_open_transaction, "X10", "STABLE"),
    TransactionMutant(expires_open_ids, "X13", "STABLE", shown_by=2),
    TransactionMutant(completes_with_the_first_marker, "X12", "STABLE"),
    TransactionMutant(sends_markers_to_the_own_producer_only, "X16", "STABLE", shown_by=4),
    TransactionMutant(shows_rows_up_to_the_high_watermark, "X3", "READ-COMMITTED"),
    TransactionMutant(ends_transactions_with_uncommitted_markers, "X3", "READ-COMMITTED"),
    TransactionMutant(appends_repeated_writes, "P2", "ORDER"),
    TransactionMutant(reads_the_first_page_only, "X14", "STABLE", shown_by=1),
    TransactionMutant(names_aborts_that_begin_in_the_answer, "X4", "READ-COMMITTED"),
    TransactionMutant(opens_a_log_as_if_all_were_committed, "X3", "READ-COMMITTED", shown_by=22),
    TransactionMutant(names_aborts_up_to_the_first_that_ends_later, "X5", "READ-COMMITTED"),
    *(
        TransactionMutant(patch, "X17", "OFFSETS-WITH-DATA", shown_by, transforms=True)
        for patch, shown_by in (
            (shows_offsets_before_the_marker, 0),
            (takes_offsets_of_any_generation, 4),
            (applies_offsets_of_aborted_transactions, 0),
            (applies_offsets_of_aborted_transactions_in_memory, 0),
            (forgets_pending_offsets_in_a_failover, 5),
            (reads_offsets_that_a_transaction_may_change, 25),
            (applies_late_offsets_of_a_transaction, 23),
        )
    ),
)


class Caught(NamedTuple):
    """The first world that shows a mutant, and the number of worlds that it took."""

    life: Life
    worlds: int


def catch(mutant: TransactionMutant, *, recorded: bool = True) -> Caught | None:
    """Live worlds with the mutant until an invariant fails, the recorded world first."""
    seeds = (mutant.shown_by, *range(WORLDS_MAX)) if recorded else range(WORLDS_MAX)
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant.patch(monkeypatch)
        for worlds, seed in enumerate(seeds, 1):
            life = live(seed, transforms=mutant.transforms)
            if life.broken is not None:
                return Caught(life, worlds)
    return None


def main() -> int:
    """The table, in markdown; 1 if a mutant was not caught."""
    missed = 0
    sys.stdout.write("| mutant | breaks | caught by | in world |\n| --- | --- | --- | --- |\n")
    for mutant in TRANSACTION_MUTANTS:
        if len(sys.argv) > 1 and mutant.name not in sys.argv[1:]:
            continue
        caught = catch(mutant, recorded=False)
        missed += caught is None
        found = (
            f"{caught.life.broken[0]} | {caught.worlds}" if caught and caught.life.broken else f"nothing | {WORLDS_MAX}"
        )
        sys.stdout.write(f"| `{mutant.name}` | {mutant.rule} | {found} |\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    in_the_same_order("tests.simulation.transactions.mutants")
    sys.exit(main())
