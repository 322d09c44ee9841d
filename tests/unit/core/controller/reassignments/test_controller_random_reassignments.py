# SPDX-License-Identifier: Apache-2.0
"""Random worlds with reassignments, changes of partition counts and settings, and failures of processes."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.reassignment.request import named_log_dirs
from tidemark.model import NO_LEADER, BrokerId, Offset, PartitionReassignment, TopicDescription, TopicPartition

from tests.unit.core.controller.test_controller_random import BROKERS, RandomWorld, live
from tests.unit.core.controller.worlds.controller_world import EMPTY


class MovingWorld(RandomWorld):
    """Every change of replicas and partitions that the controller makes is requested besides, at any time."""

    def __init__(self, seed: int) -> None:
        self.lists: dict[tuple[str, str], set[tuple[BrokerId, ...]]] = {}
        self.sent_log_dirs: set[tuple[BrokerId, TopicPartition, str]] = set()
        self._lists_checked: dict[str, TopicDescription] = {}
        super().__init__(seed)
        self.asked_seen(resumed=True)

    def step(self) -> None:
        happenings = (
            (self._operator_reassigns, 4),
            (self._operator_cancels, 1),
            (self._operator_edits, 1),
            (self._operator_adds, 2),
            (self._operator_removes, 2),
            (self._settings_change, 1),
            (self._broker_shuts_down, 1),
            (self._leaders_catch_up, 4),
            (self._requests_are_read, 3),
            (self._controller_dies, 1),
        )
        for _ in range(2):
            self._answer_something()
        if self.random.random() < 0.5:
            self.one_of(happenings)
        super().step()

    # -- requests of operators -----------------------------------------------------------------------------------

    def _some_partition(self) -> TopicPartition | None:
        named = [TopicPartition(topic.topic, index) for topic in self.topics.values() for index in topic.partitions]
        return self.random.choice(sorted(named)) if named else None

    def _some_brokers(self) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(one) for one in self.random.sample(BROKERS, self.random.randint(1, 3)))

    def _operator_reassigns(self) -> None:
        partition = self._some_partition()
        if partition is None or (partition in self.asked.moves and self.random.random() < 0.9):
            return  # the store refuses a second reassignment; only a manual edit of the znode can add it
        throttle, brokers = self.random.choice((0, 1000)), self._some_brokers()
        log_dirs: tuple[str, ...] = ()
        if self.random.random() < 0.5:
            log_dirs = tuple(self.random.choice(("any", "/a", "/b")) for _ in brokers)
            if self.random.random() < 0.3:  # the replicas stay
                brokers = self.topics[partition.topic].partitions[partition.partition]
                log_dirs = tuple(self.random.choice(("any", "/a", "/b")) for _ in brokers)
        self.asked.moves[partition] = PartitionReassignment(partition, brokers, log_dirs, throttle)

    def _operator_cancels(self) -> None:
        if self.asked.moves:
            self.cancel(self.random.choice(sorted(self.asked.moves)))

    def _operator_edits(self) -> None:
        """The node, for manual changes."""
        if self.asked.moves and self.random.random() < 0.3:
            del self.asked.moves[self.random.choice(sorted(self.asked.moves))]

    def _operator_adds(self) -> None:
        partition = self._some_partition()
        if partition is not None:
            index = len(self.topics[partition.topic].partitions) + self.random.choice((0, 0, 0, 1))
            self.asked.added.setdefault(TopicPartition(partition.topic, index), self._some_brokers())

    def _operator_removes(self) -> None:
        partition = self._some_partition()
        if partition is None:
            return
        highest = TopicPartition(partition.topic, len(self.topics[partition.topic].partitions) - 1)
        self.asked.removed.setdefault(highest, self.random.random() < 0.3)
        if self.random.random() < 0.3:
            held = EMPTY._replace(log_end_offset=Offset(self.random.choice((0, 5))))
            self.logs.update({(broker, highest): held for broker in BROKERS})

    def _settings_change(self) -> None:
        if self.topics:
            self.configure(self.random.choice(sorted(self.topics)), m=str(self.random.randint(1, 3)))

    def _broker_shuts_down(self) -> None:
        if self.brokers:
            broker = self.random.choice(sorted(self.brokers))
            self.happens(ev.ControlledShutdownRequested(broker, self.epochs[broker].broker_epoch))

    def _requests_are_read(self) -> None:
        self.asked_seen()

    def _leaders_catch_up(self) -> None:
        self.catch_up()

    def _controller_dies(self) -> None:
        """Some effects of the dead controller are still carried out, before another one is elected."""
        for effect in list(self.pending):
            if isinstance(effect, fx.WriteStates | fx.WriteTopic | fx.DeletePartitions) and self.random.random() < 0.5:
                self.pending.remove(effect)
                self._carry_out(effect)
        self.fails_over()

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, fx.WriteStates):
            self._write(effect, lost=True)
        elif isinstance(effect, fx.WriteTopic):
            self._write_topic(effect, lost=False)
        elif effect.topic.topic in self.topics:
            self._delete_partitions(effect, lost=True)

    def _leader_changes_isr(self) -> None:
        """A leader changes its ISR by the replicas of its last command, in the epoch of that command."""
        led = [
            one
            for one, (state, _) in self.states.items()
            if (knows := self.brokers.get(state.leader)) is not None
            and one in knows.commands
            and knows.commands[one].state.leader_epoch == state.leader_epoch
            and all(self.epochs[entry.broker_id].broker_epoch == entry.broker_epoch for entry in state.isr)
        ]
        if not led:
            return
        partition = self.random.choice(sorted(led))
        state = self.states[partition].state
        told = self.brokers[state.leader].commands[partition]
        others = [
            one
            for one in {*told.assigned_replicas, *state.isr_ids} - {state.leader}
            if one in self.brokers and self.random.random() < 0.7 and (one in state.isr_ids or self._follows(one, told))
        ]
        self.leader_writes(partition, state.leader, *sorted(others))
        if self.random.random() < 0.9:  # else the hint is lost
            self.happens(ev.IsrChangesReported((partition,)))

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        for move in self.asked.moves.values():
            topic = self.topics.get(move.partition.topic)
            if topic is not None and move.partition.partition in topic.partitions:
                self._known_lists(topic, move.partition.partition).add(move.replicas)
        for topic in self.topics.values():
            if self._lists_checked.get(topic.topic) is topic:
                continue  # the topic is immutable, and its lists were noted before
            self._lists_checked[topic.topic] = topic
            assert sorted(topic.partitions) == list(range(len(topic.partitions)))
            assert topic.partitions.keys() == topic.incarnations.keys()
            assert set(topic.original) == set(topic.adding) == set(topic.removing) <= set(topic.partitions)
            for index in topic.partitions:
                self._check_lists(topic, index)

    def _check_lists(self, topic: TopicDescription, index: int) -> None:
        """The replicas are the old ones or the new ones, or both during a reassignment; never a mixture."""
        assigned, removing = topic.partitions[index], topic.removing.get(index, ())
        assert len(set(assigned)) == len(assigned) > 0
        known = self._known_lists(topic, index)
        if index in topic.original:
            target = tuple(one for one in assigned if one not in removing)
            assert topic.original[index] in known
            assert target in known
            assert set(assigned) >= {*target, *topic.original[index]}
        else:
            assert assigned in known, f"{topic.topic}-{index} ends as {assigned}"

    def _known_lists(self, topic: TopicDescription, index: int) -> set[tuple[BrokerId, ...]]:
        """Lists of replicas that the partition began with, or that were asked for."""
        first = topic.original.get(index, topic.partitions[index])
        return self.lists.setdefault((topic.topic_id, topic.incarnations[index]), {first})

    def _tell(self, effect: Any) -> Any:
        if isinstance(effect, fx.SendStopReplica):
            for one in effect.command.replicas:
                topic, found = self.topics.get(one.partition.topic), self.states.get(one.partition)
                if topic is None or topic.topic_id != one.identity.topic_id or topic.topic in self.deletions:
                    continue
                if topic.incarnations.get(one.partition.partition) == one.identity.incarnation and found is not None:
                    assert effect.broker not in found.state.isr_ids, f"{one.partition} is stopped at {effect.broker}"
        error = super()._tell(effect)
        if error is None and isinstance(effect, fx.SendLeaderAndIsr):
            self._note_log_dirs(effect)
        return error

    def _refuse(self, effect: fx.SendLeaderAndIsr) -> None:
        """The broker answers with a refusal, and may restart right after."""
        self._note_log_dirs(effect)
        super()._refuse(effect)

    def _note_log_dirs(self, effect: fx.SendLeaderAndIsr) -> None:
        self.sent_log_dirs.update(
            (effect.broker, one.partition, one.log_dir) for part in effect.commands for one in part.partitions
        )

    def _finish_asked(self, effect: fx.FinishReassignments | fx.FinishPartitionRequests, lost: bool) -> list[Any]:
        if isinstance(effect, fx.FinishReassignments):
            for move in effect.finished:
                topic = self.topics.get(move.partition.topic)
                refused = any(one.partition == move.partition for one in effect.refused)
                refused |= self.asked.moves.get(move.partition) != move  # the entry was replaced
                moves = topic is not None and move.partition.partition in topic.original
                assert refused or not moves, f"{move} leaves the node and continues"
                if not refused and not move.cancel:
                    for broker, log_dir in named_log_dirs(move).items():
                        assert (broker, move.partition, log_dir) in self.sent_log_dirs, f"{broker} was never sent it"
        return super()._finish_asked(effect, lost)

    # -- at rest -------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        leaving = self.core._ctx.avoided - self.core.suspected
        for broker in BROKERS:
            if BrokerId(broker) not in self.brokers or broker in leaving:
                self.register(broker)
        self.brokers_seen()
        self.asked_seen()
        super().rest()
        for _ in range(10):
            self.settle(catching_up=True)

    def check_at_rest(self) -> None:
        stuck = {one for one, found in self.states.items() if found.state.leader == NO_LEADER}
        stuck |= {one for one, _ in self.unreadable}
        for topic in self.topics.values():
            for index, assigned in topic.partitions.items():
                partition = TopicPartition(topic.topic, index)
                if partition in stuck:
                    continue
                assert index not in topic.original, f"the reassignment of {partition} never ends"
                assert partition not in self.asked.moves
                state = self.states[partition].state
                assert set(state.isr_ids) <= set(assigned)
                assert state.min_isr == min(int(topic.configs["min.insync.replicas"]), len(assigned))
                assert not state.sealed, f"{partition} stays sealed"
                for broker in assigned:
                    assert not self.brokers[broker].commands[partition].throttle_bytes_per_s
        assert not self.asked.added
        assert {one.topic for one in self.asked.removed} <= {one.topic for one in stuck}
        assert set(self.asked.moves) <= stuck
        super().check_at_rest()


@pytest.mark.parametrize("batch", range(10))
def test_in_random_worlds_reassignments_end_with_old_or_new_replicas(batch: int) -> None:
    live(MovingWorld, range(batch * 20, batch * 20 + 20))
