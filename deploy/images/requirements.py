# SPDX-License-Identifier: Apache-2.0
"""Prints the requirements of pyproject.toml, one a line: `build` for the build system's, `base`, or an extra's name.

The images install them before the code is there, so that a changed line of code fetches nothing again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(names: list[str]) -> None:
    """Print the requirements called `names`, without blanks: the shell splits the output at them."""
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
