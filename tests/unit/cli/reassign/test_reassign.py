# SPDX-License-Identifier: Apache-2.0
"""`tidemark reassign` with a fake client: files, refusals, batches of reassignments, Ctrl-C, output."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.cli.reassign import commands as module
from tidemark.cli.reassign import submit
from tidemark.cli.reassign.submit import MoveFeed
from tidemark.cli.reassign.views import MoveView
from tidemark.client.aio.admin.results import AlteredReassignments, Reassignments, ReassignmentUpdate
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.reassignment.progress import (
    EndedReassignment,
    ReassignmentOutcome,
    ReassignmentPhase,
    ReassignmentProgress,
)
from tidemark.core.reassignment.request import format_reassignments
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    Refusal,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc import request_limits
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin

T2, T3 = TopicPartition("test", 2), TopicPartition("test", 3)
ONE_TWO, TWO_ONE = (BrokerId(1), BrokerId(2)), (BrokerId(2), BrokerId(1))
FILE = {"version": 1, "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 1]}]}


def moved(partition: TopicPartition = T2, *, waiting_for: str = "") -> ReassignmentProgress:
    return ReassignmentProgress(
        partition=partition,
        original=ONE_TWO,
        target=TWO_ONE,
        assigned=TWO_ONE,
        adding=(),
        removing=(),
        replicas=dict.fromkeys(TWO_ONE, ReplicaState.ONLINE),
        phase=ReassignmentPhase.COPYING,
        bytes_done=300,
        bytes_total=1000,
        rate_bytes_per_s=100,
        eta_s=7,
        throttle_bytes_per_s=500,
        waiting_for=waiting_for,
    )


class Client(FakeAdmin):
    """A fake cluster with a limit of reassignments; each list call ends the oldest."""

    def __init__(self, takes: int = 1000) -> None:
        self.takes = takes
        self.wanted: list[TopicPartition] = []
        self.asked: list[tuple[list[TopicPartition], int, bool]] = []
        self.cancelled: list[TopicPartition] = []
        self.refusals: dict[TopicPartition, TidemarkError] = {}
        self.interrupted = 0
        self.failures: list[TidemarkError] = []
        self.ends_with: TidemarkError | None = None
        self.ends_first: list[BaseException] = []
        self.originals: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        self.too_late: set[TopicPartition] = set()
        self.sizes_bytes: dict[TopicPartition, int] | None = None
        self.targets: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        self.unmoved: set[TopicPartition] = set()

    def alter_partition_reassignments(
        self,
        moves: Sequence[PartitionReassignment] = (),
        *,
        cancel: Sequence[TopicPartition] = (),
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        allow_partial: bool = False,
    ) -> AlteredReassignments:
        names = [move.partition for move in moves]
        assert not names or request_id, "a retry must be idempotent"
        self.asked.append((names, throttle_bytes_per_s, validate_only))
        outcomes = [ReassignmentOutcome(name, ONE_TWO, False, self.refusals.get(name)) for name in names]
        outcomes += [ReassignmentOutcome(name, ONE_TWO, True, self.refusals.get(name)) for name in cancel]
        if validate_only or (not allow_partial and any(one.error for one in outcomes)):
            return AlteredReassignments(outcomes, None)
        if len(self.wanted) + len(names) > self.takes:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, "too many", {"moves_max": str(self.takes)})
        if self.ends_first:
            raise self.ends_first.pop()
        self.wanted += names
        self.targets |= {move.partition: move.replicas for move in moves}
        self.cancelled += [name for name in cancel if name not in self.refusals]
        self.wanted = [name for name in self.wanted if name not in cancel]
        return AlteredReassignments(outcomes, None)

    def list_partition_reassignments(self) -> Reassignments:
        refusal = Refusal("reassign", None, TidemarkError(ErrorCode.INVALID_REQUEST, "no JSON"), at_ms=0)
        moves = [replace(moved(name), original=self.originals.get(name, ONE_TWO)) for name in self.wanted]
        return Reassignments(moves, [refusal])

    def watch_partition_reassignments(
        self, partitions: Sequence[TopicPartition], *, interval_ms: int = 0, request_id: str = ""
    ) -> Iterator[ReassignmentUpdate]:
        left = [name for name in self.wanted if name in partitions]
        yield ReassignmentUpdate([moved(name, waiting_for="the moon") for name in left], [])
        if self.interrupted:
            signal.raise_signal(self.interrupted)
        if self.failures:
            raise self.failures.pop()
        while left:
            name = left.pop(0)
            self.wanted.remove(name)
            replicas = ONE_TWO if name in self.unmoved else self.targets.get(name, TWO_ONE)
            yield ReassignmentUpdate([moved(one) for one in left], [EndedReassignment(name, replicas, self.ends_with)])
        assert partitions, "without partitions it would wait for all reassignments"
        gone = [name for name in partitions if name in self.cancelled]
        ends = [EndedReassignment(name, TWO_ONE if name in self.too_late else ONE_TWO, self.ends_with) for name in gone]
        yield ReassignmentUpdate([], ends)

    def describe_log_dirs(
        self, brokers: Sequence[int] = (), *, partitions: Sequence[TopicPartition] = ()
    ) -> list[BrokerLogDirs]:
        if self.sizes_bytes is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")
        zero = Offset(0)
        return [
            BrokerLogDirs(
                broker,
                (
                    LogDirectoryContent(
                        f"u{broker}",
                        "/data",
                        -1,
                        -1,
                        None,
                        tuple(
                            ReplicaOnDisk(
                                name, ReplicaIdentity("id", "i"), size, zero, zero, zero, broker == 1, 0, 0.0, False
                            )
                            for name, size in self.sizes_bytes.items()
                            if name in partitions
                        ),
                    ),
                ),
            )
            for broker in map(BrokerId, brokers)
        ]

    def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        partition = PartitionView(2, BrokerId(1), LeaderEpoch(0), TWO_ONE, TWO_ONE, "i")
        return [TopicView("test", "id", partitions={2: partition})]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    return made


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, ["reassign", *arguments], input=stdin)


def file_of(directory: Path, content: object = FILE) -> str:
    path = directory / "moves.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def code_of(result: Any) -> ErrorCode:
    assert isinstance(result.exception, TidemarkError), result
    return result.exception.code


def test_the_rollback_is_printed_before_the_start(client: Client, tmp_path: Path) -> None:
    result = run("execute", file_of(tmp_path), "--throttle", "50MB")
    assert result.exit_code == 0, result
    assert client.asked == [([T2], 50_000_000, True), ([T2], 50_000_000, False)]
    back = result.stdout[result.stdout.index("{") : result.stdout.index("\n}\n") + 3]
    assert json.loads(back)["partitions"] == [{"topic": "test", "partition": 2, "replicas": [1, 2]}]
    assert result.stdout.index("test:2 1,2 -> 2,1 copying, waits: the moon") > result.stdout.index("replicas")
    assert result.stdout.endswith("test:2 is on 2,1\n1 reassignment completed\n")


def test_partitions_with_the_wanted_replicas_are_skipped(client: Client, tmp_path: Path) -> None:
    there = {"version": 1, "partitions": [{"topic": "test", "partition": 2, "replicas": [1, 2]}]}
    result = run("execute", file_of(tmp_path, there))
    assert result.exit_code == 0
    assert result.stdout.endswith("1 partition had these replicas already\n0 reassignments completed\n")
    assert [validate_only for _, _, validate_only in client.asked] == [True]
    assert json.loads(run("execute", file_of(tmp_path, there), "-o", "json").stdout)["begun"] is False


def test_json_output_is_one_document(client: Client, tmp_path: Path) -> None:
    shown = json.loads(run("execute", file_of(tmp_path), "-o", "json").stdout)
    assert shown["begun"] is True
    assert shown["rollback"]["partitions"] == [{"topic": "test", "partition": 2, "replicas": [1, 2]}]
    assert [(one["partition"], one["replicas"], one["error"]) for one in shown["ended"]] == [(2, [2, 1], None)]
    listed = json.loads(run("list", "-o", "json").stdout)
    assert (listed["moves"], listed["refusals"][0]["error"]["code"]) == ([], "INVALID_REQUEST")


def test_a_file_may_come_from_standard_input(client: Client) -> None:
    assert run("execute", "-", stdin=json.dumps(FILE)).exit_code == 0
    assert client.wanted == []


def test_nothing_starts_if_one_is_refused(client: Client, tmp_path: Path) -> None:
    client.refusals[T2] = TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "600 bytes/s come in")
    assert code_of(run("execute", file_of(tmp_path))) is ErrorCode.THROTTLE_TOO_LOW
    assert [validate_only for _, _, validate_only in client.asked] == [True]


def test_a_dry_run_starts_nothing(client: Client, tmp_path: Path) -> None:
    result = run("execute", file_of(tmp_path), "--dry-run")
    assert (result.exit_code, client.wanted) == (0, [])
    assert "1,2" in result.stdout
    assert json.loads(run("execute", file_of(tmp_path), "--dry-run", "-o", "json").stdout)["begun"] is False


def test_without_a_plan_there_is_no_table(client: Client, tmp_path: Path) -> None:
    client.refusals[T2] = TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no topic test")
    for more in ((), ("--dry-run",)):
        result = run("execute", file_of(tmp_path), *more)
        assert (code_of(result), result.stdout) == (ErrorCode.UNKNOWN_TOPIC, "")


GROWN = {"version": 1, "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 3, 4]}]}
"""Two new replicas; broker 1 leads and sends both."""


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--no-wait", "-o", "json")])
def test_a_throttle_that_makes_a_copy_long_is_warned_of_with_the_time(
    client: Client, tmp_path: Path, more: tuple[str, ...]
) -> None:
    client.sizes_bytes = {T2: 30_720_000}
    result = run("execute", file_of(tmp_path, GROWN), "--throttle", "1KB", *more)
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: the copy takes 17 h 04 min or longer: broker 1 has 61.4 MB to send, and the throttle is 1.0 kB/s; "
        "a higher --throttle makes it shorter\n"
    )


@pytest.mark.parametrize(
    ("content", "throttle", "size_bytes"),
    [(GROWN, ("--throttle", "1MB"), 30_720_000), (GROWN, (), 30_720_000), (FILE, ("--throttle", "1KB"), 30_720_000),
     (GROWN, ("--throttle", "1KB"), None)],
    ids=["fast", "no throttle", "nothing to copy", "size unknown"],
)  # fmt: skip
def test_other_copies_are_not_warned_of(
    client: Client, tmp_path: Path, content: object, throttle: tuple[str, ...], size_bytes: int | None
) -> None:
    client.sizes_bytes = None if size_bytes is None else {T2: size_bytes}
    result = run("execute", file_of(tmp_path, content), *throttle)
    assert (result.exit_code, result.stderr) == (0, "")


def test_no_wait_names_the_list_command(client: Client, tmp_path: Path) -> None:
    result = run("execute", file_of(tmp_path), "--no-wait")
    assert result.stdout.endswith("1 reassignment started; tidemark reassign list shows their progress\n")
    assert client.wanted == [T2]


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_ends_the_wait_but_not_the_reassignment(client: Client, tmp_path: Path) -> None:
    client.interrupted = signal.SIGINT
    result = run("execute", file_of(tmp_path))
    assert result.exit_code == 130
    assert "the reassignment continues in the cluster; tidemark reassign list shows its progress" in result.stderr
    assert (client.wanted, client.cancelled) == ([T2], [])


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_rollback_is_in_the_json_of_a_wait_that_ends_early(
    client: Client, tmp_path: Path, number: signal.Signals
) -> None:
    """Regression: the reassignment ran, and its rollback was lost."""
    client.interrupted = number
    result = run("execute", file_of(tmp_path), "-o", "json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert (found["begun"], found["ended"]) == (True, [])
    assert found["rollback"]["partitions"] == [{"topic": "test", "partition": 2, "replicas": [1, 2]}]
    client.interrupted, client.wanted = 0, []
    client.failures = [TidemarkError(ErrorCode.INTERNAL, "broken")]
    result = run("execute", file_of(tmp_path), "-o", "json")
    assert code_of(result) is ErrorCode.INTERNAL
    assert json.loads(result.stdout)["rollback"] == found["rollback"]


@pytest.mark.parametrize(
    ("ends", "status"), [(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), 1), (KeyboardInterrupt(), 130)]
)
def test_the_rollback_is_in_the_json_of_a_start_without_outcome(
    client: Client, tmp_path: Path, ends: BaseException, status: int
) -> None:
    client.ends_first = [ends]
    result = run("execute", file_of(tmp_path), "-o", "json")
    assert result.exit_code == status
    (rollback,) = json.loads(result.stdout)["rollback"]["partitions"]
    assert rollback == {"topic": "test", "partition": 2, "replicas": [1, 2]}


def test_a_start_that_is_refused_has_no_json(client: Client, tmp_path: Path) -> None:
    client.ends_first = [TidemarkError(ErrorCode.INTERNAL, "broken")]
    result = run("execute", file_of(tmp_path), "-o", "json")
    assert code_of(result) is ErrorCode.INTERNAL
    assert result.stdout == ""


def test_a_reassignment_that_fails_is_an_error(client: Client, tmp_path: Path) -> None:
    client.ends_with = TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "cancelled by another client")
    assert code_of(run("execute", file_of(tmp_path))) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{", ErrorCode.INVALID_REQUEST),
        ({"version": 2, "partitions": []}, ErrorCode.UNSUPPORTED_VERSION),
        ({"version": 1, "partitions": []}, ErrorCode.INVALID_REQUEST),
        (
            {"version": 1, "partitions": [{"topic": "a/b", "partition": 0, "replicas": [1]}]},
            ErrorCode.INVALID_TOPIC_NAME,
        ),
        ({"version": 1, "partitions": FILE["partitions"] * 2}, ErrorCode.DUPLICATE_PARTITION),  # type: ignore[operator]
    ],
)
def test_a_malformed_file_sends_no_request(client: Client, tmp_path: Path, content: object, code: ErrorCode) -> None:
    for command in ("execute", "verify"):
        assert code_of(run(command, file_of(tmp_path, content))) is code
    assert client.asked == []


def test_one_request_has_one_throttle(client: Client, tmp_path: Path) -> None:
    entries = [
        {"topic": "t", "partition": index, "replicas": [1], "throttle_bytes_per_s": index + 1} for index in range(2)
    ]
    file = file_of(tmp_path, {"version": 1, "partitions": entries})
    assert code_of(run("execute", file)) is ErrorCode.INVALID_REQUEST
    assert client.asked == []
    assert run("execute", file, "--throttle", "7").exit_code == 0
    assert {throttle for _, throttle, _ in client.asked} == {7}
    assert run("execute", file_of(tmp_path, {"version": 1, "partitions": entries[:1]})).exit_code == 0
    assert client.asked[-1][1] == 1


def test_a_file_that_cannot_be_read_is_one_line(client: Client, tmp_path: Path) -> None:
    result = run("execute", str(tmp_path / "none.json"))
    assert code_of(result) is ErrorCode.INVALID_REQUEST
    assert "none.json cannot be read: No such file" in str(result.exception)


def test_bad_usage_ends_with_status_2(client: Client, tmp_path: Path) -> None:
    for arguments in (
        ("execute", file_of(tmp_path), "--throttle", "fast"),
        ("execute",),
        ("cancel",),
        ("cancel", "test:2", "--all"),
        ("cancel", "test:x"),
        ("list", "test:"),
        ("generate", "test", "--brokers", "one"),
    ):
        assert run(*arguments).exit_code == 2, arguments
    assert client.asked == []


def test_verify_distinguishes_done_running_and_different(client: Client, tmp_path: Path) -> None:
    assert run("verify", file_of(tmp_path)).exit_code == 0
    other = {"version": 1, "partitions": [{"topic": "test", "partition": 2, "replicas": [1, 0]}]}
    result = run("verify", file_of(tmp_path, other), "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)[0]["state"]) == (1, "different")
    client.wanted = [T2]
    result = run("verify", file_of(tmp_path), "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)[0]["state"]) == (1, "copying")


def test_reassignments_are_cancelled_by_partition_topic_or_all(client: Client) -> None:
    for arguments in (("test:2",), ("test",), ("--all",)):
        client.wanted = [T2]
        client.cancelled = []
        result = run("cancel", *arguments, "--no-wait")
        assert (result.exit_code, client.cancelled) == (0, [T2])
    client.wanted = []
    assert code_of(run("cancel", "--all")) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def ended_before_it_was_given_up(partition: TopicPartition) -> TidemarkError:
    where = {"topic": partition.topic, "partition": str(partition.partition)}
    return TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "nothing to give up", where)


@pytest.mark.parametrize("arguments", [("--all",), ("test",), ("test", "test:2")])
@pytest.mark.parametrize("code", [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC])
def test_a_reassignment_that_ends_before_its_cancellation_does_not_block_others(
    client: Client, arguments: tuple[str, ...], code: ErrorCode
) -> None:
    client.wanted = [T2, T3]
    client.refusals[T3] = TidemarkError(code, "nothing to give up")
    result = run("cancel", *arguments, "--no-wait")
    assert (result.exit_code, client.cancelled) == (0, [T2])
    assert result.stdout == "1 reassignment to be cancelled\n1 reassignment ended before: test:3\n"
    client.wanted = [T2, T3]
    shown = json.loads(run("cancel", *arguments, "--no-wait", "-o", "json").stdout)
    assert shown == {"cancelled": ["test:2"], "ended": [], "ended_meanwhile": ["test:3"]}


def test_if_all_ended_before_the_cancellation_there_is_no_wait(client: Client) -> None:
    client.wanted = [T2]
    client.refusals[T2] = ended_before_it_was_given_up(T2)
    result = run("cancel", "--all")
    assert (result.exit_code, client.cancelled) == (0, [])
    assert result.stdout == "0 reassignments cancelled\n1 reassignment ended before: test:2\n"


def test_a_reassignment_of_an_unknown_topic_has_not_ended(client: Client) -> None:
    client.wanted, client.originals = [T2, T3], {T3: ()}
    client.refusals[T3] = TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is none")
    result = run("cancel", "--all")
    assert code_of(result) is ErrorCode.UNKNOWN_TOPIC
    assert (client.cancelled, result.stdout) == ([T2], "test:2 is on 1,2\n1 reassignment cancelled\n")


def test_a_reassignment_that_ends_during_the_cancel_request_does_not_block_others(client: Client) -> None:
    client.wanted = [T2, T3]
    client.refusals[T3] = ended_before_it_was_given_up(T3)
    client.ends_first = [client.refusals[T3]] * 2
    assert run("cancel", "--all", "--no-wait").exit_code == 0
    assert client.cancelled == [T2]
    client.wanted, client.ends_first = [T2, T3], [client.refusals[T3]] * 100
    assert code_of(run("cancel", "--all", "--no-wait")) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    client.wanted, client.ends_first = [T2, T3], [TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no")] * 100
    assert code_of(run("cancel", "--all", "--no-wait")) is ErrorCode.COORDINATION_UNAVAILABLE
    assert len(client.ends_first) == 99


@pytest.mark.parametrize("error", [None, ended_before_it_was_given_up(T2)])
def test_a_reassignment_that_completes_despite_its_cancellation_ended_before(
    client: Client, error: TidemarkError | None
) -> None:
    client.wanted, client.too_late, client.ends_with = [T2], {T2}, error
    result = run("cancel", "--all")
    assert result.exit_code == 0
    assert result.stdout.endswith("0 reassignments cancelled\n1 reassignment ended before: test:2\n")


def test_a_refused_named_partition_prevents_all_cancellations(client: Client) -> None:
    client.wanted = [T2, TopicPartition("other", 0)]
    client.refusals[T3] = ended_before_it_was_given_up(T3)
    assert code_of(run("cancel", "other", "test:3")) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert client.cancelled == []
    client.wanted, client.ends_with = [T2], ended_before_it_was_given_up(T2)
    assert code_of(run("cancel", "test:2")) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_the_list_shows_progress_and_refusals(client: Client) -> None:
    client.wanted = [T2]
    shown = run("list").stdout
    for word in ("test:2", "1,2", "2,1", "copying", "30% of 1.0 kB", "100 B/s", "7 s", "500 B/s", "no JSON"):
        assert word in shown
    named = run("list", "test:2").stdout
    for word in ("assigned", "kept", "online", "unknown"):
        assert word in named
    assert run("list", "other").stdout.startswith("no reassignment is requested or running\n")


def many(count: int) -> list[PartitionReassignment]:
    return [PartitionReassignment(TopicPartition("t", index), TWO_ONE) for index in range(count)]


def test_reassignments_that_do_not_fit_start_as_earlier_ones_end() -> None:
    client = Client(takes=4)
    feed = MoveFeed(client, many(10), 0, "r")  # type: ignore[arg-type]
    assert feed.begin() == 6
    with MoveView(silent=True) as view:
        ended = feed.follow(view)
    assert sorted(one.partition.partition for one in ended) == list(range(10))
    assert client.wanted == []
    sizes = [len(names) for names, _, _ in client.asked]
    assert sizes[0] == 10
    assert len([size for size in sizes if size <= 4]) > 3, "pipelined, not batch after batch"


def test_a_feed_of_more_reassignments_than_a_request_may_name_sends_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 4)
    client = Client()
    assert MoveFeed(client, many(10), 0, "r").begin() == 0  # type: ignore[arg-type]
    assert [len(names) for names, _, _ in client.asked] == [4, 4, 2]


def test_a_file_of_more_partitions_than_a_request_may_name_is_checked_in_several(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A refusal in the last of them prevents all reassignments."""
    monkeypatch.setattr(request_limits, "NAMED_MAX", 2)
    file = tmp_path / "moves.json"
    file.write_text(format_reassignments(many(3)))
    last = TopicPartition("t", 2)
    client.refusals[last] = TidemarkError(ErrorCode.REASSIGNMENT_IN_PROGRESS, "t-2 is being reassigned already")
    assert code_of(run("execute", str(file))) is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert [(len(names), validate_only) for names, _, validate_only in client.asked] == [(2, True), (1, True)]
    client.refusals.clear()
    assert run("execute", str(file)).exit_code == 0
    assert client.wanted == []


