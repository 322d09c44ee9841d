# SPDX-License-Identifier: Apache-2.0
"""`tidemark elect` with a fake client: bad usage, confirmation, output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tidemark.cli import elect as module
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TidemarkError,
    TopicPartition,
    UncleanElection,
)
from typer.testing import CliRunner

from tests.refusals import raises_code
from tests.unit.cli.fake_admin import FakeAdmin

T0 = TopicPartition("t", 0)
REPORT = UncleanElection(
    T0,
    "id",
    lineage=2,
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(7),
    elected_at_ms=1_700_000_000_000,
    last_epoch=LeaderEpoch(6),
    log_end_offset=Offset(40),
    high_watermark=Offset(65),
    unheard=(BrokerId(0),),
    request_id="r1",
)
ELECTED = ElectionOutcome(T0, NO_LEADER, BrokerId(1), LeaderEpoch(7), changed=True, unclean=REPORT)
REFUSED = ElectionOutcome(T0, error=TidemarkError(ErrorCode.ELECTION_NOT_NEEDED, "broker 2 leads t-0"))


class Client(FakeAdmin):
    """Answers every election with the same outcomes."""

    def __init__(self, *outcomes: ElectionOutcome) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[ElectionKind, tuple[TopicPartition, ...], tuple[str, ...], bool]] = []

    def elect_leaders(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition] = (),
        *,
        topics: Sequence[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ElectionOutcome]:
        assert validate_only or kind is ElectionKind.PREFERRED or request_id, "a retry must be idempotent"
        self.calls.append((kind, tuple(partitions), tuple(topics), validate_only))
        return self.outcomes

    def list_unclean_elections(self, topics: Sequence[str] = ()) -> list[UncleanElection]:
        return [one.unclean for one in self.outcomes if one.unclean is not None]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(ELECTED)
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    return made


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["elect", *arguments])


LAST_KNOWN = (ElectionKind.LAST_KNOWN, (T0,), ())


def test_the_loss_is_shown_before_the_question_and_no_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def answer() -> str:
        seen.append(capsys.readouterr().out)
        return "n\n"

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with raises_code(ErrorCode.INVALID_REQUEST):
        module._elect_uncleanly(  # type: ignore[arg-type]
            options.Cluster(), client, ElectionKind.LAST_KNOWN, [T0], yes=False, dry_run=False
        )
    assert "40 to 64" in seen[0]
    assert "no answer: brokers 0; records that only they hold are lost too, not counted" in seen[0]
    assert client.calls == [(*LAST_KNOWN, True)]


class Terminal:
    """Standard input that is a terminal."""

    def __init__(self, readline: Callable[[], str]) -> None:
        self.readline = readline

    def isatty(self) -> bool:
        return True


def test_a_yes_at_the_terminal_elects(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(lambda: "Y\n"))
    module._elect_uncleanly(  # type: ignore[arg-type]
        options.Cluster(), client, ElectionKind.LAST_KNOWN, [T0], yes=False, dry_run=False
    )
    assert client.calls == [(*LAST_KNOWN, True), (*LAST_KNOWN, False)]


def test_without_a_terminal_nothing_is_changed(client: Client) -> None:
    ended = run("--last-known", "t:0")
    assert isinstance(ended.exception, TidemarkError)
    assert "--yes" in ended.exception.message
    assert client.calls == [(*LAST_KNOWN, True)]


def test_yes_skips_the_question(client: Client) -> None:
    assert run("--last-known", "t:0", "--yes").exit_code == 0
    assert client.calls == [(*LAST_KNOWN, True), (*LAST_KNOWN, False)]


@pytest.mark.parametrize("flags", [("--yes",), ("--yes", "-o", "json"), ("--validate-only",)])
def test_one_refused_partition_prevents_all_elections(client: Client, flags: tuple[str, ...]) -> None:
    client.outcomes = [ELECTED, REFUSED]
    ended = run("--last-known", "t:0", *flags)
    assert ended.exception is REFUSED.error
    assert client.calls == [(*LAST_KNOWN, True)]


def test_validate_only_changes_nothing(client: Client) -> None:
    assert run("--last-known", "t:0", "--validate-only").exit_code == 0
    assert run("--preferred", "--validate-only").exit_code == 0
    assert [validate_only for *_, validate_only in client.calls] == [True, True]


def test_json_has_all_numbers(client: Client) -> None:
    ended = run("--last-known", "t:0", "--yes", "-o", "json")
    (outcome,) = json.loads(ended.stdout)
    assert (outcome["topic"], outcome["partition"], outcome["leader_before"], outcome["leader"]) == ("t", 0, -1, 1)
    assert outcome["unclean"] == {
        "topic": "t",
        "partition": 0,
        "topic_id": "id",
        "lineage": 2,
        "leader": 1,
        "leader_epoch": 7,
        "elected_at_ms": 1_700_000_000_000,
        "last_epoch": 6,
        "log_end_offset": 40,
        "high_watermark": 65,
        "records_maybe_lost": 25,
        "lost_from_offset": 40,
        "lost_to_offset": 64,
        "unheard": [0],
        "request_id": "r1",
    }
    assert json.loads(run("--reports", "-o", "json").stdout) == [outcome["unclean"]]


def test_unknown_differs_from_zero(client: Client) -> None:
    bare = UncleanElection(T0, "id", 1, BrokerId(1), LeaderEpoch(7))
    client.outcomes = [ElectionOutcome(T0, NO_LEADER, BrokerId(1), LeaderEpoch(7), True, bare)]
    assert "unknown" in run("--last-known", "t:0", "--yes").stdout
    (outcome,) = json.loads(run("--last-known", "t:0", "--yes", "-o", "json").stdout)
    assert (outcome["unclean"]["records_maybe_lost"], outcome["unclean"]["lost_from_offset"]) == (None, None)


def test_reports_show_time_and_request_id(client: Client) -> None:
    shown = run("--reports").stdout
    assert "2023-11-14 22:13:20" in shown
    assert "r1" in shown
    client.outcomes = []
    assert run("--reports").stdout == "there is no report of an unclean election\n"


def test_targets_are_topics_and_partitions(client: Client) -> None:
    client.outcomes = []
    run("--preferred", "a", "b.c:3", "d-1:0")
    assert client.calls == [
        (ElectionKind.PREFERRED, (TopicPartition("b.c", 3), TopicPartition("d-1", 0)), ("a",), False)
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--preferred", "--last-known", "t:0"),
        ("--last-known",),
        ("--last-known", "t"),
        ("--last-known", "t:0", "u"),
        ("--last-known", "t:0", "-o", "json"),
        ("--reports", "t:0"),
        ("--preferred", ":0"),
        ("--preferred", "t:"),
        ("--preferred", "t:-1"),
        ("--preferred", "t:0:1"),
        ("--preferred", "t:²"),
        ("--preferred", "t:2147483648"),
    ],
)
def test_bad_usage_sends_no_request(client: Client, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert (ended.exit_code, ended.stdout, client.calls) == (2, "", [])
    assert "Error" in ended.stderr
