# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic describe --partition`: the logs of one partition, and the last changes of its ISR."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.isr_change_reasons import IsrChange
from tidemark.model import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    unknown_topic,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin

CHANGES = (
    IsrChange(1_600_000_000_000, LeaderEpoch(1), 3, (BrokerId(0),), ((BrokerId(1), "silent"),)),
    IsrChange(1_600_000_060_000, LeaderEpoch(1), 4, (BrokerId(0), BrokerId(1)), ((BrokerId(1), "caught_up"),)),
)


class Cluster(FakeAdmin):
    """A topic of three partitions with two replicas, whose brokers answer unless they are `away`."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.changes: tuple[IsrChange, ...] = CHANGES

    def describe_topics(self, names: Sequence[str]) -> list[TopicView]:
        if names == ["none"]:
            return [TopicView("none", "", error=unknown_topic("none"))]
        both = (BrokerId(0), BrokerId(1))
        partitions = {index: PartitionView(index, BrokerId(0), LeaderEpoch(1), both, both) for index in range(3)}
        return [TopicView("flights", "id", partitions=partitions, partition_count=3)]

    def describe_log_dirs(
        self, *, partitions: Sequence[TopicPartition], include_isr_changes: bool
    ) -> list[BrokerLogDirs]:
        assert include_isr_changes
        (partition,) = partitions
        return [self._broker(BrokerId(broker), partition) for broker in (0, 1)]

    def _broker(self, broker: BrokerId, partition: TopicPartition) -> BrokerLogDirs:
        if broker in self.away:
            return BrokerLogDirs(
                broker, error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is away")
            )
        leads = broker == 0
        replica = ReplicaOnDisk(
            partition,
            ReplicaIdentity("t", "i"),
            2048,
            Offset(0),
            Offset(12 if leads else 9),
            Offset(9),
            leads,
            0,
            0.0,
            False,
            isr_changes=self.changes if leads else (),
        )
        return BrokerLogDirs(broker, (LogDirectoryContent("u", "/data", -1, -1, None, (replica,)),))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    return made


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["topic", "describe", *arguments])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_one_partition_shows_its_logs_and_isr_changes_the_newest_first(cluster: Cluster) -> None:
    result = run("flights", "--partition", "1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Topic:flights PartitionCount:3 ")
    assert lines[1] == "Topic: flights Partition: 1 Leader: 0 Replicas: 0,1 Isr: 0,1"
    rows = [cells(line) for line in lines if line.startswith("│")]
    assert rows == [
        ["0", "leader", "yes", "/data", "0", "12", "9", "0", "2.0 kB"],
        ["1", "follower", "yes", "/data", "0", "9", "9", "3", "2.0 kB"],
        ["2020-09-13 12:27:40", "", "1: caught up", "0,1", "1"],
        ["2020-09-13 12:26:40", "1: sent nothing", "", "0", "1"],
    ]


def test_json_of_one_partition_has_the_names_of_the_reasons(cluster: Cluster) -> None:
    (found,) = json.loads(run("flights", "--partition", "1", "--output", "json").stdout)
    assert [one["partition"] for one in found["partitions"]] == [1]
    assert found["partition_count"] == 3
    assert [one["log_end_offset"] for one in found["logs"]] == [12, 9]
    assert found["isr_changes"][1] == {
        "changed_at_ms": 1_600_000_000_000,
        "leader_epoch": 1,
        "joined": [],
        "left": [{"broker_id": 1, "reason": "silent"}],
        "isr": [0],
    }


def test_a_partition_without_changes_and_a_broker_that_is_away_are_named(cluster: Cluster) -> None:
    cluster.changes, cluster.away = (), {1}
    result = run("flights", "--partition", "0")
    assert result.exit_code == 0
    assert "No leader has noted a change" in result.stdout
    assert "warning: broker 1 is away" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--partition", "0"), 2, "exactly one TOPIC"),
        (("flights", "delays", "--partition", "0"), 2, "exactly one TOPIC"),
        (("flights", "--partition", "7"), 1, "no partition 7; it has 3, from 0"),
        (("flights", "--partition", "-1"), 2, "--partition"),
        (("none", "--partition", "0"), 1, "none"),
    ],
)
def test_a_partition_that_cannot_be_shown_is_refused(
    arguments: tuple[str, ...], code: int, sentence: str, cluster: Cluster
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert sentence in result.output.replace("\n", " ") + str(result.exception)
