# SPDX-License-Identifier: Apache-2.0
"""A round ends by itself in a bounded time, and leaves evidence if it had a finding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos

_HANGS = """
import sys, threading
from pathlib import Path
from tests.chaos.bounded import bounded
with bounded(0.2, "seed 7", Path(sys.argv[1])):
    threading.Thread(target=threading.Event().wait, name="stuck").start()
    threading.Event().wait()
"""


def test_a_round_that_hangs_is_ended_and_says_where_its_threads_wait(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _HANGS, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1, ended.stderr
    assert "seed 7: WRONG: the round did not end within 0 s" in ended.stdout
    assert str(tmp_path) in ended.stdout
    assert (tmp_path / "stacks.txt").read_text().count("in wait") >= 2


def test_an_error_of_a_round_is_a_finding_with_evidence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the cluster did not come up")

    monkeypatch.setattr(chaos, "run_round", fail)
    monkeypatch.setattr(chaos, "other_load", lambda: 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert chaos.main(["--minutes", "0", "--seed", "7", "--load", "0"]) == 1
    told = capsys.readouterr().out
    assert "seed 7, load 0, secure: WRONG" in told
    [evidence] = tmp_path.glob("tidemark-chaos-*")
    assert f"the evidence is in {evidence}" in told
    assert "the cluster did not come up" in (evidence / "error.txt").read_text()


@pytest.mark.parametrize(("seed", "load"), [(0, 8), (1, 0), (5, 20)])
def test_the_seed_of_a_round_draws_its_load(seed: int, load: int) -> None:
    assert chaos.load_of(seed, None) == load
    assert chaos.load_of(seed, 5) == 5


def test_every_odd_seed_is_a_secure_round() -> None:
    assert [chaos.is_secure(seed, None) for seed in (6, 7)] == [False, True]
    assert [chaos.is_secure(7, given) for given in ("no", "yes")] == [False, True]
