# SPDX-License-Identifier: Apache-2.0
"""Changed settings of a broker apply from the next decision on."""

from __future__ import annotations

from tidemark.core.config import ReplicationConfig
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev

from tests.unit.core.replication.stage import Stage


def silence(stage: Stage, ms: int) -> list[fx.WriteIsr]:
    """The ISR writes while a follower is silent for `ms`."""
    written = []
    for _ in range(ms // 100):
        stage.feed(ev.Tick(), after_ms=100)
        written += stage.got(fx.WriteIsr)
    return written


def test_a_changed_lag_time_applies_at_once() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.disk_answers()
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=60_000)))
    assert stage.out == []
    assert silence(stage, 20_000) == []
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_lag_time_max_ms=5_000)))
    (write,) = silence(stage, 200)
    assert write.state.isr_ids == (1,)
