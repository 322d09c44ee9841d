# SPDX-License-Identifier: Apache-2.0
"""`tidemark audit`: lines of several services in one table, the newest at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.core.security.audit_lines import AuditLine, ServiceAudit
from tidemark.model import ErrorCode, TidemarkError
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


def line(at_ms: int, event: str, **more: Any) -> AuditLine:
    known = AuditLine(at_ms, event, "User:token:alice", "10.0.0.1", "", "topic:orders", "OK", "super user", {})
    return known._replace(**more)


class Cluster(FakeAdmin):
    """Lines of the admin service and of one broker; another broker is down."""

    def __init__(self) -> None:
        self.asked: dict[str, object] = {}
        self.lines = (
            line(1_600_000_060_000, "CreateTopic", facts={"partitions": "3"}),
            line(1_600_000_000_000, "DeleteTopic"),
        )

    def list_audit_lines(self, **asked: object) -> list[ServiceAudit]:
        self.asked = asked
        denied = line(1_600_000_030_000, "denied", operation="READ", outcome="DENIED", rule="no rule allows it")
        return [
            ServiceAudit("admin", 7, authorization_enabled=True, lines=self.lines),
            ServiceAudit("broker 0", 8, authorization_enabled=True, lines=(denied,)),
            ServiceAudit("broker 1", error=TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "it is away")),
        ]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: made)
    return made


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["audit", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_lines_of_all_services_are_in_one_table_the_newest_at_the_end(cluster: Cluster) -> None:
    result = run()
    rows = [[cell.strip() for cell in one.strip("│").split("│")] for one in result.stdout.splitlines() if "│" in one]
    assert [(row[1], row[4], row[6], row[7]) for row in rows] == [
        ("admin", "DeleteTopic", "OK", "super user"),
        ("broker 0", "denied READ", "DENIED", "no rule allows it"),
        ("admin", "CreateTopic", "OK", "partitions=3"),
    ]
    assert rows[0][0] == "2020-09-13 12:26:40"
    assert "warning: lines of broker 1 are missing: it is away" in result.stderr


def test_a_limit_keeps_the_newest_lines_and_a_filter_is_handed_on(cluster: Cluster) -> None:
    found = json.loads(run("--limit", "2", "--outcome", "denied", "--principal", "alice", "--output", "json").stdout)
    assert [one["event"] for one in found["lines"]] == ["denied", "CreateTopic"]
    assert [one["service"] for one in found["services"]] == ["admin", "broker 0", "broker 1"]
    assert found["services"][2]["error"]["code"] == "BROKER_NOT_AVAILABLE"
    assert cluster.asked == {"principal": "alice", "resource": "", "outcome": "DENIED", "limit": 2}


def test_an_empty_list_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "list_audit_lines", lambda **_: [])
    assert run().stdout == "there is no such line\n"
