# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments are bad usage: status 2 and a sentence on stderr, before any request."""

from __future__ import annotations

import pytest
from tidemark.cli.app import app
from tidemark.model import ErrorCode, TidemarkError
from typer.testing import CliRunner

BROKER = ("--bootstrap", "127.0.0.1:1")
"""No broker listens there: a request would fail with status 1."""
HUGE = "9" * 5_000
"""Python refuses to make an int of so many digits."""


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("topic", "list", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("topic", "list", "--bootstrap", "a:1,b:port"), "'b:port': expected HOST:PORT"),
        (("topic", "list", "--bootstrap", "a:0"), "'a:0': expected HOST:PORT"),
        (("topic", "list", "--bootstrap", " , "), "no cluster is given"),
        (("topic", "list", "--admin", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("consume", "flights", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("produce", "flights", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("completion", "tcsh"), "tcsh"),
        (("group", "list", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("replicas", "verify", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("bench", "produce", "--bootstrap", "somewhere"), "'somewhere': expected HOST:PORT"),
        (("consume", "flights", "--from", "", *BROKER), "'': expected earliest, latest, offset:N or timestamp:"),
        (
            ("group", "reset-offsets", "g", "-t", "t:x", "--to", "latest", *BROKER),
            "'t:x': expected TOPIC or TOPIC:PARTITION",
        ),
        (("bench", "produce", "--message-size", "1TB", *BROKER), "'1TB': expected at most 8388608 bytes"),
        (("bench", "produce", "--batch-size", "1GB", *BROKER), "'1GB': expected at most 8388608 bytes"),
        (("bench", "produce", "--linger-ms", "99999999", *BROKER), "less than or equal to 60000"),
        (("bench", "produce", "--rate", "inf", *BROKER), "less than or equal to 1000000000"),
        (("bench", "consume", "--duration", "inf", *BROKER), "less than or equal to 86400"),
        (("transaction", "list", "--open-longer-than", "inf", *BROKER), "less than or equal to 315360000"),
        (
            ("cluster", "add-brokers", "3", "--throttle", "9" * 20 + "GB", *BROKER),
            "expected at most 9223372036854775807",
        ),
        (("cluster", "add-brokers", HUGE, *BROKER), "expected ids of brokers"),
        (("cluster", "add-brokers", "3", "--throttle", HUGE, *BROKER), "expected at most 9223372036854775807"),
        (("elect", "--preferred", f"flights:{HUGE}", *BROKER), "expected TOPIC or TOPIC:PARTITION"),
        (("consume", "flights", "--from", f"offset:{HUGE}", *BROKER), "expected earliest, latest, offset:N or"),
        (("topic", "list", "--bootstrap", f"a:{HUGE}"), "expected HOST:PORT"),
        (("log", "dump", "data", "t-0", "--from", "5", "--to", "2"), "--to 2 is below --from 5"),
        (("topic", "create", "t", "--partitions", "many", *BROKER), "--partitions"),
        (("topic", "create", "t", "--partitions", "1_0", *BROKER), "'1_0': expected a number in digits 0 to 9"),
        (("certs", "broker", "1_0", "--host", "a"), "Invalid value for ID: '1_0': expected a number in digits 0 to 9"),
        (("consume", "flights", "--max-records", " 5", *BROKER), "' 5': expected a number in digits 0 to 9"),
        (("bench", "produce", "--rate", "1_000", *BROKER), "'1_000': expected a number in digits 0 to 9"),
        (("certs", "client", "alice", "-d", ""), "Invalid value for --directory: '': expected a path"),
        (("log", "dump", ""), "Invalid value for PATH: '': expected a path"),
        (("apply", "-f", "", *BROKER), "Invalid value for --file: '': expected a path"),
        (("certs", "broker", "2147483648", "--host", "a"), "less than or equal to 2147483647"),
        (("certs", "controller", "2147483648", "--host", "a"), "less than or equal to 2147483647"),
        (("topic", "nothing"), "No such command 'nothing'"),
    ],
)
def test_bad_usage_sends_no_request(words: tuple[str, ...], printed: str) -> None:
    result = CliRunner().invoke(app, words, env={"TIDEMARK_BOOTSTRAP": "", "TIDEMARK_ADMIN": "", "COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert printed in result.stderr
    assert result.stdout == ""


def test_a_local_cluster_needs_a_directory_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data would be in the current directory."""
    monkeypatch.setattr("tidemark.local.dev.run", lambda *_, **__: pytest.fail("the cluster starts"))
    result = CliRunner().invoke(app, ["dev", "-d", ""], env={"COLUMNS": "400"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for --directory: '': expected a path" in result.stderr


@pytest.mark.parametrize(
    ("missing", "out", "error"),
    [
        ([], "there is no consumer group\n", ""),
        ([TidemarkError(ErrorCode.COORDINATOR_LOADING, "busy")], "", "some groups may be missing: busy\n"),
    ],
)
def test_an_empty_list_of_groups_is_a_sentence_only_if_no_group_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, missing: list[TidemarkError], out: str, error: str
) -> None:
    class NoGroups:
        def __enter__(self) -> NoGroups:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def list_groups(self) -> tuple[list[object], list[TidemarkError]]:
            return [], missing

    monkeypatch.setattr("tidemark.cli.group.commands._connect", lambda bootstrap: NoGroups())
    shown = CliRunner().invoke(app, ["group", "list"])
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, out, error)
