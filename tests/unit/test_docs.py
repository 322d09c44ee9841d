# SPDX-License-Identifier: Apache-2.0
"""The pages name only existing things."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest
from tidemark.runtime.configuration.keys import KEYS

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ROOMS = sorted(path.name for path in (ROOT / "services" / "tidemark").iterdir() if path.is_dir())
NAMED = sorted(set(re.findall(rf"`((?:{'|'.join(ROOMS)})\.[\w.]+)`", PROTOCOL)))


@pytest.mark.parametrize("name", NAMED)
def test_names_on_the_protocol_page_exist(name: str) -> None:
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
    for target, anchor in re.findall(r"\]\(([^)#:]*?)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_code_column_of_the_glossary_names_existing_objects() -> None:
    package = ROOT / "services" / "tidemark"
    sources = "".join(path.read_text() for path in [*package.rglob("*.py"), *(ROOT / "proto").rglob("*.proto")])
    rows = re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|[^|]*\|[^|]*\|$", GLOSSARY, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(names) > 80
    missing = [
        name
        for name in sorted(names)
        if name not in KEYS
        and not any(path.exists() for path in (ROOT / name, package / name))
        and not all(part in sources for part in (name.split(".") if name[0].isupper() else [name]))
    ]
    assert not missing, missing
