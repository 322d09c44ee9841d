# SPDX-License-Identifier: Apache-2.0
"""The state of one partition between a decision and its answer (rules E5, R7, T5, Z2)."""

from __future__ import annotations

import pytest
from tidemark.core.controller.events import LeadershipResigned, ReplicaFailed
from tidemark.core.controller.partition_state import NO_LIMIT, PartitionState, TopicPolicy
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, IsrEntry, LeaderEpoch, TidemarkError, VersionedState

from tests.unit.core.replication.stage import BROKERS, ID, P, node

PAUSE_MS = 12_000
LIVE = {BrokerId(one): BrokerEpoch(10 + one) for one in BROKERS}


def record(*, leader: int = 1, epoch: int = 5) -> PartitionState:
    return PartitionState(P, ID, BROKERS, TopicPolicy(2, False), state=node(leader, epoch, (1, 2)), version=7)


def given_up(broker: int = 1, epoch: int = 5) -> LeadershipResigned:
    return LeadershipResigned(BrokerId(broker), BrokerEpoch(10 + broker), P, LeaderEpoch(epoch))


def failed(broker: int, epoch: int = 5, *, broker_epoch: int | None = None) -> ReplicaFailed:
    own = 10 + broker if broker_epoch is None else broker_epoch
    return ReplicaFailed(BrokerId(broker), BrokerEpoch(own), P, LeaderEpoch(epoch))


def fails_to_write(one: PartitionState, now_ms: int) -> int:
    """A write of the partition fails; returns the wait before the next one."""
    one.begin_write(node(2, 6, (1, 2)))
    one.write_failed(now_ms)
    return max(0, one.not_before_ms - now_ms)


def test_a_failed_write_is_read_and_retried_in_ever_smaller_multis() -> None:
    one, limits = record(), []
    for _ in range(5):
        one.begin_write(node(2, 6, (1, 2)))
        one.group = min(9, one.limit)
        assert one.busy
        one.write_failed(0)
        assert (one.writing, one.reading, one.outcome_unknown, one.busy) == (None, True, True, True)
        limits.append(one.limit)
    assert limits == [4, 2, 1, 1, 1]
    one.begin_write(node(2, 6, (1, 2)))
    one.write_succeeded(8)
    assert (one.limit, one.version, one.writing) == (NO_LIMIT, 8, None)


def test_many_failures_in_a_row_lead_to_a_back_off() -> None:
    one = record()
    waits = [fails_to_write(one, 50_000) for _ in range(30)]
    assert waits[:10] == [0] * 10
    assert waits[10:16] == [200, 400, 800, 1600, 2000, 2000]
    assert set(waits[16:]) == {2000}
    one.begin_write(node(2, 6, (1, 2)))
    one.write_succeeded(8)
    assert one.not_before_ms == 0
    assert fails_to_write(one, 50_000) == 0


@pytest.mark.parametrize(("highest", "higher"), [("5", True), ("9", True), ("4", False), ("", True), ("none", True)])
def test_a_refusal_of_the_present_epoch_raises_it_and_of_an_older_one_does_not(highest: str, higher: bool) -> None:
    one = record()
    error = TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", {"leader_epoch": highest})
    assert one.epoch_refused(error) == higher
    assert one.facts(LIVE).refused_epoch == (5 if higher else None)
    one.begin_write(node(1, 6, (1, 2)))
    one.write_succeeded(8)
    assert one.facts(LIVE).refused_epoch is None


