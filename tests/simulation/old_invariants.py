"""What must hold in every state of a simulated cluster; each a named class, as the guarantees are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.harness import World


class InvariantError(AssertionError):
    """An invariant does not hold."""


class Invariant:
    """One property; `check` looks at one partition after each step."""

    name = ""

    def check(self, world: World, partition: TopicPartition) -> None:
        raise NotImplementedError

    def require(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise InvariantError(f"{self.name}: {sentence}")


class LeaderInIsr(Invariant):
    name = "LEADER-IN-ISR"

    def check(self, world: World, partition: TopicPartition) -> None:
        state = world.store.nodes[partition].state
        self.require(state.leader < 0 or state.leader in state.isr_ids, f"{partition}: {state}")


class OneLeader(Invariant):
    name = "ONE-LEADER"

    def __init__(self) -> None:
        self.leaders: dict[tuple[TopicPartition, int], tuple[int, int]] = {}

    def check(self, world: World, partition: TopicPartition) -> None:
        for process in world.processes():
            leader = process.leading(partition)
            if leader is not None:
                me = (process.broker_id, process.life)
                first = self.leaders.setdefault((partition, leader.leader_epoch), me)
                self.require(first == me, f"{partition} epoch {leader.leader_epoch} led by {first} and {me}")


class ValidHighWatermark(Invariant):
    name = "VALID-HW"

    def check(self, world: World, partition: TopicPartition) -> None:
        node = world.store.nodes[partition].state
        for process in world.processes():
            log = process.replica_log(partition)
            if log is None:
                continue
            disk = world.disk(process.broker_id, partition)
            self.require(log.high_watermark <= disk.end, f"{partition} at {process.broker_id}: HW past its log end")
            leader = process.leading(partition)
            if leader is not None and leader.leader_epoch == node.leader_epoch:
                for member in node.isr_ids:
                    end = world.disk(member, partition).end
                    self.require(
                        log.high_watermark <= end,
                        f"{partition}: HW {log.high_watermark}, member {member} ends at {end}",
                    )


class StrongIsr(Invariant):
    name = "STRONG-ISR"

    def check(self, world: World, partition: TopicPartition) -> None:
        committed = world.committed[partition]
        for member in world.store.nodes[partition].state.isr_ids:
            disk = world.disk(member, partition)
            self.require(
                disk.values[: len(committed)] == committed,
                f"{partition}: member {member} lacks committed records: it ends at {disk.end} of {len(committed)}",
            )


class CommittedRead(Invariant):
    """What a leader serves never changes and is the same at every leader."""

    name = "COMMITTED-READ"

    def check(self, world: World, partition: TopicPartition) -> None:
        committed = world.committed[partition]
        for process in world.processes():
            leader = process.leading(partition)
            if leader is None:
                continue
            values = world.disk(process.broker_id, partition).values[: leader.log.high_watermark]
            common = min(len(values), len(committed))
            self.require(
                values[:common] == committed[:common], f"{partition}: broker {process.broker_id} serves others"
            )
            committed.extend(values[common:])


class LogMatch(Invariant):
    name = "LOG-MATCH"

    def check(self, world: World, partition: TopicPartition) -> None:
        committed = world.committed[partition]
        for process in world.processes():
            log = process.replica_log(partition)
            if log is None:
                continue
            common = min(log.high_watermark, len(committed))
            values = world.disk(process.broker_id, partition).values
            self.require(values[:common] == committed[:common], f"{partition}: replica {process.broker_id} differs")


class HighWatermarkMonotonic(Invariant):
    """Neither a replica's own nor what leaders state goes back (rule E6)."""

    name = "HW-MONOTONIC"

    def __init__(self) -> None:
        self.own: dict[tuple[TopicPartition, int, int], int] = {}
        self.stated: dict[TopicPartition, dict[int, int]] = {}

    def check(self, world: World, partition: TopicPartition) -> None:
        stated = self.stated.setdefault(partition, {})
        for process in world.processes():
            log = process.replica_log(partition)
            if log is None:
                continue
            key = (partition, process.broker_id, process.life)
            self.require(
                log.high_watermark >= self.own.get(key, 0), f"{partition}: HW of {process.broker_id} went back"
            )
            self.own[key] = log.high_watermark
            leader = process.leading(partition)
            if leader is not None and leader.may_state_high_watermark:
                before = max((hw for epoch, hw in stated.items() if epoch <= leader.leader_epoch), default=0)
                self.require(
                    log.high_watermark >= before, f"{partition}: {before} was stated, now {log.high_watermark}"
                )
                stated[leader.leader_epoch] = log.high_watermark


class EpochsMonotonic(Invariant):
    name = "EPOCHS-MONOTONIC"

    def check(self, world: World, partition: TopicPartition) -> None:
        for process in world.processes():
            log = process.replica_log(partition)
            if log is None or not log.quiet:
                continue
            written = LeaderEpochs()
            last = -1
            for batch in world.disk(process.broker_id, partition).batches:
                epoch = batch.envelope.leader_epoch
                self.require(epoch >= last, f"{partition} at {process.broker_id}: epoch {epoch} after {last}")
                written.assign(epoch, batch.envelope.base_offset)
                last = epoch
            cached = [entry for entry in log.epochs.entries if entry.start_offset < log.log_end_offset]
            self.require(
                cached == list(written.entries), f"{partition} at {process.broker_id}: {cached} for {written.entries}"
            )


class AckedReadable(Invariant):
    """What was acknowledged with acks=all is in the log of every leader that could be elected."""

    name = "ACKED-READABLE"

    def check(self, world: World, partition: TopicPartition) -> None:
        acked = world.acked[partition]
        committed = world.committed[partition]
        for offset, value in acked[world.acked_checked[partition] :]:
            self.require(
                offset < len(committed) and committed[offset] == value, f"{partition}: {value} acknowledged at {offset}"
            )
        world.acked_checked[partition] = len(acked)


def all_invariants() -> list[Invariant]:
    """Fresh ones, for one world; CommittedRead first, since others look at what it gathers."""
    return [
        CommittedRead(),
        LeaderInIsr(),
        OneLeader(),
        ValidHighWatermark(),
        StrongIsr(),
        LogMatch(),
        HighWatermarkMonotonic(),
        EpochsMonotonic(),
        AckedReadable(),
    ]
