# SPDX-License-Identifier: Apache-2.0
"""Whether a broker can be restarted without an interruption."""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.planning.restart_safety import Obstacle, obstacles_to_restart
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    TopicDescription,
    TopicPartition,
    VersionedState,
)

ALL = {BrokerId(broker): BrokerEpoch(0) for broker in range(3)}
T0 = TopicPartition("t", 0)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


def topic(*assigned: int) -> TopicDescription:
    return TopicDescription("t", "id", {0: ids(*assigned)}, {0: "i"})


def state(leader: int, *isr: int, min_isr: int = 1) -> dict[TopicPartition, VersionedState]:
    entries = tuple(IsrEntry(BrokerId(member), BrokerEpoch(0)) for member in isr)
    return {T0: VersionedState(LeaderAndIsr(BrokerId(leader), LeaderEpoch(0), entries, min_isr=min_isr), 0)}


def reasons(broker: int, *arguments: object, live: object = ALL, wanted: object = ()) -> list[Obstacle]:
    found = obstacles_to_restart(BrokerId(broker), live, *arguments, wanted)  # type: ignore[arg-type]
    assert all(obstacle.message for obstacle in found)
    return [obstacle.reason for obstacle in found]


def test_a_broker_whose_partitions_have_enough_others_in_sync_is_safe() -> None:
    assert reasons(1, [topic(1, 2, 0)], state(1, 1, 2, 0, min_isr=2)) == []


def test_a_leader_without_another_in_sync_replica_is_not_safe() -> None:
    assert reasons(1, [topic(1, 2)], state(1, 1)) == [Obstacle.NO_IN_SYNC_HEIR]


def test_an_in_sync_replica_that_is_not_live_does_not_count() -> None:
    live = {broker: epoch for broker, epoch in ALL.items() if broker != 2}
    found = reasons(1, [topic(1, 2)], state(1, 1, 2), live=live)
    assert found == [Obstacle.NO_IN_SYNC_HEIR, Obstacle.OTHER_BROKER_AWAY]


def test_an_entry_of_an_earlier_registration_is_not_in_sync() -> None:
    """Broker 2 has returned, and the controller has yet to remove its entry from before the restart."""
    live = {**ALL, BrokerId(2): BrokerEpoch(1)}
    assert reasons(1, [topic(1, 2)], state(1, 1, 2), live=live) == [Obstacle.NO_IN_SYNC_HEIR]
    assert reasons(1, [topic(1, 2, 0)], state(1, 1, 2, 0, min_isr=2), live=live) == [Obstacle.BELOW_MIN_ISR]
    assert reasons(2, [topic(1, 2, 0)], state(1, 1, 2, 0), live=live) == [Obstacle.NOT_IN_SYNC]


def test_too_few_left_for_acks_all_is_not_safe() -> None:
    assert reasons(1, [topic(1, 2, 0)], state(1, 1, 2, min_isr=2)) == [Obstacle.BELOW_MIN_ISR]
    assert reasons(2, [topic(1, 2, 0)], state(1, 1, 2, min_isr=2)) == [Obstacle.BELOW_MIN_ISR], "a follower counts too"


def test_a_topic_without_a_replica_to_spare_has_its_own_obstacle() -> None:
    assert reasons(1, [topic(1)], state(1, 1)) == [Obstacle.NO_REPLICA_TO_SPARE]
    for broker in (1, 2):
        (found,) = obstacles_to_restart(BrokerId(broker), ALL, [topic(1, 2)], state(1, 1, 2, min_isr=2))
        assert (found.reason, found.may_pass) == (Obstacle.NO_REPLICA_TO_SPARE, False)
        assert found.message.endswith("smaller min.insync.replicas: t")


def test_an_obstacle_names_no_topic_that_its_reader_may_not_see() -> None:
    seen = [replace(topic(1), topic=name) for name in ("open", "secret", "shown")]
    states = {TopicPartition(one.topic, 0): state(1, 1)[T0] for one in seen}
    (found,) = obstacles_to_restart(BrokerId(1), ALL, seen, states, may_name=lambda name: name != "secret")
    assert found.message.endswith("smaller min.insync.replicas: open, shown and 1 more")
    (found,) = obstacles_to_restart(BrokerId(1), ALL, seen, states, may_name=lambda name: False)
    assert found.message.endswith("smaller min.insync.replicas: 3 topics")


