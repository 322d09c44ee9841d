# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster` and `tidemark topic` commands that change the cluster, with a fake client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import typer
from tidemark.cli.app import app
from tidemark.cli.cluster import commands
from tidemark.cli.common import options
from tidemark.cli.common.options import parse_brokers
from tidemark.client.aio.admin.results import (
    AlteredReassignments,
    ClusterDescription,
    PlannedMoves,
    ReassignmentUpdate,
    RemovalProgress,
    RemovedPartitions,
)
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.planning.broker_plans import BrokerLoad, Plan
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin

T0 = TopicPartition("t", 0)
FROM, TO = (BrokerId(1), BrokerId(2)), (BrokerId(0), BrokerId(2))
LOADS = {BrokerId(0): BrokerLoad(0, 0, 0), BrokerId(1): BrokerLoad(1, 1, 1500)}
AFTER = {BrokerId(0): BrokerLoad(1, 1, 1500), BrokerId(1): BrokerLoad(0, 0, 0)}
PLANNED = PlannedMoves(
    Plan((PartitionReassignment(T0, TO),), (PartitionReassignment(T0, FROM),), 1, 1500, LOADS, AFTER), 0
)
NOTHING = PlannedMoves(Plan((), (), 0, 0, LOADS, LOADS), 0)


