# SPDX-License-Identifier: Apache-2.0
"""Conditions of every state of a simulated cluster; each is a class with the name of its guarantee.

Committed records are gathered by lineage: an unclean election starts a new lineage, and no guarantee spans two.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from tidemark.model import BrokerId, IsrEntry, Offset, TopicPartition, VersionedState
from tidemark.record.envelope import Batch

from tests.simulation.invariants.moment import Moment, ReplicaNow, is_told_of_another, lineage_of
from tests.simulation.records import Values, agree

if TYPE_CHECKING:
    from tidemark.core.replication.replica_log import ReplicaLog

    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.plan import Recipe
    from tests.simulation.world import World


class InvariantError(AssertionError):
    """An invariant does not hold; the message begins with its name."""

    @property
    def name(self) -> str:
        return str(self).partition(":")[0]


class Read(NamedTuple):
    """The answer to a consumer: the records from `first` on, and the log start. `values`: by offset, from `first` on;
    None if it gets no records. `high_watermark`: -1 without one."""

    first: int
    values: Values
    log_start: int
    high_watermark: int


class Invariant:
    """One property; `check` reads one partition after each step."""

    name = ""

    def is_checked(self, recipe: Recipe) -> bool:
        """Whether `check` applies to worlds of this kind."""
        return type(self).check is not Invariant.check

    def check(self, world: World, moment: Moment) -> None:
        """The check after each event that a process handled."""

    def on_release(self, world: World, process: BrokerNode, partition: TopicPartition) -> None:
        """A process releases an acknowledgement or a read."""

    def on_ack(self, world: World, process: BrokerNode, partition: TopicPartition, offset: int, value: str) -> None:
        """A process acknowledges with acks=all."""

    def on_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        """A consumer gets records."""

    def on_follower_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        """A follower returns records to a consumer; `high_watermark` is the one that the follower received."""

    def on_committed_read(
        self, world: World, partition: TopicPartition, batches: Sequence[Batch], shown: Sequence[Batch]
    ) -> None:
        """A read_committed consumer has fetched batches, and returns some of them to the application."""

    def on_deleted(
        self, world: World, process: BrokerNode, partition: TopicPartition, before_offset: int, behind: Set[BrokerId]
    ) -> None:
        """A process acknowledges that the records below are deleted, and names the replicas that are behind."""

    def at_the_end(self, world: World) -> None:
        """The check at the end of peace."""

    def fails(self, sentence: str) -> NoReturn:
        """Raise with a sentence.

        A sentence is built only for a broken condition, because building it takes longer than the check.
        """
        raise InvariantError(f"{self.name}: {sentence}")

    def require(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise InvariantError(f"{self.name}: {sentence}")


class LeaderInIsr(Invariant):
    name = "LEADER-IN-ISR"

    def __init__(self) -> None:
        self._looked_at: dict[TopicPartition, VersionedState | None] = {}

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is not None and found is not self._looked_at.get(partition):
            self._looked_at[partition] = found
            state = found.state
            if not (state.leader < 0 or state.leader in state.isr_ids):
                self.fails(f"{partition}: {state}")
            ids = [entry.broker_id for entry in (*state.isr, *state.elr)]
            if len(ids) != len(set(ids)):
                self.fails(f"{partition}: named twice: {state}")


class OneLeader(Invariant):
    """One leader per epoch; a deposed leader without a session answers no request (rules F1, F2).

    An unclean election deposes no live leader that has not received it: rule F2 proves that no clean election was
    possible.
    """

    name = "ONE-LEADER"

    def __init__(self) -> None:
        self.leaders: dict[tuple[TopicPartition, int], tuple[BrokerId, int]] = {}
        self._began: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        self._registered: dict[tuple[TopicPartition, int], int] = {}

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for now, leader in moment.leaders:
            process = now.process
            me = (process.broker_id, process.life)
            key = (partition, leader.leader_epoch)
            first = self.leaders.get(key)
            if first is None:
                self.leaders[key] = first = me
                began = (leader.leader_epoch, leader.state.lineage, world.engine.now)
                self._began.setdefault(partition, []).append(began)
            if first != me:
                self.fails(f"{partition} epoch {leader.leader_epoch} led by {first} and {me}")
            if process.broker_epoch >= 0:
                registered = self._registered.setdefault(key, process.broker_epoch)
                if registered != process.broker_epoch:
                    self.fails(
                        f"{partition} epoch {leader.leader_epoch}, begun under broker epoch {registered}, is resumed "
                        f"by broker {process.broker_id} under {process.broker_epoch}"
                    )

    def on_release(self, world: World, process: BrokerNode, partition: TopicPartition) -> None:
        leader = process.leading(partition)
        if leader is None or world.session_is_live(process):
            return
        oldest_ms = world.engine.now - process.store.lease_length_ms()
        for epoch, lineage, began_ms in self._began.get(partition, ()):
            unclean = lineage != leader.state.lineage and process.core.queries.holds_epoch_since(partition, oldest_ms)
            if not (unclean or epoch <= leader.leader_epoch or began_ms >= oldest_ms):
                self.fails(
                    f"{partition}: broker {process.broker_id}, without a session, lets something go in epoch "
                    f"{leader.leader_epoch}; epoch {epoch} began {world.engine.now - began_ms} ms ago"
                )


class ValidHighWatermark(Invariant):
    name = "VALID-HW"

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is None:
            return
        for now in moment.replicas:
            log, leader = now.log, now.leader
            if log is None:
                continue
            high_watermark = log.high_watermark
            if not (high_watermark <= len(now.values) or log.truncating):
                self.fails(f"{partition} at {now.broker_id}: HW past its log end")
            if leader is None or leader.leader_epoch != found.state.leader_epoch:
                continue
            for member, values in moment.trusted:
                if high_watermark > len(values):
                    self.fails(f"{partition}: HW {high_watermark}, member {member.broker_id} ends at {len(values)}")


class CommittedRead(Invariant):
    """The records that a leader serves never change, and are the same at every leader of its lineage."""

    name = "COMMITTED-READ"

    def __init__(self) -> None:
        self.values: dict[tuple[TopicPartition, int], Values] = {}
        """Records by lineage; None only where a lineage began without a record."""

    def of(self, partition: TopicPartition, lineage: int) -> Values:
        return self.values.setdefault((partition, lineage), [])

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for now, leader in moment.leaders:
            committed, values = self.of(partition, leader.state.lineage), now.values
            high_watermark = leader.log.high_watermark
            common = min(high_watermark, len(committed))
            if not agree(values[:common], committed[:common]):
                self.fails(f"{partition}: broker {now.broker_id} serves other records than were committed")
            committed.extend(values[common:high_watermark])

    def on_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        leader = process.leading(partition)
        assert leader is not None, "a serving replica leads"
        self._check_read(world, process, partition, leader.state.lineage, read)

    def on_follower_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        lineage = lineage_of(process, partition)
        assert lineage is not None, "a serving replica has reconciled"
        self._check_read(world, process, partition, lineage, read)
        if read.high_watermark > len(self.of(partition, lineage)):
            self.fails(f"{partition}: broker {process.broker_id} had HW {read.high_watermark}, which no leader had")

    def _check_read(
        self, world: World, process: BrokerNode, partition: TopicPartition, lineage: int, read: Read
    ) -> None:
        end = read.first + len(read.values)
        committed = self.of(partition, lineage)
        # A consumer that continued in an old lineage may request offsets above the new high watermark; such a consumer
        # gets no records.
        if read.values and not (end <= len(committed) and agree(read.values, committed[read.first : end])):
            self.fails(f"{partition}: broker {process.broker_id} shows an uncommitted record")
        missed = [n for n, value in enumerate(read.values, read.first) if value is None]
        if not (world.recipe.compacted or not missed):
            self.fails(f"{partition}: broker {process.broker_id} passes over {missed}")


class _OfCommitted(Invariant):
    """Compares something with the committed records."""

    def __init__(self, committed: CommittedRead) -> None:
        self._committed = committed


class StrongIsr(_OfCommitted):
    """Members hold everything committed, and join under their present broker epoch only (rules Z3, T2)."""

    name = "STRONG-ISR"

    def __init__(self, committed: CommittedRead) -> None:
        super().__init__(committed)
        self._joined: dict[TopicPartition, tuple[int, frozenset[IsrEntry]]] = {}

    def _check_joining(self, world: World, partition: TopicPartition, found: VersionedState) -> None:
        version, before = self._joined.get(partition, (-1, frozenset()))
        if version == found.version:
            return
        for entry in found.state.isr:
            present = world.broker_epoch(entry.broker_id)
            rebuilt = partition in world.hurt_nodes.hurt_once and found.state.leader < 0  # names ended registrations
            if not (rebuilt or entry in before or entry.broker_epoch == present):
                self.fails(
                    f"{partition}: broker {entry.broker_id} joins under epoch {entry.broker_epoch}, it has {present}"
                )
        self._joined[partition] = (found.version, frozenset(found.state.isr))

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is None:
            return
        self._check_joining(world, partition, found)
        committed = self._committed.of(partition, found.state.lineage)
        for member, values in moment.trusted:
            if not (len(values) >= len(committed) and agree(values[: len(committed)], committed)):
                self.fails(
                    f"{partition}: member {member.broker_id} lacks committed records: it ends at {len(values)} of "
                    f"{len(committed)}"
                )


class Flushed(_OfCommitted):
    """If acknowledgements wait for the disk, committed records are on the disk of every member (rule R3)."""

    name = "FLUSHED"

    def is_checked(self, recipe: Recipe) -> bool:
        return recipe.group_commit

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is None:
            return
        committed = len(self._committed.of(partition, found.state.lineage))
        for member in found.state.isr:
            log = world.machines[member.broker_id].logs.get(partition)
            flushed = log.flushed if log is not None else 0
            if flushed < committed:
                self.fails(f"{partition}: {committed} committed, {flushed} on the disk of {member.broker_id}")


class LogMatch(_OfCommitted):
    name = "LOG-MATCH"

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for now, log, lineage in moment.reconciled:
            committed, values = self._committed.of(partition, lineage), now.values
            common = min(log.high_watermark, len(committed))
            if not world.recipe.compacted and None in values[log.log_start_offset :]:
                self.fails(f"{partition}: a hole in the log of {now.broker_id}")
            # Records below the leader's start may be of another lineage, until a leader has the follower remove them.
            first = world.released_front if world.recipe.unclean else 0
            if not agree(values[first:common], committed[first:common]):
                self.fails(
                    f"{partition}: replica {now.broker_id} differs below its high watermark {log.high_watermark}"
                )

    def at_the_end(self, world: World) -> None:
        for partition in world.partitions:
            first, *others = [world.machines[broker].logs[partition] for broker in world.assigned(partition)]
            for other in others:
                alike = first.end == other.end and agree(first.values, other.values)
                if not alike:
                    self.fails(f"{partition}: replicas differ at peace")


class Healed(Invariant):
    """A replica that the leader has added to the ISR is not damaged (rule T5).

    At peace its disk has no mark of damage either.
    """

    name = "HEALED"

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        for member in found.state.isr if found is not None else ():
            process = world.brokers.get(member.broker_id)
            if process is None or process.broker_epoch != member.broker_epoch or member.broker_id == found.state.leader:
                continue  # an eligible replica reports its damage when it is elected
            log = process.replica_log(partition)
            if log is not None and log.damaged is not None:
                self.fails(f"{partition}: broker {member.broker_id} is in sync and damaged")

    def at_the_end(self, world: World) -> None:
        for partition in world.partitions:
            for process in world.brokers.values():
                log, stored = process.replica_log(partition), world.machines[process.broker_id].logs.get(partition)
                known = log is not None and log.damaged is not None
                if known or (stored is not None and stored.is_damaged):
                    self.fails(f"{partition}: broker {process.broker_id} holds everything and counts as damaged")


class HighWatermarkMonotonic(Invariant):
    """Neither a replica's own high watermark, while its log is open, nor a leader's stated one goes back (rule E6).

    The high watermark of a replica that changes to another lineage goes back only to the end of its log.
    """

    name = "HW-MONOTONIC"

    def __init__(self) -> None:
        self._own: dict[tuple[TopicPartition, int, int], tuple[ReplicaLog, int]] = {}
        self._stated: dict[tuple[TopicPartition, int], dict[int, int]] = {}

    def check(self, world: World, moment: Moment) -> None:
        partition = moment.partition
        for now, log, lineage in moment.reconciled:
            key = (partition, now.broker_id, lineage)
            opening, before = self._own.get(key, (log, 0))
            if is_told_of_another(now.replica, lineage):
                before = min(before, log.log_end_offset)
            if not (log.damaged is not None or log is not opening or log.high_watermark >= before):
                self.fails(f"{partition}: HW of {now.broker_id} went back from {before} to {log.high_watermark}")
            self._own[key] = (log, log.high_watermark)
            leader = now.leader
            if leader is not None and leader.may_state_high_watermark:
                self._state(partition, leader.state.lineage, leader.leader_epoch, log.high_watermark)

    def _state(self, partition: TopicPartition, lineage: int, epoch: int, high_watermark: int) -> None:
        stated = self._stated.setdefault((partition, lineage), {})
        before = 0
        for known, one in stated.items():
            if known <= epoch and one > before:
                before = one
        if high_watermark < before:
            self.fails(f"{partition}: {before} was stated, and {high_watermark} in epoch {epoch}")
        stated[epoch] = high_watermark

    def on_read(self, world: World, process: BrokerNode, partition: TopicPartition, read: Read) -> None:
        leader = process.leading(partition)
        if leader is not None and read.high_watermark >= 0:
            self._state(partition, leader.state.lineage, leader.leader_epoch, read.high_watermark)


class EpochsMonotonic(Invariant):
    """Epochs of a node, of a replica, within a log; and the epoch cache agrees with the batches."""

    name = "EPOCHS-MONOTONIC"

    def __init__(self) -> None:
        self._nodes: dict[TopicPartition, tuple[int, int, int]] = {}
        self._found: dict[TopicPartition, VersionedState] = {}
        self._replicas: dict[tuple[TopicPartition, int, int], int] = {}
        self._looked_at: dict[tuple[TopicPartition, int, int], tuple[int, int, object, int]] = {}

    def check(self, world: World, moment: Moment) -> None:
        partition, found = moment.partition, moment.found
        if found is not None and found is not self._found.get(partition):
            self._found[partition] = found
            node = (found.version, found.state.leader_epoch, found.state.lineage)
            before = self._nodes.get(partition, node)
            first = int(partition in world.hurt_nodes.deleted_once)  # a recreated node counts versions again
            if node != before and not all(new >= old for new, old in zip(node[first:], before[first:], strict=True)):
                self.fails(f"{partition}: {found}")
            self._nodes[partition] = node
        for now in moment.replicas:
            key, epoch = (partition, now.broker_id, now.process.life), now.replica.leader_epoch
            if not (epoch >= self._replicas.get(key, -1)):
                self.fails(f"{partition} at {now.broker_id}: leader epoch fell to {epoch}")
            self._replicas[key] = epoch
            self._check_log(world, key, now)

    def _check_log(self, world: World, key: tuple[TopicPartition, int, int], now: ReplicaNow) -> None:
        log, stored = now.log, now.stored
        if log is None or not log.quiet or stored is None:
            return
        partition, broker_id, _ = key
        looked_at = (len(stored.batches), stored.cuts, log.epochs.entries, log.log_start_offset)
        if self._looked_at.get(key) == looked_at:
            return
        begun: dict[int, int] = {}
        let_go = last = -1
        for batch in stored.batches:
            epoch, base = batch.envelope.leader_epoch, batch.envelope.base_offset
            if epoch < last:
                if not (world.recipe.unclean and base <= log.log_start_offset):
                    self.fails(f"{partition} at {broker_id}: epoch {epoch} after {last}")
                let_go = -1  # the log was truncated at its start; records below are of another lineage
            if batch.envelope.next_offset <= log.log_start_offset:
                let_go = epoch
            else:
                begun.setdefault(epoch, max(base, log.log_start_offset))
            last = epoch
        cached = log.epochs.entries
        within = [entry for entry in cached if log.log_start_offset < entry.start_offset < log.log_end_offset]
        wrong = [epoch for epoch, first in begun.items() if log.epochs.epoch_at(Offset(first)) != epoch]
        if wrong or any(begun.get(epoch) != first for epoch, first in within):
            self.fails(f"{partition} at {broker_id}: {cached} for {begun}")
        is_known = bool(cached) and cached[0].leader_epoch >= 0
        if is_known and let_go > cached[0].leader_epoch and not world.recipe.unclean:
            self.fails(f"{partition} at {broker_id}: {cached}, but epoch {let_go} was let go")
        self._looked_at[key] = looked_at


class AckedReadable(_OfCommitted):
    """A record acknowledged with acks=all is committed there, and so in the log of every leader of its lineage."""

    name = "ACKED-READABLE"

    def __init__(self, committed: CommittedRead) -> None:
        super().__init__(committed)
        self._acked: dict[tuple[TopicPartition, int], dict[int, str]] = {}

    def on_ack(self, world: World, process: BrokerNode, partition: TopicPartition, offset: int, value: str) -> None:
        leader = process.leading(partition)
        assert leader is not None, "the replica that acknowledges leads"
        lineage = leader.state.lineage
        committed = self._committed.of(partition, lineage)
        # Records that this event committed are not gathered yet.
        here = world.values(process.broker_id, partition)[: leader.log.high_watermark]
        holds = committed if offset < len(committed) else here
        gone = (None,) if lineage and world.recipe.compacted else ()  # the record of a duplicate may be cleaned
        if not (offset < len(holds) and holds[offset] in (value, *gone)):
            self.fails(
                f"{partition}: broker {process.broker_id} acknowledged {value} at {offset}, which is not committed"
            )
        self._acked.setdefault((partition, lineage), {})[offset] = value

    def at_the_end(self, world: World) -> None:
        for partition in world.partitions:
            found = world.state(partition)
            assert found is not None
            values = world.values(found.state.leader, partition)
            start = world.machines[found.state.leader].logs[partition].start
            for offset, value in self._acked.get((partition, found.state.lineage), {}).items():
                gone = offset < start or world.recipe.compacted
                if not (offset < len(values) and values[offset] in (value, *((None,) if gone else ()))):
                    self.fails(f"{partition}: {value} was acknowledged at {offset}")


class ExactlyOnceAppend(_OfCommitted):
    """In a lineage each batch of an idempotent producer is in the log once, in order, and without a gap before it."""

    name = "EXACTLY-ONCE-APPEND"

    def __init__(self, committed: CommittedRead) -> None:
        super().__init__(committed)
        self._looked: dict[tuple[TopicPartition, int], int] = {}
        self._last: dict[tuple[TopicPartition, int, str], int] = {}

    def check(self, world: World, moment: Moment) -> None:
        for (of, lineage), values in self._committed.values.items():
            looked = self._looked.get((of, lineage), 0)
            if looked == len(values):
                continue
            for value in values[looked:]:
                if value is not None and value.startswith("p"):
                    self._next(of, lineage, value, world.recipe.compacted or world.released_front > 0)
            self._looked[of, lineage] = len(values)

    def _next(self, partition: TopicPartition, lineage: int, value: str, has_gaps: bool) -> None:
        producer, _, rest = value.partition(":")
        sequence = int(rest.partition(".")[0])
        last = self._last.get((partition, lineage, producer), -1)
        if lineage and has_gaps:
            last = max(last, sequence - 1)  # a lineage may begin with a cleaned log
        if sequence != last + 1:
            self.fails(f"{partition}: {value} was committed after batch {last} of {producer}")
        self._last[partition, lineage, producer] = sequence
