# SPDX-License-Identifier: Apache-2.0
"""Leaders omit lag checks that cannot change anything, and leave suspected members to the controller (R6-R8, C6)."""

from __future__ import annotations

import pytest
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import FollowerMessage
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.leader.isr import expected_to_leave
from tidemark.core.replication.leader.partition_leader import PartitionLeader

from tests.unit.core.replication.leader.test_lag import A_CHECK_MS, LAG_MAX_MS
from tests.unit.core.replication.stage import P, Stage, node


class Checks:
    """Counts the lag checks of all leaders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        check_lag = PartitionLeader.check_lag

        def counted(leader: PartitionLeader, now_ms: int) -> bool:
            self.count += 1
            return check_lag(leader, now_ms)

        monkeypatch.setattr(PartitionLeader, "check_lag", counted)

    def in_ticks(self, stage: Stage, count: int = 200) -> int:
        """Checks in this number of ticks; the first check may belong to an earlier event."""
        before = self.count
        for _ in range(count):
            stage.feed(ev.Tick(), after_ms=100)
        return self.count - before


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


def leader(isr: tuple[int, ...], *, min_isr: int = 1) -> Stage:
    stage = Stage()
    stage.command(node(1, 5, isr, min_isr=min_isr), assigned=(1, 2))
    stage.opened()
    return stage


def removal_ms(stage: Stage) -> int:
    """Time until follower 2 is removed from the ISR."""
    began = stage.now
    while not stage.got(fx.WriteIsr):
        assert stage.now - began < 10 * LAG_MAX_MS
        stage.feed(ev.Tick(), after_ms=100)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1,)
    return stage.now - began


def test_an_absent_follower_costs_no_checks_and_joins_when_it_fetches(checks: Checks) -> None:
    stage = leader((1,))
    assert checks.in_ticks(stage) == 0
    stage.fetches(2, 0)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_follower_that_fetches_but_may_not_join_yet_is_checked_until_it_joins(checks: Checks) -> None:
    stage = leader((1,))
    assert checks.in_ticks(stage) == 0
    stage.fetches(2, 0)
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(node(1, 5, (1,)), stage.version)
    assert not stage.got(fx.WriteIsr), "ZooKeeper refused it a moment ago"
    stage.feed(ev.Tick(), after_ms=1_000)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_change_in_flight_costs_no_checks(checks: Checks) -> None:
    stage = leader((1, 2))
    removal_ms(stage)
    assert checks.in_ticks(stage) <= 1
    stage.feed(ev.IsrWritten(P, stage.version + 1))
    stage.fetches(2, 0)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_an_absent_member_costs_one_check_until_it_is_removed(checks: Checks) -> None:
    stage = leader((1, 2))
    before = checks.count
    assert LAG_MAX_MS < removal_ms(stage) <= LAG_MAX_MS + A_CHECK_MS
    assert checks.count - before <= 2


def test_a_suspected_follower_that_fetches_costs_few_checks_and_joins_afterwards(checks: Checks) -> None:
    stage = leader((1,))
    stage.command(node(1, 5, (1,)), assigned=(1, 2), suspected=(2,))
    stage.fetches(2, 0)
    before = checks.count
    for _ in range(200):
        stage.from_follower(2, FollowerMessage())
        stage.feed(ev.Tick(), after_ms=100)
        assert not stage.got(fx.WriteIsr)
    assert checks.count - before <= 1 + 200 * 100 // LAG_MAX_MS
    stage.command(node(1, 5, (1,)), assigned=(1, 2))
    while not stage.got(fx.WriteIsr):
        stage.from_follower(2, FollowerMessage())
        stage.feed(ev.Tick(), after_ms=100)
        assert checks.count < 10
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_broker_that_is_no_longer_suspected_ends_the_pause_of_the_checks() -> None:
    stage = leader((1, 2))
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2), suspected=(2,))
    for _ in range(LAG_MAX_MS * 3 // 2 // 100):
        stage.feed(ev.Tick(), after_ms=100)
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2))
    assert removal_ms(stage) <= A_CHECK_MS


def test_a_shorter_lag_time_ends_the_pause_of_the_checks() -> None:
    stage = leader((1, 2))
    stage.feed(ev.Tick(), after_ms=100)
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=1_000)))
    assert removal_ms(stage) <= 1_100


def test_a_member_that_returns_is_checked_like_others_again() -> None:
    stage = leader((1, 2))
    stage.feed(ev.Tick(), after_ms=LAG_MAX_MS // 2)
    stage.fetches(2, 0)
    assert LAG_MAX_MS < removal_ms(stage) <= LAG_MAX_MS + A_CHECK_MS


def test_a_leader_gives_the_controller_time_to_remove_a_suspected_member() -> None:
    stage = leader((1, 2))
    assert LAG_MAX_MS < removal_ms(stage) <= LAG_MAX_MS + A_CHECK_MS
    stage = leader((1, 2))
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2), suspected=(2,))
    assert 2 * LAG_MAX_MS < removal_ms(stage) <= 2 * LAG_MAX_MS + A_CHECK_MS


def test_a_controller_gets_some_seconds_even_if_the_lag_time_is_short() -> None:
    stage = leader((1, 2))
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=1_500)))
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2), suspected=(2,))
    assert 1_500 + 8_000 < removal_ms(stage) <= 1_500 + 8_000 + 200


def test_a_suspected_member_that_the_controller_keeps_gets_no_more_time() -> None:
    stage = leader((1, 2), min_isr=2)
    stage.command(node(1, 5, (1, 2), min_isr=2), assigned=(1, 2), suspected=(2,))
    assert LAG_MAX_MS < removal_ms(stage) <= LAG_MAX_MS + A_CHECK_MS


@pytest.mark.parametrize(
    ("isr", "min_isr", "suspected", "leaving"),
    [
        ((1, 2, 3), 2, (3,), (3,)),
        ((1, 2, 3), 2, (2, 3), ()),
        ((1, 2, 3), 1, (2, 3), (2, 3)),
        ((1, 2), 1, (), ()),
        ((1, 2), 0, (1, 2), ()),
    ],
)
def test_the_controller_removes_suspected_members_while_enough_others_stay(
    isr: tuple[int, ...], min_isr: int, suspected: tuple[int, ...], leaving: tuple[int, ...]
) -> None:
    assert expected_to_leave(node(1, 5, isr, min_isr=min_isr), frozenset(suspected)) == frozenset(leaving)
