# SPDX-License-Identifier: Apache-2.0
"""A process that ended by itself is a finding, and is started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tidemark.local.process import ServiceProcess

from tests.chaos.arena.arena import Arena
from tests.chaos.nemesis import Nemesis


def test_a_process_that_ended_by_itself_is_a_finding_with_its_status_and_the_end_of_its_log(tmp_path: Path) -> None:
    ended = ServiceProcess(
        "broker-1", "tidemark.broker", ["--no.such.setting", "1"], log=tmp_path / "log", environment={}
    )
    ended.start()
    assert ended.wait(60)
    restarted: list[str] = []
    cluster = SimpleNamespace(
        names=["broker-1"], process=lambda _: ended, restart=lambda name, **_: restarted.append(name)
    )
    arena: Any = SimpleNamespace(
        cluster=cluster,
        disks=SimpleNamespace(seen_from_here=lambda _: tmp_path),
        network=SimpleNamespace(heal=lambda: None),
        slowness=1.0,
        secure=False,
    )
    nemesis = Nemesis(cast("Arena", arena), 1)
    nemesis.strike_until(0.0)
    assert restarted == ["broker-1"]
    assert nemesis.told == ["broker-1 had ended by itself"]
    (found,) = nemesis.ended
    assert "broker-1 had ended by itself, with status 2" in found
    assert "no.such.setting" in found
