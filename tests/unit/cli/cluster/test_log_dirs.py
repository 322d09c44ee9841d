# SPDX-License-Identifier: Apache-2.0
"""`tidemark log-dirs` with a fake client: tables, JSON, requests, progress, ends of moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.cli.reassign import log_dirs
from tidemark.cli.reassign.log_dirs import PlaceFollower, PlaceState, find
from tidemark.cli.reassign.views import MoveView
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir, ReplicaLogDirOutcome
from tidemark.model import BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk
from typer.testing import CliRunner

from tests.refusals import raises_code
from tests.unit.cli.fake_admin import FakeAdmin

P = TopicPartition("orders", 0)
ONE = BrokerId(1)
PLACE = ReplicaLogDir(ONE, P, "/data/b/")


def replica(size_bytes: int, *, future: bool = False, offline: bool = False, leader: bool = False) -> ReplicaOnDisk:
    zero = Offset(0)
    return ReplicaOnDisk(
        P, ReplicaIdentity("id", "i"), size_bytes, zero, zero, zero, leader, 12, 0.0, offline, future=future
    )


def disks(
    a: Sequence[ReplicaOnDisk] = (), b: Sequence[ReplicaOnDisk] = (), *, b_error: TidemarkError | None = None
) -> BrokerLogDirs:
    """Broker 1 with its directories /data/a and /data/b."""
    return BrokerLogDirs(
        ONE,
        (
            LogDirectoryContent("ua", "/data/a", 1_000_000, 400_000, None, tuple(a)),
            LogDirectoryContent("ub", "/data/b", -1, -1, b_error, tuple(b)),
        ),
    )


BEFORE, AFTER = disks(a=[replica(1000, leader=True)]), disks(b=[replica(1000, leader=True)])
AWAY = BrokerLogDirs(ONE, error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 1 is not live"))


def copying(done: int) -> BrokerLogDirs:
    return disks(a=[replica(1000, leader=True)], b=[replica(done, future=True)])


class Client(FakeAdmin):
    """A fake cluster with a list of answers; the last answer repeats."""

    def __init__(self, *looks: BrokerLogDirs, others: Sequence[BrokerLogDirs] = ()) -> None:
        self.looks = list(looks)
        self.others = list(others)
        self.refuses: TidemarkError | None = None
        self.asked: list[tuple[list[ReplicaLogDir], int, bool]] = []
        self.described: list[tuple[Any, ...]] = []

    def describe_log_dirs(
        self, brokers: Sequence[int] = (), *, topics: Sequence[str] = (), partitions: Sequence[TopicPartition] = ()
    ) -> list[BrokerLogDirs]:
        self.described.append((list(brokers), list(topics), list(partitions)))
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return [look, *self.others]

    def alter_replica_log_dirs(
        self, replicas: Sequence[ReplicaLogDir], *, throttle_bytes_per_s: int = 0, validate_only: bool = False
    ) -> list[ReplicaLogDirOutcome]:
        self.asked.append((list(replicas), throttle_bytes_per_s, validate_only))
        return [ReplicaLogDirOutcome(one.broker_id, one.partition, self.refuses) for one in replicas]


def run(monkeypatch: pytest.MonkeyPatch, client: Client, *arguments: str) -> Any:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: client)
    monkeypatch.setattr(log_dirs, "PlaceFollower", lambda asked: PlaceFollower(asked, lambda seconds: None, Ticks()))
    return CliRunner().invoke(app, ["log-dirs", *arguments, "--admin", "nowhere:1"])


class Ticks:
    """A clock that advances by half a second with each call."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.5
        return self.now_s


# -- describe ----------------------------------------------------------------------------------------------------


def test_directories_are_a_table_with_unknown_values(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(copying(300))
    found = run(monkeypatch, client, "describe", "--broker", "1", "--topic", "orders")
    assert found.exit_code == 0
    assert client.described == [([1], ["orders"], [])]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in found.stdout.splitlines() if "│" in line]
    assert cells == [
        ["1", "/data/a", "online", "1.0 MB", "400.0 kB", "1", "1.0 kB"],
        ["1", "/data/b", "online", "unknown", "unknown", "1", "300 B"],
    ]


def test_replicas_are_listed_with_their_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Client(copying(300)), "describe", "--replicas")
    lines = [" ".join(line.replace("│", " ").split()) for line in found.stdout.splitlines()]
    assert "1 /data/a orders:0 leader 1.0 kB 12" in lines
    assert "1 /data/b orders:0 future 300 B 12" in lines


