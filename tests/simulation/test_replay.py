# SPDX-License-Identifier: Apache-2.0
"""One seed replays bit for bit, in another process too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.recipes import RECIPES

ROOT = Path(__file__).parents[2]
SEED = "11"


@pytest.mark.timeout(400)
def test_every_kind_of_world_is_the_same_again_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.simulation.replay", SEED]
    path = os.pathsep.join((str(ROOT), str(ROOT / "services")))
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    first, second = [process.communicate()[0].splitlines() for process in processes]
    assert [line.split()[0] for line in first] == list(RECIPES)
    assert first == second
