# SPDX-License-Identifier: Apache-2.0
"""Prints requirements of pyproject.toml, one per line: those of `build`, of `base`, or of an extra.

The images install them before the code, so that a code change downloads nothing again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(names: list[str]) -> None:
    """Print the requirements of `names` without blanks, since the shell splits the output at blanks."""
    file = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))
    project = file["project"]
    known = {
        "build": file["build-system"]["requires"],
        "base": project["dependencies"],
        **project["optional-dependencies"],
    }
    for name in names:
        for requirement in known[name]:
            sys.stdout.write(f"{''.join(requirement.split())}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