def test_if_none_fits_the_refusal_has_the_limit() -> None:
    client = Client(takes=1)
    client.wanted = [T2]
    with pytest.raises(TidemarkError) as refused:
        MoveFeed(client, many(2), 0, "r").begin()  # type: ignore[arg-type]
    assert refused.value.metadata["moves_max"] == "1"


def test_requests_are_retried_during_an_outage_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(submit.time, "sleep", pauses.append)
    client = Client()
    client.failures = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away")]
    feed = MoveFeed(client, many(2), 0, "r")  # type: ignore[arg-type]
    with MoveView(silent=True) as view:
        assert len(feed.follow(view)) == 2
    assert len(pauses) == 1
    client.failures = [TidemarkError(ErrorCode.INTERNAL, "broken")]
    with pytest.raises(TidemarkError), MoveView(silent=True) as view:
        MoveFeed(client, many(2), 0, "r").follow(view)  # type: ignore[arg-type]


def test_waiting_reassignments_start_after_an_outage_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the command ended, and the other reassignments never started."""
    pauses: list[float] = []
    monkeypatch.setattr(submit.time, "sleep", pauses.append)
    client = Client(takes=4)
    feed = MoveFeed(client, many(10), 0, "r")  # type: ignore[arg-type]
    assert feed.begin() == 6
    client.ends_first = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away")]
    with MoveView(silent=True) as view:
        assert len(feed.follow(view)) == 10
    assert len(pauses) == 1
    client.ends_first = [TidemarkError(ErrorCode.INTERNAL, "broken")]
    with pytest.raises(TidemarkError), MoveView(silent=True) as view:
        MoveFeed(client, many(2), 0, "r").follow(view)  # type: ignore[arg-type]


def test_a_reassignment_that_ends_with_other_replicas_is_an_error_without_a_kept_refusal() -> None:
    """The service keeps the latest 100 refusals only."""
    client = Client()
    client.unmoved = {T2}
    moves = [PartitionReassignment(T2, TWO_ONE), PartitionReassignment(T3, TWO_ONE)]
    with MoveView(silent=True) as view:
        ended = MoveFeed(client, moves, 0, "r").follow(view)  # type: ignore[arg-type]
    assert [(one.partition, one.error and one.error.code) for one in ended] == [
        (T2, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (T3, None),
    ]


def test_without_a_terminal_each_change_is_a_line_with_regular_summaries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    with MoveView(now_s=lambda: now_s) as view:
        view.show([moved()], [])
        view.show([moved()], [])
        now_s = 11.0
        view.show([moved(waiting_for="broker 2")], [], "; more")
        view.show([], [EndedReassignment(T2, TWO_ONE)])
    assert capsys.readouterr().out.splitlines() == [
        "test:2 1,2 -> 2,1 copying",
        "1 partition left, 30% of 1.0 kB copied, 100 B/s, about 7 s to go",
        "test:2 1,2 -> 2,1 copying, waits: broker 2",
        "1 partition left, 30% of 1.0 kB copied, 100 B/s, about 7 s to go; more",
        "test:2 is on 2,1",
    ]


def test_on_a_terminal_the_view_is_a_table_with_reasons_for_waiting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with MoveView() as view:
        view.show([moved(waiting_for="the moon")], [EndedReassignment(TopicPartition("done", 0), TWO_ONE)])
    out = capsys.readouterr().out
    for word in ("done:0 is on 2,1", "test:2", "copying", "30% of 1.0 kB", "the moon", "1 partition left"):
        assert word in out


def test_many_reassignments_are_shown_as_a_summary_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    several = [moved(TopicPartition("t", index), waiting_for="the moon") for index in range(60)]
    with MoveView(now_s=lambda: 0.0) as view:
        view.show(several, [])
        view.show(several[:59], [EndedReassignment(TopicPartition("t", 59), TWO_ONE)])
    assert capsys.readouterr().out.splitlines() == [
        "60 partitions left, 30% of 60.0 kB copied, 6.0 kB/s, about 7 s to go",
        "  60 partitions: the moon",
    ]
