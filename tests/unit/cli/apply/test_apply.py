# SPDX-License-Identifier: Apache-2.0
"""`tidemark apply` with a fake cluster: its requests, output and exit status."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.cli.apply import command
from tidemark.cli.common import options
from tidemark.client.created_topic import CreatedTopic
from tidemark.core.cluster_view import TopicView
from tidemark.core.config_resource import ConfigResource
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.entries import ConfigEntry, absent_broker_entries, cluster_entries
from typer.testing import CliRunner

from tests.unit.cli.apply.test_cluster_plan import PlayedCluster

FILE = """\
topics:
  flights: {partitions: 6, replication_factor: 3, configs: {retention.ms: 7}}
  orders: {}
brokers:
  default: {log.level: debug}
  3: {log.level: info}
"""


class Client(PlayedCluster):
    """A client of the fake cluster; validations do not reach the cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, ErrorCode] = {}
        self.refuses_at_last: dict[str, ErrorCode] = {}
        self.request_ids: list[str] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        return list(self.topics.values())

    def describe_configs(self, resources: Sequence[ConfigResource]) -> dict[ConfigResource, list[ConfigEntry]]:
        (resource,) = resources
        self._is_check(resource.name, True, "")
        if resource.name == "3" and "3" not in self.brokers:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker 3 has ever registered", {"broker": "3"})
        own = self.brokers.get(resource.name, {})
        if resource.name == "default":
            return {resource: cluster_entries(own)}
        return {resource: absent_broker_entries({}, own)}

    def _is_check(self, name: str, validate_only: bool, request_id: str) -> bool:
        for refusals in (self.refuses,) if validate_only else (self.refuses, self.refuses_at_last):
            if name in refusals:
                raise TidemarkError(refusals[name], f"{name} is refused", {"config": "retention.ms"})
        if not validate_only:
            self.request_ids.append(request_id)
        return validate_only

    def create_topic(  # type: ignore[override]
        self, name: str, *, validate_only: bool = False, request_id: str = "", **more: object
    ) -> CreatedTopic:
        only_check = self._is_check(name, validate_only, request_id)
        return super().create_topic(name, validate_only=only_check, **more)  # type: ignore[arg-type]

    def create_partitions(
        self, topic: str, total_count: int, *, validate_only: bool = False, request_id: str = ""
    ) -> None:
        if not self._is_check(topic, validate_only, request_id):
            super().create_partitions(topic, total_count)

    def alter_configs(  # type: ignore[override]
        self,
        resource: ConfigResource,
        *changes: object,
        validate_only: bool = False,
        request_id: str = "",
        **more: object,
    ) -> None:
        if not self._is_check(resource.name, validate_only, request_id):
            super().alter_configs(resource, *changes, **more)  # type: ignore[arg-type]

    def delete_topic(self, name: str, *, validate_only: bool = False, request_id: str = "") -> None:
        if not self._is_check(name, validate_only, request_id):
            super().delete_topic(name)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: client)
    return client


def run(*arguments: str, file: str = FILE) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, ["apply", "-f", "-", *arguments], input=file)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def test_each_step_has_its_own_request_id_and_a_second_run_changes_nothing(client: Client) -> None:
    status, out, error = run()
    assert (status, error) == (0, "")
    assert out.endswith("4 changes made\n")
    assert client.asked == ["create flights", "create orders", "configure default", "configure 3"]
    assert len(set(client.request_ids)) == 4
    assert "" not in client.request_ids
    client.asked.clear()
    assert run("--check") == (0, "nothing to change: the cluster matches the file\n", "")
    assert client.asked == []


def test_dry_run_and_check_change_nothing_and_only_check_exits_with_2(client: Client) -> None:
    for flags, status in ((("--dry-run",), 0), (("--check",), 2), (("--check", "--dry-run"), 2)):
        ended = run(*flags)
        assert ended[0] == status
        assert ended[1].endswith("4 changes to make\n")
    assert (client.asked, client.topics, client.brokers) == ([], {}, {})


def test_a_new_topic_with_no_replica_to_spare_gets_a_warning(client: Client) -> None:
    spare = "topics: {t: {replication_factor: 2}, u: {replication_factor: 3}}"
    for flags in (("--dry-run",), ()):
        _, _, error = run(*flags, file=spare)
        assert error.startswith("warning: t has no replica to spare")
        assert len(error.splitlines()) == 1
        client.topics.clear()
    printed = json.loads(run("-o", "json", file=spare)[1])["changes"]
    assert [len(change["warnings"]) for change in printed] == [1, 0]
    assert sorted(client.topics) == ["t", "u"]


