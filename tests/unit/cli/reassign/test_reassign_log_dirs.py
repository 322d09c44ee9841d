# SPDX-License-Identifier: Apache-2.0
"""`tidemark reassign` of a file with log directories: rollback, wait, verify (M3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tidemark.cli.common import options
from tidemark.cli.reassign import log_dirs
from tidemark.cli.reassign.log_dirs import PlaceFollower
from tidemark.client.aio.admin.results import PlannedMoves
from tidemark.core.planning.broker_plans import Plan
from tidemark.core.reassignment.request import parse_reassignments
from tidemark.model import (
    BrokerId,
    ErrorCode,
    Offset,
    PartitionReassignment,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk

from tests.unit.cli.reassign.test_reassign import T2, Client, code_of, file_of, run

ZERO = Offset(0)
FILE = {
    "version": 1,
    "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 1], "log_dirs": ["/data/b", "any"]}],
}


def disks(broker: int, *, a: int | None = None, b: int | None = None, copy: int | None = None) -> BrokerLogDirs:
    """A broker with the replica in /data/a or /data/b, and maybe a copy that moves to the latter."""
    held = {"/data/a": [_replica(a)] if a is not None else [], "/data/b": [_replica(b)] if b is not None else []}
    held["/data/b"] += [_replica(copy, future=True)] if copy is not None else []
    return BrokerLogDirs(
        BrokerId(broker),
        tuple(LogDirectoryContent(path[-1], path, 9, 9, None, tuple(here)) for path, here in held.items()),
    )


def _replica(size_bytes: int, *, future: bool = False) -> ReplicaOnDisk:
    identity = ReplicaIdentity("id", "i")
    return ReplicaOnDisk(T2, identity, size_bytes, ZERO, ZERO, ZERO, False, 0, 0.0, False, future=future)


AWAY = BrokerLogDirs(BrokerId(2), error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2 is not live"))


class Disks(Client):
    """A fake cluster with a list of answers of broker 2; the last answer repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = [disks(2, a=1000)]

    def describe_log_dirs(
        self, brokers: Sequence[int] = (), *, topics: Sequence[str] = (), partitions: Sequence[TopicPartition] = ()
    ) -> list[BrokerLogDirs]:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return [one for one in (disks(1, a=1000), look) if one.broker_id in brokers]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Disks:
    made = Disks()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    monkeypatch.setattr(log_dirs, "PlaceFollower", lambda asked: PlaceFollower(asked, lambda seconds: None))
    return made


def test_the_rollback_has_the_current_directories(cluster: Disks, tmp_path: Path) -> None:
    cluster.looks = [disks(2, a=1000), disks(2, b=1000)]
    result = run("execute", file_of(tmp_path, FILE))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    start, end = lines.index("{"), lines.index("}")
    ((move,), errors) = parse_reassignments("\n".join(lines[start : end + 1]))
    assert not errors
    assert (move.replicas, move.log_dirs) == ((1, 2), ("/data/a", "/data/a"))
    assert "on 2 in /data/b" in result.stdout


def test_execute_waits_until_the_replica_is_in_its_directory(cluster: Disks, tmp_path: Path) -> None:
    cluster.looks = [disks(2, a=1000), disks(2, a=1000), disks(2, a=1000, copy=500), disks(2, b=1000)]
    result = run("execute", file_of(tmp_path, FILE), "--output", "json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert [(one["broker_id"], one["state"], one["log_dir"]) for one in shown["directories"]] == [
        (2, "there", "/data/b")
    ]
    assert shown["rollback"]["partitions"][0]["log_dirs"] == ["/data/a", "/data/a"]


def test_a_directory_that_is_not_reached_is_an_error(cluster: Disks, tmp_path: Path) -> None:
    cluster.looks = [disks(2, a=1000), disks(2, a=1000, copy=500), disks(2, a=1000)]
    result = run("execute", file_of(tmp_path, FILE))
    assert code_of(result) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert "test:2 stays on broker 2 in /data/a" in result.stdout


def test_a_failed_reassignment_has_no_wait_for_directories(cluster: Disks, tmp_path: Path) -> None:
    cluster.ends_with = TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "given up")
    assert code_of(run("execute", file_of(tmp_path, FILE))) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_change_of_only_directories_is_started(cluster: Disks, tmp_path: Path) -> None:
    same = {**FILE, "partitions": [{**FILE["partitions"][0], "replicas": [1, 2], "log_dirs": ["any", "b"]}]}  # type: ignore[index, dict-item]
    cluster.looks = [disks(2, a=1000), disks(2, b=1000)]
    result = run("execute", file_of(tmp_path, same))
    assert result.exit_code == 0
    assert [names for names, _, checked in cluster.asked if not checked] == [[T2]]


def test_a_proposal_has_an_entry_for_each_directory(cluster: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PlannedMoves(Plan((PartitionReassignment(T2, (BrokerId(2), BrokerId(1))),), (), 0, 0, {}, {}), 0)
    monkeypatch.setattr(cluster, "plan_brokers", lambda **asked: plan, raising=False)
    ((move,), errors) = parse_reassignments(run("generate", "test").stdout)
    assert not errors
    assert move.log_dirs == ("any", "any")


def test_without_directories_brokers_get_no_request(cluster: Disks, tmp_path: Path) -> None:
    cluster.looks = []
    anywhere = {"version": 1, "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 1]}]}
    assert run("execute", file_of(tmp_path, anywhere)).exit_code == 0
    assert run("verify", file_of(tmp_path, anywhere)).exit_code == 0


@pytest.mark.parametrize(
    ("look", "state", "of_replica", "percent"),
    [
        (disks(2, b=1000), "done", "there", None),
        (disks(2, a=1000, copy=420), "copying directories", "copying", 42),
        (disks(2, a=1000), "other directories", "elsewhere", None),
        (AWAY, "directories unknown", "unknown", None),
    ],
)
def test_verify_reports_the_directory_state_of_each_replica(
    cluster: Disks, tmp_path: Path, look: BrokerLogDirs, state: str, of_replica: str, percent: int | None
) -> None:
    cluster.looks = [look]
    result: Any = run("verify", file_of(tmp_path, FILE), "--output", "json")
    (shown,) = json.loads(result.stdout)
    assert result.exit_code == (0 if state == "done" else 1)
    assert shown["state"] == state
    assert [(one["broker_id"], one["state"], one["percent"]) for one in shown["log_dirs"]] == [(2, of_replica, percent)]
    text = run("verify", file_of(tmp_path, FILE))
    assert state in text.stdout
    shown = f"{of_replica}, {percent}%" if percent is not None else of_replica
    assert shown in text.stdout
