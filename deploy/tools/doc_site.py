# SPDX-License-Identifier: Apache-2.0
"""Hooks of the documentation site: pages for the files outside docs/ that a page links to.

The pages of docs/ link to tests and other files of the repository. On the site each such link leads to a page below
source/ with the file's text, so that the site is whole without a host for the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
PREFIX: Final = "source/"
ALWAYS: Final = ("CONTRIBUTING.md", "CHANGELOG.md")
"""In the navigation, whether or not a page links to them."""
_LINK: Final = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
_THREE_SPACES: Final = re.compile(r" {3}\S")
_LANGUAGES: Final = {
    ".py": "python",
    ".proto": "protobuf",
    ".yaml": "yaml",
    ".json": "json",
    ".sh": "sh",
    ".toml": "toml",
}


def repository_path(src_uri: str, target: str) -> str:
    """The path in the repository that a link of a page leads to; `..` first where it leads out of the repository."""
    page = src_uri.removeprefix(PREFIX) if src_uri.startswith(PREFIX) else f"docs/{src_uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_path(path: str) -> str | None:
    """The page of the site for a file of the repository; None for a directory."""
    if not (ROOT / path).is_file():
        return None
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PREFIX + (path if path.endswith(".md") else f"{path}.md")


def rewritten(markdown: str, src_uri: str) -> str:
    """The text of a page with its links to files outside docs/ leading to pages of the site.

    A link to a directory becomes its text: the site has no page for it.
    """

    def target_on_site(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = repository_path(src_uri, target)
        if not (ROOT / path).exists() or (path.startswith("docs/") and not src_uri.startswith(PREFIX)):
            return found[0]
        page = site_path(path)
        if page is None:
            return text[1:-1]
        return f"{text}({posixpath.relpath(page, posixpath.dirname(src_uri) or '.')}{anchor})"

    return _LINK.sub(target_on_site, markdown)


def outside(markdown: str, src_uri: str) -> set[str]:
    """The files outside docs/ that a page links to, as paths in the repository."""
    paths = {repository_path(src_uri, found[2]) for found in _LINK.finditer(markdown)}
    return {path for path in paths if not path.startswith("docs/") and (ROOT / path).is_file()}


def page_of(path: str) -> str:
    """The Markdown of the page for a file outside docs/."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(os.path.splitext(path)[1], "text")
    return f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {path}\n\n~~~~~~{language}\n{text}~~~~~~\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that is linked to, directly or from such a page."""
    from mkdocs.structure.files import File

    waiting = {*ALWAYS}
    for file in files.documentation_pages():
        waiting |= outside(file.content_string, file.src_uri)
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        page = str(site_path(path))
        content = page_of(path)
        files.append(File.generated(config, page, content=content))
        if path.endswith(".md"):
            waiting |= outside(content, page) - done
    return files


def indented(markdown: str) -> str:
    """The text with the further lines of list items indented by four spaces: Python-Markdown does not accept three."""
    lines, is_fenced = [], False
    for line in markdown.splitlines():
        is_fenced ^= line.startswith("```")
        lines.append(f" {line}" if not is_fenced and _THREE_SPACES.match(line) else line)
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adapt the text of one page to the site."""
    return indented(rewritten(markdown, page.file.src_uri))
