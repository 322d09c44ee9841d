# SPDX-License-Identifier: Apache-2.0
"""The choice of the replica to fetch from, and the return to the leader (rule K1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.client.consuming.preferred_replica import (
    NAMED_S_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    QUIET_S,
    SILENT_S,
    PreferredReplicas,
)
from tidemark.client.metadata.cluster import Leader
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerId, BrokerRegistration, LeaderEpoch, TopicPartition
from tidemark.v1 import broker_service_pb2 as pb

T0 = TopicPartition("t", 0)
LEADER = Leader(BrokerId(1), "host1:1", LeaderEpoch(5), "id", "i")


class World:
    """Brokers 1 (the leader) and 2, both in sync, and a consumer in a rack; the time is `now_s`."""

    def __init__(self, rack: str = "b") -> None:
        self.now_s = 1_000.0
        self.view = self._view((1, 2), (1, 2))
        self.nearest = PreferredReplicas(rack, lambda: self.view)

    def _view(self, live: tuple[int, ...], in_sync: tuple[int, ...]) -> ClusterView:
        partition = PartitionView(0, 1, 5, (1, 2), in_sync, "i")
        return ClusterView(
            brokers={one: BrokerRegistration(one, f"host{one}", one) for one in live},
            topics={"t": TopicView("t", "id", partitions={0: partition})},
        )

    def change(self, *, live: tuple[int, ...] = (1, 2), in_sync: tuple[int, ...] = (1, 2)) -> None:
        self.view = self._view(live, in_sync)
        self.nearest.revalidate(T0, LEADER, self.now_s)

    def prefer(self, *, has_more: bool = True) -> bool:
        return self.nearest.prefer(T0, LEADER, 2, has_more=has_more, now_s=self.now_s)

    def asked(self, *, wanted: bool = True) -> None:
        self.nearest.asked(T0, self.now_s, wanted=wanted)

    @property
    def source(self) -> tuple[str, pb.ReadFrom.ValueType]:
        return self.nearest.address(T0, LEADER), self.nearest.read_from(T0, self.now_s)


FOLLOWER = ("host2:2", pb.READ_FROM_FOLLOWER)
ASKING = ("host1:1", pb.READ_FROM_NEAREST)
ALONE = ("host1:1", pb.READ_FROM_LEADER)


def test_consumer_without_rack_reads_from_the_leader() -> None:
    assert World("").source == ("host1:1", pb.READ_FROM_UNSPECIFIED)


def test_consumer_reads_from_the_replica_that_the_leader_names() -> None:
    world = World()
    assert world.source == ASKING
    assert world.prefer()
    assert world.source == FOLLOWER
    assert world.nearest.replica(T0) == 2


def test_pause_after_a_replica_failure_doubles() -> None:
    world = World()
    pause_s = PAUSE_S
    for _ in range(10):
        world.prefer()
        world.nearest.leave(T0, world.now_s)
        world.now_s += pause_s * 0.99
        assert world.source == ALONE
        world.now_s += pause_s * 0.02
        assert world.source == ASKING
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def test_returned_records_reset_the_pause() -> None:
    world = World()
    for _ in range(3):
        world.prefer()
        world.nearest.leave(T0, world.now_s)
    world.prefer()
    world.nearest.returned_records(T0)
    world.nearest.leave(T0, world.now_s)
    world.now_s += PAUSE_S
    assert world.source == ASKING


@pytest.mark.parametrize("change", [{"live": (1,)}, {"in_sync": (1,)}], ids=["away", "out of sync"])
def test_offline_or_out_of_sync_replica_is_not_used(change: dict[str, tuple[int, ...]]) -> None:
    world = World()
    world.prefer()
    world.change(**change)
    assert world.source == ALONE
    world.now_s += PAUSE_S
    assert not world.prefer()
    assert world.source == ALONE


def test_leader_change_returns_to_the_leader_at_once() -> None:
    for other in (LEADER._replace(leader_epoch=LeaderEpoch(6)), LEADER._replace(incarnation="j"), None):
        world = World()
        world.prefer()
        world.nearest.revalidate(T0, other, world.now_s)
        assert world.source == ASKING
        assert world.nearest.replica(T0) is None


def test_quiet_replica_is_used_again_if_the_leader_has_no_records() -> None:
    world = World()
    world.prefer()
    world.asked()
    world.now_s += QUIET_S * 0.99
    assert not world.nearest.drop_quiet([T0], world.now_s)
    world.now_s += QUIET_S * 0.02
    assert not world.nearest.drop_silent(world.now_s), "its answer is waited for"
    assert world.nearest.drop_quiet([T0], world.now_s)
    assert world.source == ASKING
    assert world.prefer(has_more=False)
    assert world.source == FOLLOWER


def test_silent_replica_is_dropped_after_the_silent_timeout() -> None:
    world = World()
    world.prefer()
    world.asked()
    world.now_s += SILENT_S
    assert not world.nearest.drop_quiet([], world.now_s)
    assert world.nearest.drop_silent(world.now_s)
    assert world.source == ASKING


def test_quiet_replica_is_left_if_the_leader_has_records() -> None:
    world = World()
    world.prefer()
    world.asked()
    world.now_s += QUIET_S
    assert world.nearest.drop_quiet([T0], world.now_s)
    assert not world.prefer(has_more=True)
    assert world.source == ALONE


def test_time_without_fetches_does_not_count_as_silence() -> None:
    world = World()
    world.prefer()
    for _ in range(3):
        world.asked()
        world.now_s += QUIET_S * 0.6
        world.asked(wanted=False)
        world.now_s += SILENT_S
        assert not world.nearest.drop_silent(world.now_s)
    world.asked()
    world.now_s += QUIET_S * 0.6
    world.nearest.returned_records(T0)
    world.now_s += QUIET_S * 0.6
    assert not world.nearest.drop_quiet([T0], world.now_s)


def test_leader_is_asked_again_after_a_minute() -> None:
    world = World()
    world.prefer()
    world.now_s += NAMED_S_MAX * 0.99
    assert not world.nearest.drop_silent(world.now_s)
    world.now_s += NAMED_S_MAX * 0.02
    assert world.nearest.drop_silent(world.now_s)
    assert world.source == ASKING
    assert world.prefer(has_more=True), "the replica was not doubted"


def test_unassigned_partition_is_forgotten() -> None:
    world = World()
    world.prefer()
    world.nearest.keep([])
    assert world.source == ASKING
    world.prefer()
    world.nearest.leave(T0, world.now_s)
    world.nearest.keep([])
    assert world.source == ASKING


def test_replica_is_fetched_from_at_its_new_address() -> None:
    world = World()
    world.prefer()
    moved = replace(world.view.brokers[BrokerId(2)], host="elsewhere")
    world.view = replace(world.view, brokers={**world.view.brokers, BrokerId(2): moved})
    assert world.source == ("elsewhere:2", pb.READ_FROM_FOLLOWER)
