# SPDX-License-Identifier: Apache-2.0
"""The progress of a reassignment, and its obstacles (partition 2 of `test`, with more replicas)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.reassignment.progress import (
    ClusterFacts,
    ReassignmentPhase,
    ReassignmentProgress,
    progress_of,
    with_rate,
)
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    PartitionReassignment,
    TopicDescription,
    TopicPartition,
)

T2 = TopicPartition("test", 2)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


ALIVE = ClusterFacts(frozenset(ids(0, 1, 2, 3)), controller_active=True, others_under_way=False)
MOVE = PartitionReassignment(T2, ids(3, 1), throttle_bytes_per_s=1000, request_id="r")
BEFORE = TopicDescription("test", "id", {2: ids(1, 2)}, {2: "i"})
DURING = replace(
    BEFORE, partitions={2: ids(3, 1, 2)}, original={2: ids(1, 2)}, adding={2: ids(3)}, removing={2: ids(2)}
)


def state(leader: int, *isr: int) -> LeaderAndIsr:
    entries = tuple(IsrEntry(BrokerId(member), BrokerEpoch(0)) for member in isr)
    return LeaderAndIsr(BrokerId(leader), LeaderEpoch(0), entries)


def sizes(**of: int) -> dict[BrokerId, int]:
    return {BrokerId(int(name[1:])): size for name, size in of.items()}


def test_a_queued_reassignment_shows_its_target() -> None:
    found = progress_of(MOVE, BEFORE, state(1, 1, 2), sizes(b1=500), ALIVE)
    assert (found.original, found.target, found.assigned) == (ids(1, 2), ids(3, 1), ids(1, 2))
    assert (found.adding, found.removing, found.phase) == (ids(3), ids(2), ReassignmentPhase.QUEUED)
    assert found.replicas[BrokerId(3)] is ReplicaState.NON_EXISTENT
    assert (found.bytes_done, found.bytes_total) == (0, 500)
    assert found.waiting_for == "", "the reassignment was requested just now"
    assert "has not begun it for 11 s" in with_rate(found, None, 11, throttle_used=0).waiting_for
    behind = progress_of(MOVE, BEFORE, state(1, 1, 2), {}, ALIVE._replace(others_under_way=True))
    assert "free slot" in behind.waiting_for


def test_a_reassignment_between_disks_names_the_brokers_whose_copies_it_waits_for() -> None:
    entry = replace(MOVE, replicas=ids(1, 2), log_dirs=("any", "/disk2"))
    found = progress_of(entry, BEFORE, state(1, 1, 2), {}, ALIVE)
    assert (found.phase, found.waiting_for) == (ReassignmentPhase.FINISHING, "")
    assert with_rate(found, None, 9, throttle_used=0).waiting_for == ""
    later = with_rate(found, None, 11, throttle_used=0).waiting_for
    assert later == "no copy has begun in the named log directory for 11 s: see the log of broker 2"


def test_bytes_done_are_at_most_the_leaders_size() -> None:
    found = progress_of(MOVE, DURING, state(1, 1, 2), sizes(b1=500, b2=500, b3=200), ALIVE)
    assert (found.phase, found.bytes_done, found.bytes_total) == (ReassignmentPhase.COPYING, 200, 500)
    assert found.replicas == dict(zip(ids(3, 1, 2), [ReplicaState.NEW, *[ReplicaState.ONLINE] * 2], strict=True))
    assert (found.waiting_for, found.throttle_bytes_per_s, found.request_id) == ("", 1000, "r")
    more = progress_of(MOVE, DURING, state(1, 1, 2), sizes(b1=500, b3=900), ALIVE)
    assert more.bytes_done == 500, "its segments may be cut otherwise"


def test_without_the_leaders_size_bytes_are_not_known() -> None:
    found = progress_of(MOVE, DURING, state(1, 1, 2), sizes(b3=200), ALIVE)
    assert (found.bytes_done, found.bytes_total) == (None, None)


def test_with_all_targets_in_sync_the_phase_is_finishing() -> None:
    found = progress_of(MOVE, DURING, state(1, 1, 2, 3), sizes(b1=500, b3=480), ALIVE)
    assert (found.phase, found.bytes_done, found.bytes_total) == (ReassignmentPhase.FINISHING, 500, 500)


def test_a_reassignment_whose_entry_remains_is_finishing() -> None:
    after = replace(BEFORE, partitions={2: ids(3, 1)})
    assert progress_of(MOVE, after, state(3, 3, 1), {}, ALIVE).phase is ReassignmentPhase.FINISHING


@pytest.mark.parametrize("topic", [DURING, replace(DURING, partitions={2: ids(1, 2, 3)}, removing={2: ids(3)})])
def test_a_cancelled_reassignment_shows_its_original_replicas(topic: TopicDescription) -> None:
    found = progress_of(replace(MOVE, cancel=True), topic, state(1, 1, 2), sizes(b1=500), ALIVE)
    assert (found.phase, found.target) == (ReassignmentPhase.CANCELLING, ids(1, 2))


def test_obstacles_are_named() -> None:
    def waits_for(state_: LeaderAndIsr | None, sight: ClusterFacts) -> str:
        return progress_of(MOVE, DURING, state_, {}, sight).waiting_for

    assert "broker 3 of the target is not live" in waits_for(state(1, 1), ALIVE._replace(live=frozenset(ids(1, 2))))
    assert "has no leader" in waits_for(state(-1), ALIVE)
    assert "has no leader" in waits_for(None, ALIVE)
    assert "no controller is active" in waits_for(state(1, 1), ALIVE._replace(controller_active=False))
    assert "broker 2, is not live" in waits_for(state(2, 2), ALIVE._replace(live=frozenset(ids(1, 3))))
    assert "does not exist" in progress_of(MOVE, None, None, {}, ALIVE).waiting_for


def copying() -> ReassignmentProgress:
    return progress_of(MOVE, DURING, state(1, 1, 2), sizes(b1=500, b3=200), ALIVE)


def test_two_samples_give_a_rate_and_the_time_left() -> None:
    found = with_rate(copying(), 100, 0, throttle_used=0.1)
    assert (found.rate_bytes_per_s, found.eta_s, found.waiting_for) == (100, 3, "")
    assert with_rate(copying(), None, 0, throttle_used=0).eta_s is None
    assert with_rate(copying(), 0, 0, throttle_used=0).eta_s is None
    assert with_rate(copying(), 1e-30, 0, throttle_used=0).eta_s is None, "the mean rate of a long pause"


def test_a_stall_and_a_throttle_are_named() -> None:
    unknown = progress_of(MOVE, DURING, state(1, 1, 2), {}, ALIVE)
    assert with_rate(unknown, None, 30, throttle_used=0).waiting_for == "", "no broker reported its size"
    assert "nothing was copied for 30 s: see the log of broker 3" in (
        with_rate(copying(), 0, 30, throttle_used=0).waiting_for
    )
    assert "as fast as its throttle allows, 1000" in with_rate(copying(), 950, 0, throttle_used=0.95).waiting_for


def test_named_log_directories_are_shown_until_a_cancel() -> None:
    named = replace(MOVE, log_dirs=("/data/3", "any"))
    for topic in (BEFORE, DURING):
        assert progress_of(named, topic, state(1, 1, 2), {}, ALIVE).log_dirs == {BrokerId(3): "/data/3"}
    assert progress_of(replace(named, cancel=True), DURING, state(1, 1, 2), {}, ALIVE).log_dirs == {}


def test_an_entry_with_log_directories_only_is_finishing() -> None:
    alone = PartitionReassignment(T2, ids(1, 2), log_dirs=("any", "/data/2"))
    found = progress_of(alone, BEFORE, state(1, 1, 2), {}, ALIVE)
    assert (found.phase, found.log_dirs, found.waiting_for) == (
        ReassignmentPhase.FINISHING,
        {BrokerId(2): "/data/2"},
        "",
    )
    away = progress_of(alone, BEFORE, state(1, 1), {}, ALIVE._replace(live=frozenset(ids(1))))
    assert away.waiting_for.startswith("broker 2 of the target is not live")
