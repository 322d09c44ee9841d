# SPDX-License-Identifier: Apache-2.0
"""A replica's log moves to another log directory while the follower fetches (rules M3, R6)."""

from __future__ import annotations

from tidemark.core.messages import Credit
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.replication.stage import ID, P, Stage, batch


def directory_of(stage: Stage) -> int:
    view = stage.core.queries.replica(P)
    assert view is not None
    return view.directory


def test_a_moved_log_has_another_directory_and_stays_in_use() -> None:
    stage = Stage().follows()
    stage.feed(ev.LogMoved(P, ID, 1))
    assert directory_of(stage) == 1
    stage.chunk(0, batch(3, offset=0, epoch=5), high_watermark=0)
    assert stage.one(fx.AppendToLog).base_offset == 0


def test_credit_returns_to_its_first_directory_until_the_next_stream() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(3, offset=0, epoch=5), high_watermark=0)
    stage.feed(ev.LogMoved(P, ID, 1))
    stage.feed(ev.LogAppended(P, ID, 3))
    assert stage.said().credits == (Credit(0, 100),)
    stage.chunk(3, batch(2, offset=3, epoch=5), high_watermark=3)
    stage.feed(ev.LogAppended(P, ID, 5))
    assert stage.said().credits == (Credit(0, 100),), "the leader counts against the directory of the fetch position"
    stage.feed(ev.LeaderDisconnected(2))
    stage.feed(ev.LeaderConnected(2))
    assert stage.said().positions[0].directory == 1
    assert [credit.directory for credit in stage.said().credits] == [1]


def test_a_move_of_a_log_that_has_failed_changes_nothing() -> None:
    stage = Stage().follows()
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "input/output error")))
    assert stage.feed(ev.LogMoved(P, ID, 1)) == []
    assert directory_of(stage) == 0
