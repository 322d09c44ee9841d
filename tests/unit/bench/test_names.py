# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: the names of benchmarks, which `make help` lists, too, and the C extensions that are measured."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.measuring import machine
from deploy.tools import compiled

MAKEFILE = (Path(__file__).resolve().parents[3] / "Makefile").read_text(encoding="utf-8")


def test_make_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    known = capsys.readouterr().err.strip().partition("benchmarks: ")[2].split(", ")
    listed = re.search(r"\| One benchmark: (.*)$", MAKEFILE, re.MULTILINE)
    assert listed is not None
    assert sorted(re.split(r", | or ", listed[1])) == sorted(known)


class Replaced(Exception):  # noqa: N818 - no error
    """The process became another one."""


@pytest.fixture
def replacing(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments that the process was replaced with; nothing is compiled."""
    found: list[dict[str, str]] = []

    def execve(path: str, words: list[str], environment: dict[str, str]) -> None:
        assert (path, words) == (sys.executable, [sys.executable, "-m", "bench", "record"])
        found.append(environment)
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(compiled, "build", lambda _: [])
    monkeypatch.setattr(compiled, "missing", lambda: None)
    return found


def test_a_benchmark_starts_again_where_python_finds_the_extensions_first(
    monkeypatch: pytest.MonkeyPatch, replacing: list[dict[str, str]]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.delenv(compiled.SETTING, raising=False)
    with pytest.raises(Replaced):
        main(["record"])
    (environment,) = replacing
    first, second = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first).parts[-2:], second) == (("build", "bench"), "/elsewhere")
    assert environment[compiled.SETTING] == "0", "the process that follows does not start again"


def test_a_benchmark_of_pure_python_does_not_start_again(
    monkeypatch: pytest.MonkeyPatch, replacing: list[dict[str, str]]
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("runpy.run_module", lambda name, **_: ran.append(name))
    monkeypatch.setenv(compiled.SETTING, "0")
    assert main(["record"]) == 0
    assert (ran, replacing) == (["bench.record"], [])


def test_a_benchmark_whose_extensions_cannot_be_built_runs_in_pure_python(
    monkeypatch: pytest.MonkeyPatch, replacing: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_: Path) -> list[Path]:
        raise RuntimeError("there is no mypyc")

    ran: list[str] = []
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("runpy.run_module", lambda name, **_: ran.append(name))
    monkeypatch.setattr(compiled, "build", build)
    monkeypatch.delenv(compiled.SETTING, raising=False)
    assert main(["record"]) == 0
    assert (ran, replacing) == (["bench.record"], [])
    assert capsys.readouterr().err == "without C extensions: there is no mypyc\n"


def test_a_result_states_that_an_editable_installation_has_no_extensions() -> None:
    assert machine.facts()["extensions"] is False