class Client(FakeAdmin):
    """A fake cluster that executes requests immediately."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.live = [0, 1]
        self.planned = PLANNED
        self.failures: list[TidemarkError] = []
        self.size_bytes = 0

    def describe_cluster(self) -> ClusterDescription:
        if self.failures:
            raise self.failures.pop()
        brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), "h", 1) for one in self.live}
        return ClusterDescription(
            ClusterView("c", BrokerId(100), admin_address="a", brokers=brokers), 0, 0, 0, 0, 0, (BrokerId(1),)
        )

    def add_brokers(self, brokers: Sequence[int], *, validate_only: bool = False, **_: object) -> PlannedMoves:
        if not validate_only:
            self.did.append(f"add {list(brokers)}")
        return self.planned._replace(begun=0 if validate_only else len(self.planned.plan.moves))

    def alter_partition_reassignments(
        self, moves: Sequence[PartitionReassignment], **_: object
    ) -> AlteredReassignments:
        return AlteredReassignments([ReassignmentOutcome(move.partition) for move in moves], None)

    def watch_partition_reassignments(
        self, partitions: Sequence[TopicPartition], **_: object
    ) -> Iterator[ReassignmentUpdate]:
        yield ReassignmentUpdate([], [EndedReassignment(one, TO) for one in partitions])

    def remove_brokers(
        self, brokers: Sequence[int], *, validate_only: bool = False, **_: object
    ) -> Iterator[RemovalProgress]:
        yield RemovalProgress([], 1, self.planned, ())
        if validate_only:
            return
        self.did.append(f"remove {list(brokers)}")
        if self.failures:
            raise self.failures.pop()
        yield RemovalProgress([], 1, None, ())
        yield RemovalProgress([], 0, None, tuple(BrokerId(one) for one in brokers))

    def describe_log_dirs(
        self, brokers: Sequence[int] = (), *, partitions: Sequence[TopicPartition] = ()
    ) -> list[BrokerLogDirs]:
        zero, identity = Offset(0), ReplicaIdentity("id", "i")
        leader = ReplicaOnDisk(T0, identity, self.size_bytes, zero, zero, zero, True, 0, 0.0, False)
        return [BrokerLogDirs(FROM[0], (LogDirectoryContent("u", "/data", -1, -1, None, (leader,)),))]

    def create_partitions(
        self, topic: str, total: int, *, assignments: Sequence[Sequence[int]] = (), validate_only: bool = False
    ) -> TopicView:
        self.did.append(f"create {total} {list(map(list, assignments))}{' dry' if validate_only else ''}")
        return view(topic, total)

    def delete_partitions(
        self, topic: str, *, total_count: int, force: bool = False, validate_only: bool = False
    ) -> RemovedPartitions:
        if not validate_only:
            self.did.append(f"delete to {total_count}{' by force' if force else ''}")
        return RemovedPartitions(view(topic, total_count), (total_count, total_count + 1))


def view(topic: str, count: int) -> TopicView:
    partitions = {index: PartitionView(index, BrokerId(0), LeaderEpoch(0), TO, TO, "i") for index in range(count)}
    return TopicView(topic, "id", partitions=partitions)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: None)
    return made


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def code_of(result: Any) -> ErrorCode:
    assert isinstance(result.exception, TidemarkError), result
    return result.exception.code


def test_broker_ids_are_separated_by_spaces_or_commas() -> None:
    assert parse_brokers(["3", "4,5"]) == [3, 4, 5]
    for bad in (["x"], ["3", "3"], ["-1"], ["3,"], [], ["99999999999"], ["٣"]):
        with pytest.raises(typer.BadParameter):
            parse_brokers(bad)


@pytest.mark.parametrize("command", ["add-brokers", "remove-brokers"])
def test_the_plan_comes_first_and_without_a_terminal_nothing_changes(client: Client, command: str) -> None:
    result = run("cluster", command, "1")
    assert code_of(result) is ErrorCode.INVALID_REQUEST
    assert "cost: 1 reassignment, 1 replica to copy, 1.5 kB" in result.stdout
    assert "1,2" in result.stdout
    assert client.did == []


@pytest.mark.parametrize("command", ["add-brokers", "remove-brokers"])
def test_dry_run_and_json_ask_no_question(client: Client, command: str) -> None:
    assert run("cluster", command, "1", "--dry-run").exit_code == 0
    printed = json.loads(run("cluster", command, "1", "--dry-run", "-o", "json").stdout)
    assert (printed["begun"], printed["moved_bytes"]) == (False, 1500)
    assert printed["rollback"]["partitions"] == [{"topic": "t", "partition": 0, "replicas": [1, 2]}]
    assert run("cluster", command, "1", "-o", "json").exit_code == 2
    assert client.did == []


def test_brokers_are_added_and_removed(client: Client) -> None:
    assert run("cluster", "add-brokers", "3", "4", "--yes").stdout.endswith("broker 3,4 have their share\n")
    added = json.loads(run("cluster", "add-brokers", "3", "--yes", "-o", "json").stdout)
    assert [(one["topic"], one["replicas"]) for one in added["ended"]] == [("t", [0, 2])]
    client.planned = NOTHING
    assert "no reassignment is needed" in run("cluster", "add-brokers", "3").stdout, "without a question"
    removed = run("cluster", "remove-brokers", "1", "--yes")
    assert removed.stdout.endswith("broker 1 is removed and holds nothing: stop it now\n")
    assert client.did == ["add [3, 4]", "add [3]", "add [3]", "remove [1]"]


@pytest.mark.parametrize("command", ["add-brokers", "remove-brokers"])
def test_a_throttle_that_makes_the_copies_long_is_warned_of_before_the_question(client: Client, command: str) -> None:
    client.size_bytes = 3_600_000
    result = run("cluster", command, "1", "--throttle", "1KB")
    assert code_of(result) is ErrorCode.INVALID_REQUEST
    assert result.stderr.startswith("warning: the copy takes 1 h 00 min or longer: broker 1 has 3.6 MB to send")
    assert run("cluster", command, "1", "--throttle", "2KB", "--dry-run").stderr == ""


def test_a_removal_continues_after_an_outage_of_the_service(client: Client) -> None:
    client.failures = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away")]
    assert run("cluster", "remove-brokers", "1", "--yes").exit_code == 0
    assert client.did == ["remove [1]", "remove [1]"]
    client.failures = [TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "600 come in")]
    assert code_of(run("cluster", "remove-brokers", "1", "--yes")) is ErrorCode.THROTTLE_TOO_LOW


def test_cluster_describe_has_in_json_each_column_of_its_table(client: Client) -> None:
    shown = json.loads(run("cluster", "describe", "-o", "json").stdout)
    assert shown["brokers"][0] == {"broker_id": 0, "host": "h", "port": 1, "rack": "", "broker_epoch": -1}


def test_cluster_create_waits_and_reports_missing_brokers(client: Client) -> None:
    result = run("cluster", "create", "--brokers", "0,1,2", "--timeout", "0")
    assert code_of(result) is ErrorCode.REQUEST_TIMED_OUT
    assert result.stdout == "not live: broker 2\n"
    client.live = [0, 1, 2]
    client.failures = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is live yet")]
    result = run("cluster", "create", "--brokers", "0,1,2")
    assert result.stdout == "no broker is live yet\ncluster c is live with brokers 0,1,2\n"
    assert json.loads(run("cluster", "create", "--brokers", "2,1,0", "-o", "json").stdout)["brokers"] == [0, 1, 2]
    client.live = [0, 1, 2, 3]
    result = run("cluster", "create", "--brokers", "0,1,2", "--timeout", "0")
    assert result.stdout == "live, but not named: broker 3\n"


def test_partitions_are_added_on_given_or_chosen_brokers(client: Client) -> None:
    assert run("topic", "add-partitions", "t", "--total", "3").stdout == "topic t has 3 partitions\n"
    run("topic", "add-partitions", "t", "--total", "3", "--replicas", "1,2", "--replicas", "2,0", "--dry-run")
    assert client.did == ["create 3 []", "create 3 [[1, 2], [2, 0]] dry"]
    for bad in ((), ("--total", "many"), ("--total", "3", "--replicas", "1,1")):
        assert run("topic", "add-partitions", "t", *bad).exit_code == 2


def test_records_are_not_deleted_without_confirmation(client: Client) -> None:
    result = run("topic", "remove-partitions", "t", "--total", "2", "--force")
    assert code_of(result) is ErrorCode.INVALID_REQUEST
    assert client.did == []
    assert run("topic", "remove-partitions", "t", "--total", "2", "--force", "-o", "json").exit_code == 2
    assert run("topic", "remove-partitions", "t", "--total", "2", "--dry-run").stdout == (
        "2 partitions would be removed from topic t (2 to 3)\n"
    )
    assert run("topic", "remove-partitions", "t", "--total", "2").stdout == (
        "2 partitions removed from topic t (2 to 3)\n"
    )
    removed = json.loads(
        run("topic", "remove-partitions", "t", "--total", "2", "--force", "--yes", "-o", "json").stdout
    )
    assert removed["removed"] == [2, 3]
    assert client.did == ["delete to 2", "delete to 2 by force"]


@pytest.mark.parametrize(
    "command",
    [
        ("cluster", "create"),
        ("cluster", "add-brokers"),
        ("cluster", "remove-brokers"),
        ("cluster", "safe-to-restart"),
        ("topic", "add-partitions"),
        ("topic", "remove-partitions"),
        ("reassign",),
        ("reassign", "generate"),
        ("reassign", "execute"),
        ("reassign", "verify"),
        ("reassign", "list"),
        ("reassign", "cancel"),
    ],
)
def test_help_has_examples(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"tidemark {' '.join(command)}" in result.stdout.partition("Options:")[0]