def test_a_broker_without_an_answer_is_an_error_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(disks(b_error=TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone")))
    client.others = [BrokerLogDirs(BrokerId(2), error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "2 is away"))]
    for form in ("text", "json"):
        found = run(monkeypatch, client, "describe", "--output", form)
        assert "/data/a" in found.stdout
        assert "the disk is gone" in found.stdout
        assert isinstance(found.exception, TidemarkError)
        assert found.exception.message == "2 is away"


def test_json_has_null_for_unknown_values(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Client(disks(a=[replica(-1, offline=True)])), "describe", "--output", "json")
    ((broker),) = json.loads(found.stdout)
    a, b = broker["log_dirs"]
    assert (b["total_bytes"], b["free_bytes"], b["error"]) == (None, None, None)
    assert a["replicas"] == [
        {
            "topic": "orders",
            "partition": 0,
            "size_bytes": None,
            "offset_lag": 12,
            "leader": False,
            "future": False,
            "offline": True,
        }
    ]


# -- move --------------------------------------------------------------------------------------------------------


def test_a_move_is_requested_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(BEFORE)
    arguments = ("move", "orders:0", "--broker", "1", "--to", "/data/b/", "--throttle", "5MB")
    found = run(monkeypatch, client, *arguments)
    assert client.asked == [([PLACE], 5_000_000, False)]
    assert "orders:0 on broker 1 in /data/a moves to /data/b" in found.stdout


def test_a_dry_run_only_validates(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(BEFORE)
    found = run(monkeypatch, client, "move", "orders:0", "--broker", "1", "--to", "/data/b/", "--dry-run", "--wait")
    assert client.asked == [([PLACE], 0, True)]
    assert "would move to /data/b" in found.stdout


def test_a_throttle_that_makes_the_move_long_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    large = disks(a=[replica(61_440_000, leader=True)])
    words = ("move", "orders:0", "--broker", "1", "--to", "/data/b", "--dry-run", "--throttle")
    assert run(monkeypatch, Client(large), *words, "1KB").stderr == (
        "warning: the copy takes 17 h 04 min or longer: the replica has 61.4 MB, and the throttle is 1.0 kB/s; "
        "a higher --throttle makes it shorter\n"
    )
    assert run(monkeypatch, Client(large), *words, "1MB").stderr == ""


def test_the_current_directory_as_target_cancels_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Client(BEFORE), "move", "orders:0", "--broker", "1", "--to", "ua")
    assert found.stdout == "orders:0 is on broker 1 in /data/a; a move to another log directory is cancelled\n"


def test_a_refusal_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(BEFORE)
    client.refuses = TidemarkError(ErrorCode.LOG_DIR_NOT_FOUND, "there are /data/a, /data/b")
    found = run(monkeypatch, client, "move", "orders:0", "--broker", "1", "--to", "/none")
    assert found.exception is client.refuses


def test_a_topic_alone_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Client(BEFORE), "move", "orders", "--broker", "1", "--to", "/data/b")
    assert found.exit_code == 2
    assert "TOPIC:PARTITION" in found.output


def test_wait_shows_progress_until_the_end_of_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(BEFORE, BEFORE, copying(0), copying(500), copying(1000), disks(), AFTER)
    found = run(monkeypatch, client, "move", "orders:0", "--broker", "1", "--to", "/data/b", "--wait")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0] == "orders:0 broker 1, /data/a -> /data/b queued"
    assert "orders:0 broker 1, /data/a -> /data/b copying" in lines
    assert lines[-1] == "orders:0 is on broker 1 in /data/b"


def test_wait_ends_when_the_copy_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(BEFORE, copying(100), BEFORE)
    arguments = ("move", "orders:0", "--broker", "1", "--to", "/data/b", "--wait", "--output", "json")
    found = run(monkeypatch, client, *arguments)
    assert isinstance(found.exception, TidemarkError)
    assert "cancelled" in found.exception.message
    printed = json.loads(found.stdout)
    assert (printed["state"], printed["log_dir"], printed["error"]["code"]) == (
        "elsewhere",
        "/data/a",
        "NO_REASSIGNMENT_IN_PROGRESS",
    )


