# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster safe-to-restart`: output, exit status and time limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.cluster import commands
from tidemark.cli.common import options
from tidemark.core.planning.restart_safety import Obstacle, RestartObstacle
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin

AWAY = RestartObstacle(Obstacle.OTHER_BROKER_AWAY, "not live: broker 2", (TopicPartition("t", 0),))
BEHIND = RestartObstacle(Obstacle.NOT_IN_SYNC, "broker 1 has not caught up")
FOREVER = RestartObstacle(Obstacle.NO_REPLICA_TO_SPARE, "no replica to spare: t", (TopicPartition("t", 0),))
SILENT = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker answers")


class Cluster(FakeAdmin):
    """A fake cluster with a list of answers, the last repeats; time passes only in sleeps."""

    def __init__(self) -> None:
        self.answers: list[Sequence[RestartObstacle] | TidemarkError] = [()]
        self.asked: list[tuple[int, float]] = []
        self.claims: list[bool] = []
        self.now_s = 1000.0

    def connect(self, bootstrap: str, admin: str, *, timeout_s: float) -> Cluster:
        self.timeout_s = timeout_s
        return self

    def obstacles_to_restart(self, broker: int, *, claim: bool) -> Sequence[RestartObstacle]:
        self.asked.append((broker, self.timeout_s))
        self.claims.append(claim)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TidemarkError):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(options, "connect_admin", made.connect)
    monkeypatch.setattr(commands.time, "sleep", made.sleep)
    monkeypatch.setattr(commands.time, "monotonic", lambda: made.now_s)
    return made


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner(env=environment).invoke(app, ["cluster", "safe-to-restart", *arguments])


def test_a_restart_is_safe_or_status_1_with_reasons(cluster: Cluster) -> None:
    assert run("1").stdout == "yes: broker 1 can be restarted\n"
    cluster.answers = [[AWAY, BEHIND]]
    result = run("1")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "no: broker 1 must not be restarted now",
        "  OTHER_BROKER_AWAY: not live: broker 2 (t:0)",
        "  NOT_IN_SYNC: broker 1 has not caught up",
    ]
    printed = json.loads(run("1", "-o", "json").stdout)
    assert (printed["safe"], printed["obstacles"][0]["partitions"]) == (False, ["t:0"])
    assert len(cluster.asked) == 3


def test_wait_prints_each_change_of_the_reason_until_the_restart_is_safe(cluster: Cluster) -> None:
    cluster.answers = [[AWAY], [AWAY], SILENT, [BEHIND], ()]
    result = run("1", "--wait", "60")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "not yet: OTHER_BROKER_AWAY: not live: broker 2",
        "no broker answers",
        "not yet: NOT_IN_SYNC: broker 1 has not caught up",
        "yes: broker 1 can be restarted",
    ]


def test_wait_ends_at_its_time_limit(cluster: Cluster) -> None:
    cluster.answers = [[AWAY]]
    result = run("1", "--wait", "20", "-o", "json")
    assert (result.exit_code, cluster.now_s) == (1, 1019.5)
    assert json.loads(result.stdout)["safe"] is False
    assert cluster.asked[0] == (1, 20.0), "the time limit of a call"
    assert cluster.asked[-1] == (1, 0.5), "the last call ends at the limit"


def test_wait_ends_early_if_waiting_cannot_help(cluster: Cluster) -> None:
    cluster.answers = [[FOREVER, BEHIND], [FOREVER]]
    result = run("1", "--wait", "60")
    assert (result.exit_code, cluster.now_s) == (1, 1001.0)
    assert result.stdout.splitlines()[-2:] == [
        "no: broker 1 cannot be restarted without an effect on clients",
        "  NO_REPLICA_TO_SPARE: no replica to spare: t (t:0)",
    ]
    assert json.loads(run("1", "-o", "json").stdout)["waiting_helps"] is False
    cluster.answers = [[FOREVER, BEHIND]]
    assert json.loads(run("1", "-o", "json").stdout)["waiting_helps"] is True


def test_no_answer_until_the_time_limit_is_the_error(cluster: Cluster) -> None:
    cluster.answers = [SILENT]
    for arguments in (("1",), ("1", "--wait", "5")):
        assert run(*arguments).exception is SILENT


def test_an_error_that_is_not_retriable_ends_the_wait(cluster: Cluster) -> None:
    wrong = TidemarkError(ErrorCode.INVALID_REQUEST, "the service does not know the call")
    cluster.answers = [wrong]
    assert run("9", "--wait", "60").exception is wrong
    assert len(cluster.asked) == 1


def test_the_broker_id_may_come_from_the_environment(cluster: Cluster) -> None:
    assert run(TIDEMARK_BROKER_ID="4").stdout == "yes: broker 4 can be restarted\n"
    assert run().exit_code == 2


def test_the_restart_is_claimed_on_request_only(cluster: Cluster) -> None:
    cluster.answers = [[AWAY], ()]
    assert run("1", "--wait", "60", "--claim").exit_code == 0
    assert run("1").exit_code == 0
    assert cluster.claims == [True, True, False]
