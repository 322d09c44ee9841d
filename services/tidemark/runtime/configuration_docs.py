# SPDX-License-Identifier: Apache-2.0
"""Writes docs/configuration.md: `python -m tidemark.runtime.configuration_docs docs/configuration.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.runtime.configuration import render_documentation


def main(argv: list[str]) -> int:
    """Write the page to the path in `argv`, or to stdout."""
    if argv:
        Path(argv[0]).write_text(render_documentation(), encoding="utf-8")
    else:
        sys.stdout.write(render_documentation())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
