# SPDX-License-Identifier: Apache-2.0
"""The files at the door (contributing, help, hooks, CI) name existing things only, and run `make lint`'s checks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.run import LINT

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
_PATH = r"\b((?:services|tests|proto|docs|deploy|charts|tools|bench|spark)/[\w./-]*\w/?)"
PATHS = sorted({*re.findall(_PATH, CONTRIBUTING), *re.findall(r"\]\(([^):#]+)[)#]", CONTRIBUTING)})
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
DECISION = ["Context", "Decision", "Alternatives considered", "Consequences", "What would change this decision"]


def targets() -> set[str]:
    """The make targets: the phony targets, with the parts of the suite."""
    parts = re.findall(r"^PARTS := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
    phony = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].replace("$(PARTS)", "").split()
    return {*parts, *phony}


def shown() -> str:
    done = subprocess.run(
        ["awk", "-f", "deploy/tools/help.awk", "Makefile"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout


def hooks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    return found


@pytest.mark.parametrize("path", PATHS)
def test_contributing_names_only_files_that_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_contributing_and_ci_call_only_targets_that_exist() -> None:
    called = set(re.findall(r"(?:^    |`|run: |command: )make ([a-z-]+)", CONTRIBUTING + WORKFLOW, re.MULTILINE))
    assert called
    assert called <= targets()


def test_make_help_lists_every_target() -> None:
    listed = set(re.findall(r"^  make ([a-z|-]+)", shown(), re.MULTILINE))
    assert {name for names in listed for name in names.split("|")} == targets() - {"prerequisites"}


def test_make_help_fits_a_terminal() -> None:
    assert max(map(len, shown().splitlines())) <= 118


def test_the_hooks_are_the_commands_of_make_lint() -> None:
    entries = [hook["entry"] for hook in hooks() if hook["language"] == "system"]
    assert entries == [" ".join([f".venv/bin/{Path(command).name}", *rest]) for command, *rest in LINT]


@pytest.mark.parametrize(("length", "is_refused"), [(72, False), (73, True)])
def test_the_hook_of_commit_messages_refuses_a_long_subject_only(length: int, is_refused: bool) -> None:
    pattern = next(hook["entry"] for hook in hooks() if hook["id"] == "commit-subject")
    message = f"{'x' * length}\n\n{'A long line of the body. ' * 5}\n"
    assert bool(re.search(pattern, message, re.MULTILINE)) == is_refused


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.y*ml")), ids=lambda path: path.name)
def test_the_files_of_the_host_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_every_decision_has_all_its_sections_and_is_listed() -> None:
    index = (ROOT / "docs" / "adr" / "index.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs" / "adr").glob("0*.md"):
        headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        assert headings == DECISION
        assert f"({path.name})" in index
        assert f"adr/{path.name}" in navigation