@pytest.mark.parametrize(
    ("leader", "epoch", "older"), [("2", "9", 8), ("2", "5", 5), ("1", "5", None), ("-1", "5", None), ("2", "4", None)]
)
def test_a_replica_that_knows_a_later_leadership_proves_the_node_older(
    leader: str, epoch: str, older: int | None
) -> None:
    one = record()
    known = {"leader_epoch": epoch, "known_leader": leader, "known_leader_epoch": epoch}
    assert one.found_older(TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", known)) == (older is not None)
    assert (one.state is None) == (older is not None), "an older state is of no use"
    assert [one.is_older(node(1, at, (1, 2))) for at in (5, 9)] == [older is not None, False]


def test_a_write_that_was_decided_from_an_older_node_is_older_too() -> None:
    one = record()
    one.begin_write(node(2, 6, (1, 2)))
    known = {"leader_epoch": "6", "known_leader": "3", "known_leader_epoch": "6"}
    assert one.found_older(TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", known))
    one.write_succeeded(8)
    one.forget_older()
    assert one.state is None
    assert one.is_older(node(2, 6, (1, 2)))


def test_an_epoch_that_only_the_disk_of_the_leader_knows_proves_nothing() -> None:
    """The tree of a backup may be older than the logs of brokers that have restarted (E5)."""
    one = record()
    error = TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "no", {"leader_epoch": "9"})
    assert not one.found_older(error)
    assert one.epoch_refused(error)


def test_a_resignation_counts_in_its_epoch_and_not_again_within_the_pause() -> None:
    one = record()
    for late in (given_up(epoch=4), given_up(epoch=6), given_up(broker=2)):
        assert not one.replica_reported(late, 1_000, PAUSE_MS)
    assert one.facts(LIVE).resigned_epoch is None
    assert one.replica_reported(given_up(), 1_000, PAUSE_MS)
    assert one.facts(LIVE).resigned_epoch == 5
    one.begin_write(node(2, 6, (1, 2)))
    one.write_succeeded(8)
    assert not one.replica_reported(given_up(2, 6), 1_000 + PAUSE_MS - 1, PAUSE_MS), (
        "a slow disk passes it to no other slow disk"
    )
    assert one.replica_reported(given_up(2, 6), 1_000 + PAUSE_MS, PAUSE_MS)


def test_failed_replicas_stay_offline_until_their_broker_registers_again() -> None:
    one = record()
    assert one.replica_reported(failed(2), 0, PAUSE_MS)
    assert not one.replica_reported(failed(2), 0, PAUSE_MS), "no change"
    assert not one.replica_reported(failed(3, epoch=4), 0, PAUSE_MS), "of an older leadership"
    assert one.replica_reported(failed(3), 0, PAUSE_MS)
    assert one.facts(LIVE).offline == {2, 3}
    assert one.facts({**LIVE, BrokerId(2): BrokerEpoch(20)}).offline == {3}


def test_a_replica_added_to_the_isr_is_online_again_and_one_already_in_it_is_not() -> None:
    one = record()
    for broker in (2, 3):
        one.replica_reported(failed(broker), 0, PAUSE_MS)
    one.adopt(VersionedState(node(1, 5, (1, 2)), 8))
    assert one.facts(LIVE).offline == {2, 3}
    one.adopt(VersionedState(node(1, 5, (1, 2, 3)), 9))
    assert one.facts(LIVE).offline == {2}, "2 was in sync before it failed, and its leader has not noticed yet"
    fresh = PartitionState(P, ID, BROKERS, TopicPolicy(2, False))
    assert not fresh.replica_reported(failed(2, -1), 0, PAUSE_MS), "the partition has no leadership yet"
    fresh.adopt(VersionedState(node(1, 0, (1, 2)), 0))
    assert (fresh.version, fresh.facts(LIVE).offline) == (0, frozenset())


def test_damage_reported_during_a_write_is_decided_after_it() -> None:
    one = record()
    one.damaged = frozenset({IsrEntry(BrokerId(2), BrokerEpoch(12))})
    one.begin_write(node(1, 5, (1,)))
    one.damaged |= {IsrEntry(BrokerId(3), BrokerEpoch(13))}
    one.write_succeeded(8)
    assert one.facts(LIVE).damaged == {IsrEntry(BrokerId(3), BrokerEpoch(13))}


@pytest.mark.parametrize(("wanted", "factor", "m"), [(2, 0, 2), (5, 0, 3), (2, 1, 1), (5, 2, 2)])
def test_min_isr_is_at_most_the_replication_factor(wanted: int, factor: int, m: int) -> None:
    one = PartitionState(P, ID, BROKERS, TopicPolicy(wanted, False), replication_factor=factor)
    assert one.facts(LIVE).min_isr == m
    assert one.min_isr_of(BROKERS) == min(wanted, 3)
