# SPDX-License-Identifier: Apache-2.0
"""`tidemark dev`: the printed commands work as printed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tidemark.rpc.security.paths import FILE_VARIABLES

COMMAND_S = 60
TIDEMARK = str(Path(sys.executable).parent / "tidemark")


def printed_until_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("Ctrl-C"):
            return lines
    raise AssertionError(lines)


def run(command: str, environment: dict[str, str], status: int = 0) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert done.returncode == status, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_the_printed_commands_work_on_one_secure_broker_and_other_users_need_rules(tmp_path: Path) -> None:
    path = f"{Path(TIDEMARK).parent}:{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")} | {"PATH": path}
    small = (
        "--secure",
        "--brokers",
        "1",
        "--controllers",
        "1",
        "--free-ports",
        "--directory",
        str(tmp_path / "un été"),
    )
    with subprocess.Popen((TIDEMARK, "dev", *small), stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = printed_until_ready(process)
            exports = [line for line in lines if line.startswith("export ")]
            steps = [line for line in lines if line.startswith(("tidemark ", "echo "))]
            assert "hello" in run(" && ".join([*exports, *steps]), environment)
            token = next(line.partition(": ")[2] for line in lines if line.startswith("# with a token"))
            ca = next(line for line in exports if "TLS_CA_FILE" in line)
            assert "greetings" in run(f"{ca}; {token} tidemark topic list", environment)
            console = next(line.split()[1] for line in lines if line.startswith("console "))
            assert httpx.get(console).headers["location"] == "/login?next=%2F"
            secret = (tmp_path / "un été" / "dev.token").read_text().strip()
            assert "Healthy" in httpx.get(console, headers={"Authorization": f"Bearer {secret}"}).text
            certs = tmp_path / "un été" / "certs"
            run(f"tidemark certs client mallory --directory '{certs}'", environment)
            files = " ".join(
                f"TIDEMARK_TLS_{kind}_FILE='{certs}/client-mallory.{end}'"
                for kind, end in (("CERTIFICATE", "crt"), ("KEY", "key"))
            )
            denied = run(f"{exports[0]}; {ca}; {files} tidemark topic delete greetings --yes", environment, status=1)
            assert "tidemark acl add --principal User:tidemark://local/user/mallory" in denied
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(COMMAND_S)
    assert process.returncode == 0
    plain = ["--no-console", *small[1:-1], f"'{small[-1]}'"]
    refused = run(f"tidemark dev {' '.join(plain)}", environment, status=1)
    assert "un été has the data of a secure cluster: add --secure" in refused
    assert "not serving" not in refused


def test_a_plain_cluster_starts_where_the_settings_of_a_secure_one_are_exported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "certs").mkdir(parents=True)  # of a start with --secure that closed no nodes
    small = ("--no-console", "--brokers", "1", "--controllers", "1", "--free-ports", "--directory", str(data))
    exported = dict.fromkeys((*FILE_VARIABLES, "TIDEMARK_TOKEN_FILE"), str(tmp_path / "of-the-secure-cluster"))
    command = (TIDEMARK, "dev", *small)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **exported}) as process:
        try:
            printed_until_ready(process)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=COMMAND_S)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_cluster_stops_in_order_when_its_output_is_closed(terminal: bool, tmp_path: Path) -> None:
    """Regression: the output failed, so all processes were killed."""
    small = ("--no-console", "--brokers", "1", "--controllers", "1", "--free-ports", "--directory", str(tmp_path))
    ours, its = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen((TIDEMARK, "dev", *small), stdout=its, stderr=subprocess.DEVNULL) as process:
        os.close(its)
        printed = b""
        while b"Ctrl-C stops" not in printed:
            printed += os.read(ours, 1 << 16)
        os.close(ours)
        for _ in range(2):  # one from the terminal, one from its shell
            process.send_signal(signal.SIGHUP)
        process.wait(COMMAND_S)
    assert '"message": "stopping", "signal": "SIGTERM"' in (tmp_path / "logs" / "broker-0.log").read_text()
    assert (tmp_path / "broker-0" / "clean-shutdown.json").exists()
