# SPDX-License-Identifier: Apache-2.0
"""Log lines, for machines and for operators."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from tidemark.runtime.logging import configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_a_json_line_has_the_message_the_service_and_the_extra_fields() -> None:
    out = io.StringIO()
    configure_logging("info", "json", "broker-0", out)
    logging.getLogger("tidemark.x").info("took %d ms", 5, extra={"partition": "flights-0", "level": "mine"})
    logging.getLogger("tidemark.x").debug("not shown")
    fields = json.loads(out.getvalue())
    assert fields["message"] == "took 5 ms"
    assert fields["service"] == "broker-0"
    assert fields["level"] == "info"
    assert fields["partition"] == "flights-0"
    assert fields["time"].endswith("Z")


def test_a_traceback_stays_inside_its_json_line() -> None:
    out = io.StringIO()
    configure_logging("info", "json", "broker-0", out)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        logging.getLogger("tidemark.x").exception("failed")
    assert out.getvalue().count("\n") == 1
    assert "ValueError" in json.loads(out.getvalue())["error"]


def test_text_has_the_extra_fields_too_and_kazoo_is_quiet() -> None:
    out = io.StringIO()
    configure_logging("debug", "text", "broker-0", out)
    logging.getLogger("tidemark.x").warning("slow", extra={"lag_ms": 7})
    logging.getLogger("kazoo.client").warning("connection dropped")
    line = out.getvalue()
    assert line.count("\n") == 1
    assert line.endswith("WARNING broker-0 slow  lag_ms=7\n")


FORGED = "x\n12:00:00.000 INFO broker-0 forged\r\x1b[2J\u2028\u2029\x85\u202e\u2066\u200b"


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_an_unknown_callers_text_forges_no_line_and_turns_no_text_around(fmt: str) -> None:
    out = io.StringIO()
    configure_logging("info", fmt, "broker-0", out)
    logging.getLogger("tidemark.x").info("message %s", FORGED, extra={"resource": FORGED, "names": [FORGED]})
    assert out.getvalue()[:-1].isprintable()
    assert len(out.getvalue().splitlines()) == 1
    if fmt == "json":
        assert json.loads(out.getvalue())["resource"] == FORGED


def test_an_unknown_callers_text_forges_no_field_of_a_text_log() -> None:
    out = io.StringIO()
    configure_logging("info", "text", "broker-0", out)
    forged = "no such topic   outcome=ALLOWED    x=1"
    logging.getLogger("tidemark.x").info("refused %s", forged, extra={"resource": forged, "outcome": "DENIED"})
    assert [part.partition("=")[0] for part in out.getvalue().partition("refused")[2].split("  ")[1:]] == [
        "resource",
        "outcome",
    ]


def test_printable_text_of_all_languages_stays_readable_in_text() -> None:
    out = io.StringIO()
    configure_logging("info", "text", "broker-0", out)
    logging.getLogger("tidemark.x").info("größe", extra={"path": "C:\\data", "topic": "数据"})
    assert out.getvalue().endswith("größe  path=C:\\data  topic=数据\n")


def test_an_error_forges_no_line_of_a_text_log() -> None:
    out = io.StringIO()
    configure_logging("info", "text", "broker-0", out)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("tidemark.x").exception("failed")
    first, *others = out.getvalue().splitlines()
    assert first.endswith("failed")
    assert any("forged" in line for line in others)
    assert all(line.startswith("  ") and line.isprintable() for line in others)