def test_waiting_helps_until_all_replicas_are_in_sync() -> None:
    found = reasons(1, [topic(1, 2)], state(1, 1, min_isr=2))
    assert found == [Obstacle.NO_IN_SYNC_HEIR]
    assert reasons(1, [topic(1, 2, 0)], state(1, 1, 2, min_isr=3)) == [Obstacle.BELOW_MIN_ISR]
    assert reasons(1, [topic(1, 2)], state(2, 2, min_isr=2)) == [Obstacle.BELOW_MIN_ISR, Obstacle.NOT_IN_SYNC]


def test_a_follower_out_of_sync_is_an_obstacle() -> None:
    assert reasons(2, [topic(1, 2, 0)], state(1, 1, 0)) == [Obstacle.NOT_IN_SYNC]


def test_another_broker_that_is_not_live_is_an_obstacle_without_shared_partitions() -> None:
    others = TopicDescription("u", "id", {0: ids(2)}, {0: "i"})
    live = {broker: epoch for broker, epoch in ALL.items() if broker != 2}
    found = obstacles_to_restart(BrokerId(1), live, [topic(1, 0), others], state(1, 1, 0))
    assert [(one.reason, one.partitions) for one in found] == [(Obstacle.OTHER_BROKER_AWAY, ())]
    assert "broker 2" in found[0].message


def test_a_reassignment_requested_or_begun_is_an_obstacle() -> None:
    moving = replace(topic(1, 2, 0), original={0: ids(1, 2)})
    assert reasons(1, [moving], state(1, 1, 2, 0)) == [Obstacle.MOVE_UNDER_WAY]
    assert reasons(1, [topic(1, 2, 0)], state(1, 1, 2, 0), wanted=[T0]) == [Obstacle.MOVE_UNDER_WAY]


def test_a_broker_that_is_not_live_is_an_obstacle_even_without_replicas() -> None:
    live = {broker: epoch for broker, epoch in ALL.items() if broker != 1}
    assert reasons(1, [topic(2, 0)], state(2, 2, 0), live=live) == [Obstacle.BROKER_NOT_LIVE]


def test_a_partition_without_a_state_is_an_obstacle() -> None:
    assert reasons(1, [topic(1, 2)], {}) == [Obstacle.NO_IN_SYNC_HEIR]


def test_a_drained_broker_is_safe() -> None:
    assert reasons(1, [topic(2, 0)], state(2, 2, 0)) == []


def test_brokers_that_are_not_live_are_named_with_their_partitions() -> None:
    live = {one: epoch for one, epoch in ALL.items() if one != 2}
    found = obstacles_to_restart(BrokerId(1), live, [topic(0, 1, 2)], state(0, 0, 1, min_isr=1))
    assert [(one.reason, one.partitions) for one in found] == [(Obstacle.OTHER_BROKER_AWAY, (T0,))]
    assert "broker 2;" in found[0].message
    gone = {BrokerId(0): BrokerEpoch(0)}
    (found_gone,) = [
        one
        for one in obstacles_to_restart(BrokerId(1), gone, [topic(0, 1, 2)], state(0, 0))
        if one.reason is Obstacle.OTHER_BROKER_AWAY
    ]
    assert "broker 2;" in found_gone.message


def test_a_broker_waits_for_another_one_that_has_claimed_a_restart() -> None:
    arguments = [topic(1, 2, 0)], state(1, 1, 2, 0, min_isr=2)
    (found,) = obstacles_to_restart(BrokerId(1), ALL, *arguments, restarting=BrokerId(2))
    assert (found.reason, found.may_pass) == (Obstacle.OTHER_BROKER_RESTARTS, True)
    assert "broker 2 is about to restart" in found.message
    assert obstacles_to_restart(BrokerId(2), ALL, *arguments, restarting=BrokerId(2)) == []