def test_a_change_to_no_replica_to_spare_gets_a_warning(client: Client) -> None:
    topic = "topics: {t: {replication_factor: 3, configs: {min.insync.replicas: %d, retention.ms: %d}}}"
    assert run(file=topic % (2, 7))[2] == ""
    for flags in (("--dry-run",), ()):
        assert run(*flags, file=topic % (3, 7))[2].startswith("warning: t has no replica to spare")
    assert run(file=topic % (3, 8))[2] == "", "the warning came before"


def test_refusals_are_reported_with_their_lines_before_any_change(client: Client) -> None:
    client.refuses = {"flights": ErrorCode.INVALID_CONFIG, "default": ErrorCode.INVALID_REQUEST}
    status, out, error = run()
    assert (status, out) == (1, "")
    assert error == (
        "error INVALID_CONFIG: stdin:2: flights is refused\nerror INVALID_REQUEST: stdin:5: default is refused\n"
    )
    assert client.asked == []


def test_after_a_refused_step_the_others_run_and_the_next_run_does_the_rest(client: Client) -> None:
    client.refuses_at_last = {"flights": ErrorCode.COORDINATION_UNAVAILABLE}
    status, out, error = run("-o", "json")
    assert status == 1
    assert error == "error COORDINATION_UNAVAILABLE: topic flights: flights is refused\n"
    applied = {change["resource"]: change["applied"] for change in json.loads(out)["changes"]}
    assert applied == {"topic flights": False, "topic orders": True, "broker default": True, "broker 3": True}
    client.refuses_at_last = {}
    assert run()[1].endswith("1 change made\n")
    assert set(client.topics) == {"flights", "orders"}


def test_a_file_with_errors_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: pytest.fail("the command sends a request"))
    status, out, error = run(file="topics:\n  a:\n    partitions: 0\n    replicas: 2\n")
    assert (status, out) == (1, "")
    assert [line.split(":")[2] for line in error.splitlines()] == ["3", "4"]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("none", "binary", "."):
        ended = CliRunner().invoke(app, ["apply", "-f", str(tmp_path / name)])
        assert isinstance(ended.exception, TidemarkError)
        assert ended.exception.code is ErrorCode.INVALID_REQUEST


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    """As /dev/zero, which would fill the memory."""
    text = "#" * (17 << 20)
    (tmp_path / "large").write_text(text)
    for name, given, shown in ((str(tmp_path / "large"), "", str(tmp_path / "large")), ("-", text, "stdin")):
        ended = CliRunner().invoke(app, ["apply", "-f", name], input=given)
        assert isinstance(ended.exception, TidemarkError)
        assert ended.exception.message == f"{shown} has more than 16 MiB"


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [(), ("-o", "json")])
def test_an_interrupted_run_shows_the_changes_that_are_made(
    client: Client, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], number: signal.Signals
) -> None:
    create = client.create_topic

    def interrupted(name: str, **more: object) -> CreatedTopic:
        if name == "orders" and not more["validate_only"]:
            signal.raise_signal(number)
        return create(name, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "create_topic", interrupted)
    status, out, error = run(*options)
    assert status == 130
    assert error == "interrupted at topic orders, which may have changed; run the command again for the other changes\n"
    if options:
        applied = {one["resource"]: one["applied"] for one in json.loads(out)["changes"]}
        assert applied == {"topic flights": True, "topic orders": False, "broker default": False, "broker 3": False}
    else:
        assert "+ topic flights" in out
        assert "orders" not in out
        assert out.endswith("1 change made\n")


@pytest.mark.usefixtures("usual_signals")
def test_a_run_that_is_interrupted_before_its_first_step_does_not_succeed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals_as_interrupt = command.signals_as_interrupt

    @contextlib.contextmanager
    def early() -> Iterator[None]:
        with signals_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
            yield

    monkeypatch.setattr(command, "signals_as_interrupt", early)
    status, out, error = run()
    assert (status, out) == (130, "0 changes made\n")
    assert (
        error == "interrupted at topic flights, which may have changed; run the command again for the other changes\n"
    )
    assert client.asked == []
