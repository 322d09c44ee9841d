# SPDX-License-Identifier: Apache-2.0
"""The progress line: shown on a terminal only, and erased at the end."""

from __future__ import annotations

import io

import pytest
from tidemark.cli.common.progress_line import ProgressLine, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_is_shown_on_a_terminal_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    line = ProgressLine(lambda: "3 of 4 partitions compared")
    for _ in range(2):
        with line:
            pass
        shown = terminal.getvalue()
        assert "3 of 4 partitions c…" in shown
        assert shown.endswith("\x1b[2K")
        terminal.seek(terminal.truncate(0))
    assert line.elapsed_s > 0


@pytest.mark.parametrize("show", [True, False])
def test_nothing_is_shown_without_a_terminal_or_when_switched_off(
    show: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not show:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with ProgressLine(lambda: pytest.fail("the line is not shown"), show=show):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("part", "shown"), [(0.0, "[....]   0%"), (0.5, "[##..]  50%"), (1.0, "[####] 100%"), (7.0, "[####] 100%")]
)
def test_a_bar_is_full_at_the_end(part: float, shown: str) -> None:
    assert bar(part, width=4) == shown
