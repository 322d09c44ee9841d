# SPDX-License-Identifier: Apache-2.0
"""Shell completion: names of the cluster, scripts of the shells, and no output without a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tidemark.cli import completion
from tidemark.cli.app import PROGRAM, app
from tidemark.cli.common import completion as lookups
from tidemark.model import ErrorCode, TidemarkError
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


class Topic(NamedTuple):
    partitions: dict[int, None]


class Entry(NamedTuple):
    key: str
    scope: str


class Client(FakeAdmin):
    """A cluster with two topics, two brokers and three settings."""

    def list_topics(self) -> list[str]:
        return ["__consumer_offsets", "flights", "fleet", "orders"]

    def describe_topics(self, names: Sequence[str]) -> list[Topic]:
        assert list(names) == ["flights"]
        return [Topic(dict.fromkeys(range(3)))]

    def describe_cluster(self) -> Any:
        view = type("View", (), {"brokers": {2: None, 10: None}})
        return type("Described", (), {"view": view})

    def describe_configs(self, resources: Sequence[Any]) -> dict[Any, list[Entry]]:
        scope = "topic" if resources[0].kind == "topics" else "broker-dynamic"
        return {resources[0]: [Entry("retention.ms", scope), Entry("retention.bytes", scope), Entry("rack", "static")]}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "connect_admin", lambda *_, **__: Client())
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", "127.0.0.1:1")


def candidates(line: str) -> list[str]:
    """Values that a shell gets for the line up to its cursor."""
    completion.completion_init()  # type: ignore[attr-defined]
    asked = {
        completion.COMPLETE: "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    shown = CliRunner().invoke(app, [], env=asked, prog_name=PROGRAM).stdout
    return [found.split("\t")[0] for found in shown.splitlines() if found]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tidemark topic des", ["describe"]),
        ("tidemark topic create t --repl", ["--replication-factor"]),
        ("tidemark topic create t --dry-", ["--dry-run"]),
        ("tidemark topic create t --validate", []),
        ("tidemark consume --output js", ["json"]),
        ("tidemark topic describe fl", ["flights", "fleet"]),
        ("tidemark topic describe flights f", ["flights", "fleet"]),
        ("tidemark topic delete ", ["flights", "fleet", "orders"]),
        ("tidemark consume __", ["__consumer_offsets"]),
        ("tidemark produce or", ["orders"]),
        ("tidemark replicas verify --topic or", ["orders"]),
        ("tidemark transaction find-hanging --topic or", ["orders"]),
        ("tidemark transaction list --phase ON", ["ONGOING"]),
        ("tidemark elect --last-known flights:", ["flights:0", "flights:1", "flights:2"]),
        ("tidemark cluster remove-brokers ", ["2", "10"]),
        ("tidemark config get topic fli", ["flights"]),
        ("tidemark config get broker ", ["default", "2", "10"]),
        ("tidemark config get topic flights ret", ["retention.ms", "retention.bytes"]),
        ("tidemark config set broker default r", ["retention.ms=", "retention.bytes="]),
        ("tidemark config set topic flights --delete retention.b", ["retention.bytes"]),
        ("tidemark topic create t --config retention.m", ["retention.ms="]),
        ("tidemark topic nonsense --nonsense x", []),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_groups_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups:
        def __init__(self, bootstrap: str, *, timeout_s: float) -> None:
            assert bootstrap == "b:1"

        def __enter__(self) -> Groups:
            return self

        def __exit__(self, *_: object) -> None: ...

        def list_groups(self) -> tuple[list[Any], list[Any]]:
            return [type("Listing", (), {"group": name}) for name in ("billing", "nightly")], []

    monkeypatch.delenv("TIDEMARK_BOOTSTRAP", raising=False)
    monkeypatch.setattr("tidemark.client.sync.groups.Groups", Groups)
    assert candidates("tidemark group describe --bootstrap b:1 bi") == ["billing"]
    assert candidates("tidemark consume t --bootstrap b:1 --group ni") == ["nightly"]
    assert candidates("tidemark group describe bi") == []


def test_transactional_ids_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    class TransactionAdmin:
        def __init__(self, bootstrap: str, *, timeout_s: float) -> None:
            assert bootstrap == "b:1"

        async def __aenter__(self) -> TransactionAdmin:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def list_transactions(self, phases: Sequence[str] = ()) -> tuple[list[Any], list[Any]]:
            found = {"loader": "ONGOING", "lasting": "COMPLETE_COMMIT"}
            return [
                type("Listing", (), {"transactional_id": name})
                for name, phase in found.items()
                if not phases or phase in phases
            ], []

    monkeypatch.delenv("TIDEMARK_BOOTSTRAP", raising=False)
    monkeypatch.setattr("tidemark.client.aio.transaction_admin.TransactionAdmin", TransactionAdmin)
    assert candidates("tidemark transaction describe --bootstrap b:1 l") == ["loader", "lasting"]
    assert candidates("tidemark transaction abort --bootstrap b:1 l") == ["loader"]
    assert candidates("tidemark transaction describe l") == []


def test_completion_asks_the_cluster_of_the_command_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect(bootstrap: str, admin: str, **_: object) -> Client:
        asked.append((bootstrap, admin))
        return Client()

    monkeypatch.setattr(lookups, "connect_admin", connect)
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", "other:1")
    monkeypatch.setenv("TIDEMARK_ADMIN", "other:2")
    for line in ("--bootstrap here:1 ", "--admin here:2 ", ""):
        assert candidates(f"tidemark topic describe {line}fl") == ["flights", "fleet"]
    assert asked == [("here:1", ""), ("", "here:2"), ("other:1", "other:2")]


def test_without_an_address_no_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMARK_BOOTSTRAP", raising=False)
    monkeypatch.delenv("TIDEMARK_ADMIN", raising=False)
    monkeypatch.setattr(lookups, "connect_admin", lambda *_, **__: pytest.fail("asked"))
    assert candidates("tidemark topic describe ") == []


def test_an_error_gives_no_names_and_the_settings_of_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Client:
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "gone")

    monkeypatch.setattr(lookups, "connect_admin", refuse)
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", "127.0.0.1:1")
    assert candidates("tidemark topic describe ") == []
    assert candidates("tidemark config get topic flights retention.m") == ["retention.ms"]


def test_a_cluster_that_hangs_delays_the_shell_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: object, **__: object) -> Client:
        over.wait(30)
        return Client()

    monkeypatch.setattr(lookups, "connect_admin", hang)
    monkeypatch.setattr(lookups, "LOOKUP_S", 0.05)
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", "127.0.0.1:1")
    begun_s = time.monotonic()
    try:
        assert candidates("tidemark topic describe ") == []
        assert time.monotonic() - begun_s < 10
    finally:
        over.set()


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A directory with a program `tidemark`."""
    program = tmp_path / "tidemark"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidemark.cli.entry "$@"\n')
    program.chmod(0o755)
    return tmp_path


def shell(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A shell that finds `path` first, and no cluster at the given address."""
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "TIDEMARK_BOOTSTRAP": "127.0.0.1:1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=environment, check=False)


def test_bash_completes_commands_and_is_silent_about_errors(command: Path) -> None:
    script = """
        source <(tidemark completion bash)
        complete_line() {
            COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=(); _tidemark tidemark
            echo "${COMPREPLY[*]}"
        }
        complete_line 'tidemark topic cr'
        complete_line 'tidemark config get topic flights retention.m'
    """
    ended = shell(command, "bash", "--norc", "-c", script)
    assert (ended.stdout, ended.stderr) == ("create\nretention.ms\n", "")


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_accept_their_script(command: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    source = "autoload -Uz compinit && compinit -u -D && " if name == "zsh" else ""
    load = "source <(tidemark completion zsh)" if name == "zsh" else "tidemark completion fish | source"
    ended = shell(command, name, "-c", f"{source}{load}")
    assert (ended.returncode, ended.stderr) == (0, "")
