# SPDX-License-Identifier: Apache-2.0
"""The preStop hook of a broker pod waits until a stop interrupts no client, but not for a missing admin service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS

SCRIPT = CHARTS / "tidemark" / "files" / "before-stop.sh"


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ("safe", 1),
        ("unsafe unsafe safe", 3),
        ("silent safe", 2),
        ("silent silent safe", 2),
        ("silent unsafe silent safe", 4),
        ("unsafe never safe", 2),
    ],
)
def test_the_hook_waits_until_safe_or_no_answer_or_waiting_does_not_help(
    answers: str, asked: int, tmp_path: Path
) -> None:
    (tmp_path / "tidemark").write_text(
        "#!/bin/sh\n"
        f'echo "$*" >>{tmp_path}/asked\n'
        f"set -- {answers}\n"
        f"shift $(($(wc -l <{tmp_path}/asked) - 1))\n"
        '[ "$1" = silent ] || [ "$1" = never ] || echo "{}"\n'
        """[ "$1" != never ] || echo '{"waiting_helps": false}'\n"""
        '[ "$1" = safe ]\n'
    )
    (tmp_path / "tidemark").chmod(0o755)
    done = subprocess.run(["/bin/sh", str(SCRIPT)], env=_environment(tmp_path), timeout=30, check=False)
    assert done.returncode == 0
    questions = (tmp_path / "asked").read_text().splitlines()
    assert questions == ["cluster safe-to-restart 2 --claim --admin admin:9194 -o json"] * asked
    assert (tmp_path / "log").exists() == ("never" in answers)


def test_the_hook_asks_an_older_image_without_a_claim(tmp_path: Path) -> None:
    """An upgrade changes the script in running pods, whose image may have no --claim yet."""
    (tmp_path / "tidemark").write_text(
        "#!/bin/sh\n"
        f'echo "$*" >>{tmp_path}/asked\n'
        'case "$*" in *--claim*) exit 2 ;; esac\n'
        f'[ "$(wc -l <{tmp_path}/asked)" -eq 4 ] || {{ echo "{{}}"; exit 1; }}\n'
    )
    (tmp_path / "tidemark").chmod(0o755)
    done = subprocess.run(["/bin/sh", str(SCRIPT)], env=_environment(tmp_path), timeout=30, check=False)
    assert done.returncode == 0
    first, *others = (tmp_path / "asked").read_text().splitlines()
    assert "--claim" in first
    assert others == ["cluster safe-to-restart 2 --admin admin:9194 -o json"] * 3


def _environment(directory: Path) -> dict[str, str]:
    """Environment variables of the hook, with the `tidemark` of this directory."""
    return {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "TIDEMARK_BROKER_ID": "2",
        "ADMIN_ADDRESS": "admin:9194",
        "WAIT_S": "30",
        "PAUSE_S": "0",
        "LOG": str(directory / "log"),
    }
