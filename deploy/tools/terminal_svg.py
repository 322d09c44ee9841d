# SPDX-License-Identifier: Apache-2.0
"""Draws the output of a command as a picture of a terminal.

COLUMNS=104 make demo 2>/dev/null | .venv/bin/python -m deploy.tools.terminal_svg 'make demo' > docs/assets/demo.svg
"""

from __future__ import annotations

import re
import sys
from typing import Final
from xml.sax.saxutils import escape

_SIZE_PX: Final = 13
_CHARACTER_PX: Final = 7.83
"""Width of a character in common monospace fonts at this size; `textLength` forces every line to it."""
_LINE_PX: Final = 18
_MARGIN_PX: Final = 18
_BAR_PX: Final = 34
_COLOURS: Final = (
    (re.compile(r"^\$ "), "#7ee787"),
    (re.compile(r"^(kill -9|failover)"), "#ffa657"),
    (re.compile(r"^(passed, in|every one)"), "#7ee787"),
)
_TEXT: Final = "#d0d7de"


def picture(command: str, output: str) -> str:
    """The SVG of a command and its output, which may hold no escape sequences."""
    lines = [f"$ {command}", *output.rstrip().splitlines()]
    width = round(max(map(len, lines)) * _CHARACTER_PX + 2 * _MARGIN_PX)
    height = len(lines) * _LINE_PX + _BAR_PX + _MARGIN_PX
    dots = "".join(
        f'<circle cx="{_MARGIN_PX + 18 * index}" cy="17" r="5.5" fill="{colour}"/>'
        for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = [
        f'<text x="{_MARGIN_PX}" y="{_BAR_PX + _LINE_PX * (index + 0.75):g}" fill="{_colour(line)}" '
        f'textLength="{len(line) * _CHARACTER_PX:.1f}" lengthAdjust="spacingAndGlyphs">{_shown(line)}</text>'
        for index, line in enumerate(lines)
        if line.strip()
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            f'     role="img" font-family="monospace" font-size="{_SIZE_PX}">',
            f"<title>Terminal output of: {escape(command)}</title>",
            f'<rect width="{width}" height="{height}" rx="9" fill="#161b22" stroke="#30363d"/>',
            dots,
            *rows,
            "</svg>\n",
        ]
    )


def _shown(line: str) -> str:
    """Spaces as no-break spaces, which a viewer does not join."""
    return escape(line.replace(" ", "\u00a0"))


def _colour(line: str) -> str:
    return next((colour for pattern, colour in _COLOURS if pattern.search(line)), _TEXT)


if __name__ == "__main__":
    sys.stdout.write(picture(sys.argv[1], sys.stdin.read()))
