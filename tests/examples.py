# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/clients.md and docs/typed-topics.md: Python that runs, and its printed output.

`python -m tests.examples` checks their types with mypy and with pyright (basedpyright's, which comes whole), both
strict, as a user's program is checked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = tuple(ROOT / "docs" / name for name in ("clients.md", "typed-topics.md"))


class Example(NamedTuple):
    """A block of Python, its page, the heading above the block, and its printed output."""

    page: str
    heading: str
    code: str
    output: str


def examples() -> list[Example]:
    """All examples, in the order of the pages; each must state its output."""
    return [example for path in PAGES for example in _of(path)]


def _of(path: Path) -> list[Example]:
    page = path.read_text()
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        heading = re.findall(r"^#+ (.*)$", page[: block.start()], re.MULTILINE)[-1]
        found.append(Example(path.name, heading, *block.groups()))
    assert len(found) == page.count("```python\n"), f"a block of Python in {path.name} does not state its output"
    return found


def write(directory: Path) -> list[Path]:
    """Each as a program of its own."""
    paths = []
    for index, example in enumerate(examples()):
        path = directory / f"example_{index}.py"
        path.write_text(example.code)
        paths.append(path)
    return paths


# Types that other packages leave open are not this project's to correct.
_PYRIGHT: Final = {"typeCheckingMode": "strict", "reportUnknownMemberType": False, "pythonVersion": "3.11"}


def main() -> int:
    """Check them; the exit status is that of the first checker that finds something."""
    with tempfile.TemporaryDirectory(prefix="tidemark-examples-") as directory:
        paths = [str(path) for path in write(Path(directory))]
        config = Path(directory, "pyrightconfig.json")
        config.write_text(json.dumps({"include": ["."], "extraPaths": [str(ROOT / "services")], **_PYRIGHT}))
        mypy = [sys.executable, "-m", "mypy", "--strict", *paths]
        pyright = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(config)]
        found = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in (mypy, pyright)]
        return next(filter(None, found), 0)


if __name__ == "__main__":
    sys.exit(main())
