# SPDX-License-Identifier: Apache-2.0
"""Metrics of the controller."""

from __future__ import annotations

import pytest
from tidemark.controller.metrics import ControllerMetrics
from tidemark.core.controller.effects import Observed
from tidemark.core.controller.events import Tick
from tidemark.core.messages import PartitionCommand
from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch, ReplicaIdentity, TopicPartition
from tidemark.runtime.metrics import Metrics

from tests.unit.broker.scraped import scraped

P = TopicPartition("t", 0)


def command(leader: int, epoch: int) -> PartitionCommand:
    state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), (IsrEntry(BrokerId(leader), 1),), (), min_isr=1)
    return PartitionCommand(P, ReplicaIdentity("t", "i"), (BrokerId(leader),), state, 1)


def elected(leader: int, epoch: int) -> Observed:
    return Observed("leader_elected", P, {"leader": leader, "leader_epoch": epoch, "before": -1})


def test_an_election_lasts_until_the_new_leader_itself_has_answered_in_its_epoch() -> None:
    shown = Metrics()
    metrics = ControllerMetrics(shown)

    def count() -> float:
        return scraped(shown.render())["tidemark_controller_leader_election_seconds_count", ""]

    metrics.observed(elected(2, 5))
    metrics.leaders_confirmed(1, [command(2, 5)])
    metrics.leaders_confirmed(2, [command(2, 4)])
    assert count() == 0, "another broker, and an older command"
    metrics.leaders_confirmed(2, [command(2, 5)])
    metrics.leaders_confirmed(2, [command(2, 5)])
    assert count() == 1
    metrics.observed(elected(3, 6))
    metrics.observed(Observed("partition_offline", P, {"leader_epoch": 7}))
    metrics.leaders_confirmed(3, [command(3, 6)])
    assert count() == 1
    metrics.observed(Observed("unclean_election", P, {"leader": 3, "lineage": 1, "records_maybe_lost": 4}))
    metrics.leaders_confirmed(3, [command(3, 8)])
    found = scraped(shown.render())
    assert found["tidemark_controller_leader_election_seconds_count", ""] == 2
    assert found["tidemark_controller_leader_elections_total", "clean=true"] == 2
    assert found["tidemark_controller_leader_elections_total", "clean=false"] == 1
    assert found["tidemark_controller_records_maybe_lost_total", ""] == 4


def test_a_standby_exports_no_cluster_metrics() -> None:
    shown, waiting = Metrics(), [object()]
    metrics = ControllerMetrics(shown)
    metrics.term_begins(7, lambda: len(waiting))
    metrics.counts({"topics": 2, "partitions": 9, "offline_partitions": 1, "moves": 3, "replicas_to_move": 4})
    metrics.left_isrs({"broker_failed": 3})
    metrics.waited(0.25)
    found = scraped(shown.render())
    names = ("active", "epoch", "topics", "partitions", "offline_partitions", "reassignments", "event_queue_size")
    assert [found[f"tidemark_controller_{name}", ""] for name in names] == [1, 7, 2, 9, 1, 3, 1]
    assert found["tidemark_controller_reassignment_replicas_remaining", ""] == 4
    assert found["tidemark_replica_isr_shrinks_total", "reason=broker_failed"] == 3
    assert found["tidemark_replica_isr_shrinks_total", "reason=shutdown"] == 0
    assert found["tidemark_controller_event_queue_seconds_sum", ""] == 0.25
    metrics.term_ends()
    found = scraped(shown.render())
    assert [found[f"tidemark_controller_{name}", ""] for name in names] == [0] * len(names)
    assert found["tidemark_replica_isr_shrinks_total", "reason=broker_failed"] == 3, "a counter never goes back"


def test_possible_loss_is_reported_for_each_of_any_number_of_partitions(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ControllerMetrics(Metrics())
    with caplog.at_level("INFO"):
        for number in range(150):
            partition = TopicPartition("t", number)
            metrics.observed(Observed("partition_offline", partition, {"leader_epoch": 1}))
            metrics.observed(Observed("unclean_election", partition, {"leader": 1, "records_maybe_lost": number}))
        metrics.handled(Tick(), 0.1)
    lost = [one for one in caplog.records if one.message == "unclean_election"]
    assert {one.__dict__["records_maybe_lost"] for one in lost} == set(range(150))
    assert {one.levelname for one in lost} == {"WARNING"}
    assert [one.__dict__["partitions"] for one in caplog.records if one.message == "partition_offline"] == [150]
