# SPDX-License-Identifier: Apache-2.0
"""A REST catalog that refuses, fails or is down: one sentence without secrets, and a later run completes the table."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

import pytest
from tidemark.client import archive_topic, compact_archive
from tidemark.client.tables import rest_catalog
from tidemark.client.tables.archive_files import Archive
from tidemark.client.tables.iceberg_catalog import catalog_properties, opened_catalog
from tidemark.model import ErrorCode

from tests.refusals import raises_code
from tests.unit.client.tables.logs import NAME, TOPIC, Logs, flights
from tests.unit.client.tables.rest_server import RestServer

TABLE = "/v1/namespaces/lake/tables/flights"


def test_the_server_is_silent_about_a_client_that_ends_before_its_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, ended = threading.Event(), threading.Event()

    def away(*_: object) -> int:
        asked.set()
        assert ended.wait(20)
        return 500

    rest = RestServer(tmp_path / "rest")
    rest.failing = away
    with rest.serving():
        client = socket.create_connection(("127.0.0.1", int(rest.uri.rpartition(":")[2])))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the close is a reset
        client.sendall(b"GET /v1/config HTTP/1.1\r\n\r\n")
        assert asked.wait(20)
        client.close()
        ended.set()
    assert capfd.readouterr().err == ""


class Lake:
    """An archive of two files, and its table in a REST catalog."""

    def __init__(self, logs: Logs, root: Path, rest: RestServer) -> None:
        self._logs = logs
        self._root = root
        self.rest = rest
        self.properties = {"type": "rest", "uri": rest.uri}

    def archive(self) -> None:
        self._logs.append(0, flights(self._logs.end(0), 2))
        archive_topic(None, TOPIC, str(self._root), iceberg=NAME, catalog=self.properties)

    def compact(self) -> None:
        compact_archive(str(self._root), min_files=2, catalog=self.properties)

    def refused(self, code: ErrorCode, *, step: str = "archive") -> str:
        """The sentence of an error; each row is still in the archive."""
        with raises_code(code) as error:
            getattr(self, step)()
        assert error.value.__suppress_context__ or error.value.__context__ is None, "which may show a secret"
        assert Archive(self._root).ends()[0].end == self._logs.end(0)
        return str(error.value.message)

    def offsets(self) -> list[int]:
        self.rest.failing = lambda *_: 0
        self.rest.lost = lambda *_: False
        with opened_catalog(self._root, self.properties) as catalog:
            found: list[int] = catalog.load_table(NAME).scan().to_arrow().column("_offset").to_pylist()
            return sorted(found)


@pytest.fixture
def lake(logs: Logs, tmp_path: Path, rest: RestServer) -> Lake:
    found = Lake(logs, tmp_path / "archive", rest)
    found.archive()
    found.archive()
    rest.requests.clear()
    return found


def test_the_token_of_a_file_goes_with_each_request_and_each_run_reads_it(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for token in ("first-token", "second-token"):
        file.write_text(f"{token}\n")
        lake.rest.token = token
        lake.properties["token-file"] = str(file)
        lake.archive()
    assert {request[2] for request in lake.rest.requests} == {"Bearer first-token", "Bearer second-token"}
    file.write_text("stale-secret")
    sentence = lake.refused(ErrorCode.AUTHENTICATION_FAILED)
    assert sentence == f"the Iceberg catalog {lake.rest.uri} refuses the token: Refused: no answer for Bearer …"
    file.unlink()
    assert "cannot be read" in lake.refused(ErrorCode.INVALID_CONFIG)
    del lake.properties["token-file"]
    assert "refuses a request without a token" in lake.refused(ErrorCode.AUTHENTICATION_FAILED)
    lake.rest.token = ""
    assert lake.offsets() == list(range(8))
    lake.archive()
    assert lake.offsets() == list(range(16)), "with the rows of the refused runs"


def test_a_token_of_the_environment_is_used_and_not_shown(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__TIDEMARK__TOKEN", "of-the-environment")
    lake.rest.token = "of-the-environment"
    lake.archive()
    lake.rest.failing = lambda *_: 403
    assert "of-the-environment" not in lake.refused(ErrorCode.AUTHENTICATION_FAILED)
    lake.properties["uri"] = "http://catalog.example"
    assert lake.refused(ErrorCode.INVALID_CONFIG) == (
        "the token for http://catalog.example needs https: others could read it in plain text"
    )
    lake.properties["uri"] = "nowhere"
    sentence = lake.refused(ErrorCode.INVALID_CONFIG)
    assert "The names that are set: token, type, uri" in sentence
    assert "of-the-environment" not in sentence


@pytest.mark.parametrize("step", ["archive", "compact"])
def test_a_catalog_that_fails_or_is_away_loses_nothing(lake: Lake, step: str) -> None:
    lake.rest.failing = lambda method, path: 503 * (method == "POST" and path == TABLE)
    after = "; no archived row is lost, and a later run completes the table"
    sentence = lake.refused(ErrorCode.REQUEST_TIMED_OUT, step=step)
    assert sentence == f"the Iceberg catalog {lake.rest.uri} failed: Refused: no answer for no token{after}"
    assert lake.offsets() == list(range(4))
    lake.rest.lost = lambda method, path: method == "POST" and path == TABLE
    sentence = lake.refused(ErrorCode.REQUEST_TIMED_OUT, step=step)
    assert sentence.startswith(f"the Iceberg catalog {lake.rest.uri} failed: RESTError 502")
    lake.properties["uri"] = "http://127.0.0.1:1"
    sentence = lake.refused(ErrorCode.REQUEST_TIMED_OUT, step=step)
    assert sentence == f"the Iceberg catalog http://127.0.0.1:1 does not answer: Connection refused{after}"
    lake.properties["uri"] = lake.rest.uri
    before = lake.offsets()
    lake.archive()
    lake.compact()
    assert lake.offsets() == list(range(len(before) + 2 + 4 * (step == "archive") - 2 * (len(before) > 4)))


def test_a_commit_that_always_conflicts_ends_with_a_sentence(lake: Lake) -> None:
    lake.rest.failing = lambda method, path: 409 * (method == "POST" and path == TABLE)
    assert "the Iceberg table lake.flights was not changed in 5 attempts: " in lake.refused(ErrorCode.INVALID_REQUEST)
    assert "lake.flights was not changed in 5 attempts" in lake.refused(ErrorCode.INVALID_REQUEST, step="compact")
    assert lake.offsets() == list(range(4))
    lake.archive()
    assert lake.offsets() == list(range(8))


def test_a_request_without_an_answer_ends(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_catalog, "ANSWER_S", 0.2)
    is_over = threading.Event()
    lake.rest.failing = lambda *_: int(is_over.wait(30))
    try:
        assert "does not answer: ReadTimeout" in lake.refused(ErrorCode.REQUEST_TIMED_OUT)
    finally:
        is_over.set()


def test_an_address_of_something_else_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake.rest, "answer", lambda *_: (200, "a web site"))
    sentence = f"{lake.rest.uri} is not an Iceberg REST catalog: it answers something else"
    assert lake.refused(ErrorCode.INVALID_CONFIG) == sentence
    monkeypatch.setattr(lake.rest, "answer", lambda *_: (404, "not here"))
    assert "refuses a request: RESTError 404" in lake.refused(ErrorCode.INVALID_REQUEST)


def test_a_command_line_names_no_secret() -> None:
    good = ["type=rest", "uri=https://catalog", "token-file=/run/token", "oauth2-server-uri=https://a/b=c"]
    assert catalog_properties(good)["oauth2-server-uri"] == "https://a/b=c"
    for pair in ("token=t0p", "credential=id:t0p", "s3.secret-access-key=t0p", "uri=postgresql://me:t0p@db/lake"):
        with pytest.raises(ValueError, match="has a secret") as refused:
            catalog_properties([pair])
        assert "t0p" not in str(refused.value)
    with pytest.raises(ValueError, match="expected KEY=VALUE"):
        catalog_properties(["rest"])
