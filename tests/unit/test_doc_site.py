# SPDX-License-Identifier: Apache-2.0
"""The documentation site: links out of docs/ lead to pages with the file's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.tools.doc_site import indented, outside, page_of, rewritten, site_path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEST = "../tests/unit/test_doc_site.py"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("guarantees.md", f"[a]({TEST})", "[a](source/tests/unit/test_doc_site.py.md)"),
        ("adr/0002-pure-core.md", f"[a](../{TEST})", "[a](../source/tests/unit/test_doc_site.py.md)"),
        ("index.md", "[c](../CONTRIBUTING.md#words)", "[c](source/CONTRIBUTING.md#words)"),
        ("source/CONTRIBUTING.md", "[g](docs/guarantees.md#the-promises)", "[g](../guarantees.md#the-promises)"),
        ("source/CONTRIBUTING.md", "[l](LICENSE)", "[l](LICENSE.md)"),
        ("index.md", "[protos](../proto/tidemark/v1/)", "protos"),
        ("index.md", "[p](protocol.md#in-sync)", "[p](protocol.md#in-sync)"),
        ("index.md", "[h](https://example.org/x)", "[h](https://example.org/x)"),
        ("index.md", "[m](nothing.md)", "[m](nothing.md)"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(page: str, link: str, expected: str) -> None:
    assert rewritten(link, page) == expected


def test_only_files_outside_docs_get_pages() -> None:
    page = f"[a]({TEST}) [b](protocol.md) [c](../proto/tidemark/v1/) [d](nothing.md)"
    assert outside(page, "guarantees.md") == {"tests/unit/test_doc_site.py"}


def test_a_source_file_is_a_page_that_search_leaves_out() -> None:
    page = page_of("tests/unit/test_doc_site.py")
    assert "exclude: true" in page
    assert "~~~~~~python\n# SPDX" in page
    assert site_path("tests/unit/test_doc_site.py") == "source/tests/unit/test_doc_site.py.md"
    assert site_path("tests/unit") is None


def test_items_that_github_takes_with_three_spaces_are_items_on_the_site() -> None:
    text = "1. a\n   - b\n\n```\n   code\n```\n    more\n"
    assert indented(text) == "1. a\n    - b\n\n```\n   code\n```\n    more\n"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_to_headings_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(
        re.findall(r"^ +- (?:[\w ]+: )?([\w/.-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in listed if not page.startswith("source/")} == pages
