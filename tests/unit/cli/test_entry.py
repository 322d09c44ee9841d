# SPDX-License-Identifier: Apache-2.0
"""The entry point without the packages of the extra `cli`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from tidemark.local.certificates import Authority

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_a_sentence_names_it(package: str) -> None:
    module, _, function = PYPROJECT["project"]["scripts"]["tidemark"].partition(":")
    code = f"import sys; sys.modules[{package!r}] = None; import {module} as entry; entry.{function}()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert ended.stdout == ""
    assert ended.stderr == f"error: the tidemark command needs {package}: pip install 'tidemark[cli]'\n"
    assert ended.returncode == 2


def test_an_interrupt_during_the_imports_is_not_a_traceback() -> None:
    code = (
        "import sys\n"
        "from tidemark.cli import entry\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'tidemark.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "entry.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 130)


def test_an_argument_that_is_not_utf8_is_refused_by_its_bytes() -> None:
    command = [sys.executable, "-m", "tidemark.cli.app", "topic", "describe", b"a\xff", "--admin", "127.0.0.1:1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.stderr == "error INVALID_REQUEST: the argument 'a\\udcff' is not UTF-8\n"
    assert ended.returncode == 1


def test_a_failed_handshake_prints_one_line_without_those_of_grpc(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "c")
    files = authority.issue_client("alice")
    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=answer_in_plain_text, args=(plain,), daemon=True).start()
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        command = [sys.executable, "-m", "tidemark.cli.entry", "topic", "list", "--admin", address]
        environment = {"TIDEMARK_TLS_CA_FILE": files.ca, "TIDEMARK_TLS_CERTIFICATE_FILE": files.certificate}
        environment = {**os.environ, **environment, "TIDEMARK_TLS_KEY_FILE": files.key}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("error ")
    assert ended.returncode == 1


def test_a_command_without_a_broker_says_early_that_the_command_waits() -> None:
    """The wait of ten seconds would look like a hang. The test reads the line, and ends the command."""
    command = [sys.executable, "-m", "tidemark.cli.entry", "topic", "list", "--bootstrap", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        running.kill()
    assert line.startswith("warning: no broker answers (127.0.0.1:1: unavailable: Connection refused)")


def answer_in_plain_text(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test has closed the socket
        while True:
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_extra_is_defined() -> None:
    wanted = " ".join(PYPROJECT["project"]["optional-dependencies"]["cli"])
    assert "typer" in wanted
    assert "rich" in wanted
