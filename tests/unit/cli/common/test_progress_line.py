# SPDX-License-Identifier: Apache-2.0
"""A line of progress: on a terminal only, not too often, and gone when something else is printed."""

from __future__ import annotations

import pytest
from tidemark.cli.common.progress_line import Progress, bar


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def test_a_line_is_written_over_and_over_and_not_made_more_often_than_people_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    progress = Progress(show=True, now_s=clock.now_s)
    made: list[str] = []

    def line() -> str:
        made.append(f"at {clock.time_s:g}")
        return made[-1]

    for _ in range(8):
        progress.tell(line)
        clock.time_s += 0.125
    assert made == ["at 100", "at 100.25", "at 100.5", "at 100.75"]
    progress.clear()
    progress.clear()
    shown = capsys.readouterr().err
    assert shown.split("\r\x1b[K") == ["", *made, ""]
    assert progress.elapsed_s == pytest.approx(1.0)


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(show=False)
    progress.tell(lambda: pytest.fail("nobody looks"))
    progress.clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("part", "shown"), [(0.0, "[....]   0%"), (0.5, "[##..]  50%"), (1.0, "[####] 100%"), (7.0, "[####] 100%")]
)
def test_a_bar_is_full_at_the_end(part: float, shown: str) -> None:
    assert bar(part, width=4) == shown
