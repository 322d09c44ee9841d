# SPDX-License-Identifier: Apache-2.0
"""`make` on a machine that lacks a tool prints the next step in one sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "make", "sed", "head")
JAVA_17 = "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2"
JAVA_8 = "echo 'java version \"1.8.0_402\"' >&2"
PYTHON_310 = 'case "$1" in --version) echo Python 3.10.13;; *) exit 1;; esac'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory for PATH with nothing but the Makefile's own programs."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def program(path: Path, name: str, script: str) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def this_python(path: Path) -> None:
    program(path, "python3", f'exec {sys.executable} "$@"')


def make(path: Path, *words: str, system: str = "") -> tuple[int, list[str]]:
    """Exit status, and the lines of the errors but for make's own; `system` is the distribution's Python."""
    done = subprocess.run(
        ["make", "--no-print-directory", "prerequisites", f"SYSTEM_PYTHON={system}", *words],
        cwd=ROOT,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("make: ")]


def test_with_all_prerequisites_nothing_is_printed(path: Path) -> None:
    this_python(path)
    program(path, "java", JAVA_17)
    assert make(path) == (0, [])


def test_without_python_the_error_names_how_to_install_it(path: Path) -> None:
    status, lines = make(path)
    assert status
    assert len(lines) == 1
    assert lines[0].startswith("Tidemark needs Python 3.11 or newer, and found none: install one")


@pytest.mark.parametrize("words", [(), ("PYTHON=python3.10",)])
def test_an_older_python_is_named(path: Path, words: tuple[str, ...]) -> None:
    name = words[0].removeprefix("PYTHON=") if words else "python3"
    program(path, name, PYTHON_310)
    status, lines = make(path, *words)
    assert status
    assert len(lines) == 1
    assert f"needs Python 3.11 or newer, and found Python 3.10.13 ({name}): install one" in lines[0]


@pytest.mark.parametrize("incomplete", ["python3", "system"])
def test_make_prefers_a_complete_python_of_the_distribution(path: Path, incomplete: str) -> None:
    program(path, "java", JAVA_17)
    for name in ("python3", "system"):
        program(path, name, PYTHON_310 if name == incomplete else f'exec {sys.executable} "$@"')
    assert make(path, system=str(path / "system")) == (0, [])


def test_make_uses_the_python_that_the_command_names(path: Path) -> None:
    this_python(path)
    program(path, "mine", PYTHON_310)
    status, lines = make(path, "PYTHON=mine", system=str(path / "python3"))
    assert status
    assert "found Python 3.10.13 (mine)" in lines[0]


@pytest.mark.parametrize(("script", "found"), [(None, "none"), (JAVA_8, "8")])
def test_without_a_recent_java_the_error_names_how_to_install_it(path: Path, script: str | None, found: str) -> None:
    this_python(path)
    if script is not None:
        program(path, "java", script)
    status, lines = make(path)
    assert status
    assert len(lines) == 1
    assert f"needs Java 17 or newer for Spark and the local ZooKeeper, and found {found}: install one" in lines[0]
    assert lines[0].endswith("or set JAVA_HOME")