def test_wait_ends_when_the_directory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = disks(a=[replica(1000)], b_error=TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone"))
    client = Client(BEFORE, copying(100), gone)
    found = run(monkeypatch, client, "move", "orders:0", "--broker", "1", "--to", "/data/b", "--wait")
    assert isinstance(found.exception, TidemarkError)
    assert found.exception.code is ErrorCode.LOG_DIR_OFFLINE
    assert found.stdout.splitlines()[-1] == "orders:0 stays on broker 1 in /data/a"


def test_ctrl_c_ends_the_wait_but_not_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(copying(100))

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: client)
    monkeypatch.setattr(log_dirs, "PlaceFollower", lambda asked: PlaceFollower(asked, interrupt))
    arguments = ["log-dirs", "move", "orders:0", "--broker", "1", "--to", "/data/b", "--wait", "--admin", "x:1"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 130
    assert "the copy continues" in found.stderr


class Shown(MoveView):
    """Records the calls."""

    def __init__(self) -> None:
        super().__init__(silent=True)
        self.moves: list[Any] = []

    def show(self, moves: Any, ended: Any, more: str = "") -> None:
        self.moves += moves


def test_progress_has_a_rate_and_the_remaining_time() -> None:
    follower = PlaceFollower(
        Client(copying(0), copying(100), copying(200), AFTER),  # type: ignore[arg-type]
        lambda seconds: None,
        Ticks(),
    )
    view = Shown()
    ((found, error),) = follower.follow([PLACE], view)
    assert (found.state, error) == (PlaceState.THERE, None)
    assert [one.rate_bytes_per_s for one in view.moves] == [None, 200, 200]
    assert [one.eta_s for one in view.moves] == [None, 4.5, 4.0]


def test_wait_survives_an_unavailable_broker_and_names_it() -> None:
    looks = [copying(0), *[AWAY] * 40, copying(0), AFTER]
    view = Shown()
    follower = PlaceFollower(Client(*looks), lambda seconds: None, Ticks())  # type: ignore[arg-type]
    ((found, error),) = follower.follow([PLACE], view)
    assert (found.state, error) == (PlaceState.THERE, None)
    assert view.moves[1].waiting_for == "state of broker 1 unknown: broker 1 is not live"
    assert "nothing was copied for" in view.moves[-1].waiting_for


def test_wait_survives_an_outage_of_the_admin_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the command ended, as a restart of the service ended the wait for a copy of hours."""
    client, pauses = Client(copying(0), copying(5), AFTER), list[float]()
    describe, failures = client.describe_log_dirs, [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "away")] * 3

    def away(*arguments: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return describe(*arguments, **more)

    monkeypatch.setattr(client, "describe_log_dirs", away)
    ((found, error),) = PlaceFollower(client, pauses.append, Ticks()).follow([PLACE], Shown())  # type: ignore[arg-type]
    assert (found.state, error, failures) == (PlaceState.THERE, None, [])
    failures.append(TidemarkError(ErrorCode.INTERNAL, "broken"))
    with raises_code(ErrorCode.INTERNAL, "broken"):
        PlaceFollower(client, pauses.append, Ticks()).follow([PLACE], Shown())  # type: ignore[arg-type]


# -- state of a replica -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "wanted", "state", "percent", "why"),
    [
        (AFTER, "/data/b", PlaceState.THERE, None, None),
        (AFTER, "ub", PlaceState.THERE, None, None),
        (AFTER, "/data/../data/b/", PlaceState.THERE, None, None),
        (copying(0), "/data/b", PlaceState.COPYING, 0, None),
        (copying(999), "/data/b", PlaceState.COPYING, 99, None),
        (copying(5000), "/data/b", PlaceState.COPYING, 99, None),
        (disks(a=[replica(0)], b=[replica(0, future=True)]), "ub", PlaceState.COPYING, 99, None),
        (disks(b=[replica(7, future=True)]), "ub", PlaceState.COPYING, None, None),
        (copying(10), "/data/a", PlaceState.THERE, None, None),
        (BEFORE, "/data/b", PlaceState.ELSEWHERE, None, None),
        (disks(), "/data/b", PlaceState.ELSEWHERE, None, None),
        (BEFORE, "/data/c", PlaceState.ELSEWHERE, None, ErrorCode.LOG_DIR_NOT_FOUND),
        (disks(a=[replica(-1, offline=True)]), "/data/b", PlaceState.ELSEWHERE, None, ErrorCode.REPLICA_OFFLINE),
        (
            disks(a=[replica(1)], b_error=TidemarkError(ErrorCode.STORAGE_ERROR, "gone")),
            "/data/b",
            PlaceState.ELSEWHERE,
            None,
            ErrorCode.LOG_DIR_OFFLINE,
        ),
        (AWAY, "/data/b", PlaceState.UNKNOWN, None, ErrorCode.BROKER_NOT_AVAILABLE),
    ],
)
def test_state_of_a_replica_follows_from_its_brokers_answer(
    broker: BrokerLogDirs, wanted: str, state: PlaceState, percent: int | None, why: ErrorCode | None
) -> None:
    found = find(ReplicaLogDir(ONE, P, wanted), {ONE: broker})
    assert (found.state, found.percent, found.why and found.why.code) == (state, percent, why)
