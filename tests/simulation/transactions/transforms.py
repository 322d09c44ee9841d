# SPDX-License-Identifier: Apache-2.0
"""Simulated programs that read, transform and write: their offsets commit with their rows (rule X17).

Each program is a member of one group, with a transactional id. A program keeps to docs/groups.md as the client does,
with one exception: a program whose session timed out by its own clock continues to read. The coordinators alone must
fence such a program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, check_committer
from tidemark.core.groups.state import JOINING, Committed, GroupPartition, Turn
from tidemark.core.transactions.requests import Initialized
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.simulation.coordination.coordinator import Reply
from tests.simulation.transactions.brokers import CALL_MS
from tests.simulation.transactions.clients import FATAL, ClientNode, Sender
from tests.simulation.transactions.offsets_leader import INPUT, INPUT_ID, OffsetsLeader
from tests.simulation.transactions.partition_log import Source, Tag

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

GROUP = "transformers"
_BEAT_MS = 100
_REBALANCE_MS = 1500
_RETRY_MS = 20
_IDLE_MS = 30
_SILENT_MS = 1200
_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH})
_REFUSED = FATAL | _LOST | {ErrorCode.PARTITION_NOT_ASSIGNED, ErrorCode.TRANSACTION_ABORTABLE}
"""Errors after which a transaction can only be aborted."""

GroupCall = Callable[[OffsetsLeader, Reply], None]


class Member:
    """The membership of one process.

    Attributes:
        epoch: the member epoch.
        wanted: input partitions that it may read; None before the first answer.
        owned: those that it reads, as its heartbeats report them.
        joins: raised when it has lost its partitions and joins again.
        silent_until_ms: the member sends no heartbeat before this time, and is evicted.
    """

    def __init__(self, client: TransformNode) -> None:
        self.epoch = JOINING
        self.wanted: frozenset[int] | None = None
        self.owned: frozenset[int] = frozenset()
        self.joins = 0
        self.silent_until_ms = 0
        self._client = client
        self._sequence = 0
        self._beat = 0

    def start(self) -> None:
        """A heartbeat; one is in flight at a time."""
        if self._client.engine.now < self.silent_until_ms:
            self._client.after(_BEAT_MS, self.start)
            return
        self._beat += 1
        number = self._beat
        owned = frozenset(GroupPartition(INPUT, INPUT_ID, one) for one in self.owned)
        beat = Heartbeat(
            GROUP,
            self._client.name,
            self.epoch,
            rebalance_timeout_ms=_REBALANCE_MS,
            topics=(INPUT,),
            owned=owned,
            sequence=self.next_sequence(),
        )

        def call(leader: OffsetsLeader, reply: Reply) -> None:
            leader.change(lambda core, now: core.heartbeat(beat, now), reply)

        self._client.world.ask_group(self._client, call, lambda answer: self._answered(number, answer))
        self._client.after(CALL_MS, lambda: self._answered(number, None))

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def lose(self) -> None:
        """Stop reading and join again: the partitions may belong to other members."""
        self.epoch, self.wanted, self.owned = JOINING, None, frozenset()
        self.joins += 1

    def _answered(self, number: int, answer: Any) -> None:
        if number != self._beat:
            return
        self._beat += 1
        if isinstance(answer, HeartbeatAnswer):
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.wanted = frozenset(one.partition for one in answer.assignment)
        elif isinstance(answer, TidemarkError) and answer.code in _LOST:
            self.lose()
        self._client.after(_BEAT_MS, self.start)


class TransformNode(ClientNode):
    """One transaction after the other: input records, a row for each, and the offsets of the input."""

    def __init__(self, world: TransactionWorld, transactional_id: str, name: str) -> None:
        super().__init__(world, transactional_id, name)
        self._member = Member(self)
        self._positions: dict[int, int] = {}
        self._joins = 0
        self._serial = 0

    def start(self) -> None:
        self._member.start()
        self.init(None, self._initialized)

    def _initialized(self, answer: Any) -> None:
        if isinstance(answer, Initialized):
            self.world.invariants.starts(self.name, answer.generation)
            self._continue(answer.producer)
        else:
            self.world.fenced += 1
            self.die()

    # -- positions -----------------------------------------------------------------------------------------------

    def _continue(self, producer: ProducerIdentity) -> None:
        """Between two transactions: give revoked partitions back, take new ones, and begin."""
        member = self._member
        if self._joins != member.joins:
            self._joins = member.joins
            self._positions.clear()
        wanted = member.wanted or frozenset()
        for partition in self._positions.keys() - wanted:
            del self._positions[partition]
        member.owned = frozenset(self._positions)
        added = wanted - self._positions.keys()
        if added:
            self._take_up(added, producer)
        elif self._positions:
            self._begin(producer)
        else:
            self.after(_IDLE_MS, lambda: self._continue(producer))

    def _take_up(self, added: frozenset[int], producer: ProducerIdentity) -> None:
        """Read from the committed offsets; while a transaction may change them, the coordinator refuses the request."""
        epoch, joins, partitions = (
            self._member.epoch,
            self._joins,
            [TopicPartition(INPUT, one) for one in sorted(added)],
        )

        def look(core: GroupCoordinator, now: Situation) -> Outcome[dict[int, int]]:
            group = core.find(GROUP) or Group(GROUP)
            core.check_stable(GROUP, partitions)
            check_committer(group, self.name, epoch, "")
            known = {one.partition: group.offsets[one].offset for one in partitions if one in group.offsets}
            found = {one: known.get(one, 0) for one in sorted(added)}
            self.world.invariants.fetches(found)
            return Outcome(found, ())

        def found(answer: Any) -> None:
            if isinstance(answer, TidemarkError):
                self.after(_RETRY_MS, lambda: self._continue(producer))
                return
            if joins == self._member.joins:
                self._positions.update(answer)
            self._continue(producer)

        self._call(lambda leader, reply: leader.change(look, reply), found)

    def _call(self, call: GroupCall, then: Reply) -> None:
        """One attempt of a request to the group coordinator."""
        answered = False

        def arrived(answer: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                then(answer)

        self.world.ask_group(self, call, arrived)
        self.after(CALL_MS, lambda: arrived(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer")))

    # -- transactions --------------------------------------------------------------------------------------------

    def _begin(self, producer: ProducerIdentity) -> None:
        self._serial += 1
        tag = Tag(self.transactional_id, self.name, self._serial)
        _Transaction(self, tag, producer, self._positions, self._joins).start()

    def falls_silent(self) -> None:
        """Disconnect the member: other members get its partitions, and this member is not notified."""
        self._member.silent_until_ms = self.engine.now + _SILENT_MS

    def written(self, tag: Tag, producer: ProducerIdentity, ends: dict[int, int], error: TidemarkError | None) -> None:
        """All rows are acknowledged and all offsets accepted, or `error` ends the transaction."""
        if error is not None and error.code in FATAL:
            self.world.invariants.ends(tag, commit=False)
            self._positions.clear()
            self.init(producer, self._initialized)
            return
        commit = error is None and self.dice.random() < 0.8
        self.world.invariants.ends(tag, commit=commit)
        pause_ms = self.dice.choice((0, 0, 0, 0, 20, 400))

        def ended(answer: Any) -> None:
            if not isinstance(answer, ProducerIdentity):
                self._positions.clear()
                self.init(producer, self._initialized)
                return
            self.world.invariants.answered(tag, commit=commit)
            self.world.transactions += commit
            if commit:
                self._positions.update(ends)
            else:
                self._positions.clear()
            self._continue(answer)

        self.after(pause_ms, lambda: self.end(producer, commit, ended))

    def commit_offsets(
        self, ends: dict[int, int], producer: ProducerIdentity, joins: int, then: Callable[[TidemarkError | None], None]
    ) -> None:
        """Commit offsets in the transaction, with retries; a retry keeps the number of its request."""
        member, wall_ms = self._member, self.world.situation().wall_ms
        turn, epoch = Turn(self.name, member.next_sequence()), member.epoch
        offsets = {
            TopicPartition(INPUT, one): Committed(end, -1, "", INPUT_ID, "", wall_ms) for one, end in ends.items()
        }

        def attempt() -> None:
            if joins != member.joins:
                then(TidemarkError(ErrorCode.FENCED_MEMBER_EPOCH, "the member has joined again"))
                return
            commit = Commit(GROUP, self.name, epoch, "", offsets, turn)
            self._call(
                lambda leader, reply: leader.commit_in_transaction(commit, self.transactional_id, producer, reply),
                answered,
            )

        def answered(answer: Any) -> None:
            if not isinstance(answer, TidemarkError):
                then(next(iter(answer.values()), None))
            elif answer.code in _REFUSED:
                then(answer)
            elif answer.code is ErrorCode.STALE_MEMBER_EPOCH:
                self.after(_BEAT_MS, lambda: self.commit_offsets(ends, producer, joins, then))
            else:
                self.after(_RETRY_MS, attempt)

        attempt()


class _Transaction:
    """The writes of one transaction: rows, and offsets in one step or in two."""

    def __init__(
        self, client: TransformNode, tag: Tag, producer: ProducerIdentity, positions: dict[int, int], joins: int
    ) -> None:
        self._client = client
        self._tag = tag
        self._producer = producer
        self._joins = joins
        dice = client.dice
        chosen = dice.sample(sorted(positions), dice.randrange(1, len(positions) + 1))
        self._starts = {one: positions[one] for one in chosen}
        self._ends = {one: start + dice.randrange(1, 4) for one, start in self._starts.items()}
        self._waiting = 2
        self._sender = Sender(client, tag, producer, self._rows_written)

    def start(self) -> None:
        """Write the rows and the offsets, in any order."""
        dice = self._client.dice
        rows: defaultdict[TransactionPartition, list[Source]] = defaultdict(list)
        for partition, start in self._starts.items():
            for offset in range(start, self._ends[partition]):
                rows[dice.choice(self._client.world.partitions).key].append((partition, offset))
        self._client.world.invariants.transforms(self._tag, self._starts, self._ends)
        if dice.random() < 0.1:
            impatient = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the client gives up")
            self._client.after(dice.choice((5, 60, 200)), lambda: self._sender.stop(impatient))
        self._sender.start({key: len(some) for key, some in rows.items()}, rows)
        think_ms = dice.choice((0, 0, 30, 300))
        if dice.random() < 0.05:
            self._client.falls_silent()
            think_ms = _SILENT_MS - 100
        self._client.after(think_ms, self._commit_offsets)

    def _commit_offsets(self) -> None:
        if not self._waiting:
            return
        halves = {one: (start + self._ends[one]) // 2 for one, start in self._starts.items()}
        if self._client.dice.random() < 0.4:
            self._commit(halves, self._commit_all)
        else:
            self._commit_all(None)

    def _commit_all(self, error: TidemarkError | None) -> None:
        if error is not None:
            self._offsets_committed(error)
        elif self._waiting:
            self._commit(self._ends, self._offsets_committed)

    def _commit(self, ends: dict[int, int], then: Callable[[TidemarkError | None], None]) -> None:
        self._client.commit_offsets(ends, self._producer, self._joins, then)

    def _rows_written(self, error: TidemarkError | None) -> None:
        self._done(error)

    def _offsets_committed(self, error: TidemarkError | None) -> None:
        if error is not None:
            self._sender.stop(error)
        self._done(error)

    def _done(self, error: TidemarkError | None) -> None:
        """Finish once both parts succeeded, or with the first error."""
        if not self._waiting:
            return
        self._waiting = 0 if error is not None else self._waiting - 1
        if not self._waiting:
            self._client.written(self._tag, self._producer, self._ends, error)
