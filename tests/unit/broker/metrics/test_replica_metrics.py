# SPDX-License-Identifier: Apache-2.0
"""Replica metrics of a scrape, from scripted cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

from tidemark.broker.metrics.replicas import ReplicaMetrics
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import FollowerMessage
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica_stats import ReplicaFigures
from tidemark.model import BrokerId, TopicPartition
from tidemark.storage.directories.log_manager import DirectoryState

from tests.unit.broker.scraped import scraped
from tests.unit.core.replication.stage import P, Stage, node

OF = "partition=0,topic=flights"


class Log:
    """A log of 100 bytes per record and three segments."""

    def __init__(self, end: int) -> None:
        self.end = end

    def size_bytes(self) -> int:
        return 100 * self.end

    def segment_count(self) -> int:
        return 3

    def bytes_from(self, offset: int) -> int:
        return 100 * (self.end - offset)


class Disks:
    """Two directories; the second one has failed."""

    def __init__(self, path: Path, logs: dict[TopicPartition, Log]) -> None:
        self.path = path
        self.logs = logs

    def directories(self) -> tuple[DirectoryState, ...]:
        return DirectoryState("a", self.path, None), DirectoryState("b", self.path / "b", "it broke")

    def logs_in(self, directory: int) -> Iterable[tuple[TopicPartition, Log]]:
        return self.logs.items() if directory == 0 else ()


async def scrape(stage: Stage, path: Path, *, end: int = 0, partitions: bool = True) -> dict[tuple[str, str], float]:
    metrics = ReplicaMetrics(stage.me, stage.core.queries, Disks(path, {P: Log(end)}), lambda: stage.now)
    metrics.partitions = partitions
    return scraped(await asyncio.to_thread(metrics.render))


async def test_the_lag_of_a_follower_is_reported_in_records_bytes_and_seconds(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2, 3), min_isr=2)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    for _ in range(4):
        stage.write(acks=1)
    stage.disk_answers()
    stage.reports(2, 4)
    stage.reports(3, 1)
    stage.feed(ev.Tick(), after_ms=2_500)
    stage.from_follower(2, FollowerMessage())
    found = await scrape(stage, tmp_path, end=4)
    for unit, of_2, of_3 in (("records", 0, 3), ("bytes", 0, 300), ("seconds", 0, 2.5)):
        assert found[f"tidemark_replica_follower_lag_{unit}", f"follower=2,{OF}"] == of_2
        assert found[f"tidemark_replica_follower_lag_{unit}", f"follower=3,{OF}"] == of_3
        assert found[f"tidemark_replica_lag_{unit}", "follower=2"] == of_2
        assert found[f"tidemark_replica_lag_{unit}", "follower=3"] == of_3
        assert found[f"tidemark_replica_lag_{unit}_max", ""] == of_3
    assert found["tidemark_partition_high_watermark", OF] == 1
    assert found["tidemark_partition_log_end_offset", OF] == 4
    assert found["tidemark_partition_uncommitted_records", OF] == 3
    assert found["tidemark_replica_uncommitted_records_max", ""] == 3
    assert found["tidemark_partition_high_watermark_stalled_seconds", OF] == 2.5
    assert found["tidemark_replica_high_watermark_stalled_seconds_max", ""] == 2.5
    assert found["tidemark_partition_in_sync_replicas", OF] == 3


async def test_a_high_watermark_at_the_log_end_is_not_stalled(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(acks=1)
    stage.disk_answers()
    stage.reports(2, 1)
    stage.feed(ev.Tick(), after_ms=3_600_000)
    found = await scrape(stage, tmp_path, end=1)
    assert found["tidemark_partition_high_watermark_stalled_seconds", OF] == 0
    assert found["tidemark_partition_uncommitted_records", OF] == 0


async def test_partitions_are_counted_by_the_state_of_their_isr(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2, 3), min_isr=2)
    conditions = ("under_replicated", "under_min_isr", "at_min_isr")

    async def now() -> list[float]:
        found = await scrape(stage, tmp_path)
        assert [found[f"tidemark_partition_{one}", OF] for one in conditions] == [
            found[f"tidemark_replica_{one}", ""] for one in conditions
        ]
        return [found[f"tidemark_replica_{one}", ""] for one in conditions]

    assert await now() == [0, 0, 0]
    stage.command(node(1, 5, (1, 2), min_isr=2))
    assert await now() == [1, 0, 1]
    stage.command(node(1, 5, (1,), min_isr=2))
    assert await now() == [1, 1, 0]


async def test_a_partition_with_all_its_replicas_in_sync_is_not_at_min_isr(tmp_path: Path) -> None:
    """Otherwise each topic with as many replicas as min.insync.replicas would always count as at min ISR."""
    found = await scrape(Stage().leads((1, 2, 3), min_isr=3), tmp_path)
    assert found["tidemark_partition_at_min_isr", OF] == 0
    assert found["tidemark_replica_at_min_isr", ""] == 0


async def test_a_follower_without_contact_lags_by_at_least_this_epoch_since_its_beginning(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2), end=10, epochs=[(3, 0)], high_watermark=10)
    began = stage.now
    stage.write(acks=1)
    stage.feed(ev.Tick(), after_ms=4_000)
    found = await scrape(stage, tmp_path, end=11)
    assert found["tidemark_replica_follower_lag_records", f"follower=2,{OF}"] == 1
    assert found["tidemark_replica_follower_lag_bytes", f"follower=2,{OF}"] == 100
    assert found["tidemark_replica_follower_lag_seconds", f"follower=2,{OF}"] == (stage.now - began) / 1000


async def test_the_remaining_bytes_of_a_reassignment_are_not_counted_as_lag(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2), end=10, epochs=[(3, 0)], high_watermark=10)
    stage.fetches(2, 10)
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2, 3), adding=(3,), throttle=5_000)
    stage.fetches(3, 4)
    found = await scrape(stage, tmp_path, end=10)
    assert found["tidemark_replica_reassigning", ""] == 1
    assert found["tidemark_replica_reassignment_remaining_bytes", ""] == 600
    assert found["tidemark_replica_reassignment_throttle_bytes_per_second", ""] == 5_000
    assert found["tidemark_replica_under_replicated", ""] == 0
    assert found["tidemark_replica_lag_records_max", ""] == 0
    assert found["tidemark_replica_follower_lag_records", f"follower=3,{OF}"] == 6


async def test_reassignment_and_replication_traffic_is_counted(tmp_path: Path) -> None:
    stage = Stage().leads((1,))
    ctx = stage.core._ctx
    ctx.added_bytes_out, ctx.added_bytes_in, ctx.replicated_bytes_in = 7_000, 500, 900
    found = await scrape(stage, tmp_path)
    assert found["tidemark_replica_reassignment_out_bytes_total", ""] == 7_000
    assert found["tidemark_replica_reassignment_in_bytes_total", ""] == 500
    assert found["tidemark_broker_replicated_in_bytes_total", ""] == 900
    assert found["tidemark_replica_throttled", ""] == 0


async def test_a_follower_reports_no_figures_of_leaders(tmp_path: Path) -> None:
    stage = Stage()
    stage.follows()
    found = await scrape(stage, tmp_path)
    assert found["tidemark_replica_count", ""] == 1
    assert found["tidemark_replica_leader_count", ""] == 0
    assert found["tidemark_partition_is_leader", OF] == 0
    assert found["tidemark_partition_leader_epoch", OF] == 5
    assert ("tidemark_partition_in_sync_replicas", OF) not in found
    assert ("tidemark_replica_fetch_lag_records_max", "") in found


async def test_sizes_segments_and_directories_are_reported_and_a_failed_one_has_no_space(tmp_path: Path) -> None:
    stage = Stage().leads((1,))
    found = await scrape(stage, tmp_path, end=7)
    assert found["tidemark_partition_log_size_bytes", OF] == 700
    assert found["tidemark_partition_log_segments", OF] == 3
    good, bad = f"directory={tmp_path}", f"directory={tmp_path / 'b'}"
    assert found["tidemark_log_directory_used_bytes", good] == 700
    assert 0 < found["tidemark_log_directory_free_bytes", good] <= found["tidemark_log_directory_total_bytes", good]
    assert (found["tidemark_log_directory_offline", good], found["tidemark_log_directory_offline", bad]) == (0, 1)
    assert ("tidemark_log_directory_free_bytes", bad) not in found


async def test_without_partitions_only_sums_and_maxima_of_the_broker_are_reported(tmp_path: Path) -> None:
    stage = Stage().leads((1, 2))
    stage.write(acks=1)
    found = await scrape(stage, tmp_path, end=1, partitions=False)
    assert not [name for name, labels in found if "topic=" in labels]
    assert found["tidemark_replica_leader_count", ""] == 1
    assert found["tidemark_replica_lag_records", "follower=2"] == 1


async def test_a_scrape_of_other_names_does_not_write_the_partitions(tmp_path: Path) -> None:
    stage = Stage().leads((1,))
    metrics = ReplicaMetrics(stage.me, stage.core.queries, Disks(tmp_path, {}), lambda: stage.now)
    found = scraped(await asyncio.to_thread(metrics.render, ["tidemark_replica_count"]))
    assert found["tidemark_replica_count", ""] == 1
    assert not [name for name, labels in found if "topic=" in labels]
    found = scraped(await asyncio.to_thread(metrics.render, ["tidemark_partition_leader"]))
    assert found["tidemark_partition_leader", OF] == 1


class SlowQueries(BrokerQueries):
    """Queries that take a millisecond for each replica."""

    def __init__(self, count: int) -> None:
        core = BrokerCore(BrokerId(1), ReplicationConfig())
        super().__init__(core._ctx, {}, core._streams)
        self.count = count

    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition("slow", index) for index in range(self.count))

    def figures(self, partition: TopicPartition, now_ms: int) -> ReplicaFigures | None:
        until_s = time.perf_counter() + 0.001
        while time.perf_counter() < until_s:
            pass
        return None


async def test_the_event_loop_runs_while_figures_of_many_replicas_are_read(tmp_path: Path) -> None:
    metrics = ReplicaMetrics(BrokerId(1), SlowQueries(60), Disks(tmp_path, {}), lambda: 0)
    turns = 0

    async def have_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(have_turns())
    await metrics._ask()
    others.cancel()
    assert turns >= 10, "60 ms in slices of 4 ms"


async def test_after_the_end_of_the_event_loop_a_scrape_has_the_directories_only(tmp_path: Path) -> None:
    stage = Stage().leads((1,))
    metrics = ReplicaMetrics(stage.me, stage.core.queries, Disks(tmp_path, {}), lambda: stage.now)
    metrics._loop = asyncio.new_event_loop()
    metrics._loop.close()
    names = {name for name, _ in scraped(await asyncio.to_thread(metrics.render))}
    assert "tidemark_log_directory_used_bytes" in names
    assert "tidemark_replica_count" not in names


async def test_series_end_with_their_replica(tmp_path: Path) -> None:
    stage = Stage().leads((1,))
    seen: list[tuple[TopicPartition, ...]] = []
    metrics = ReplicaMetrics(
        stage.me, stage.core.queries, Disks(tmp_path, {}), lambda: stage.now, lambda all_of: seen.append(tuple(all_of))
    )
    assert OF in {labels for _, labels in scraped(await asyncio.to_thread(metrics.render))}
    del stage.core._replicas[P]
    found = scraped(await asyncio.to_thread(metrics.render))
    assert OF not in {labels for _, labels in found}
    assert found["tidemark_replica_count", ""] == 0
    assert seen == [(P,), ()]
    assert metrics._labels == {}
