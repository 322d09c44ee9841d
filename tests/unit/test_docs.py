# SPDX-License-Identifier: Apache-2.0
"""The pages name only what is there."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
ROOMS = sorted(path.name for path in (ROOT / "services" / "tidemark").iterdir() if path.is_dir())
NAMED = sorted(set(re.findall(rf"`((?:{'|'.join(ROOMS)})\.[\w.]+)`", PROTOCOL)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_protocol_page_names_exists(name: str) -> None:
    pkgutil.resolve_name(f"tidemark.{name}")


def test_the_protocol_page_names_a_function_for_most_of_its_steps() -> None:
    steps = re.split(r"^\d+\. ", PROTOCOL.split("## Where this departs")[0], flags=re.MULTILINE)[1:]
    without = [step for step in steps if not re.search(r"`\w+\.[\w.]+`", step)]
    assert len(steps) > 30
    assert len(without) <= 6, without


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
