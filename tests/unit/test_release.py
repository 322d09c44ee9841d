# SPDX-License-Identifier: Apache-2.0
"""The release: one version everywhere, notes from the changelog, and refusals that name the next step."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.tools import compiled, release
from deploy.tools.release import (
    COPIES,
    SOURCE,
    Place,
    ReleaseError,
    check_wheel,
    disagreements,
    main,
    notes,
    notes_on_wheels,
    read,
    refuse_unreleasable,
    write_version,
)
from deploy.tools.release import build as build_release

PURE = "tidemark-0.1.0-py3-none-any.whl"
PLATFORM = "tidemark-0.1.0-cp311-cp311-linux_x86_64.whl"
ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date(2027, 1, 31)
CHANGES = """\
# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-11-23

The first.

[0.1.0]: elsewhere
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that hold the version, with the committed text, and a changelog."""
    for path in {place.path for place in (SOURCE, *COPIES)}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    subprocess.run(["git", "-C", str(tree), *identity, *words], check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "Everything")


def test_every_file_states_the_version_of_pyproject() -> None:
    assert disagreements(ROOT) == []


def test_the_changelog_has_notes_for_this_version() -> None:
    assert notes((ROOT / "CHANGELOG.md").read_text(), read(ROOT, SOURCE))


@pytest.mark.parametrize("place", COPIES, ids=lambda place: f"{place.path}-{place.what}")
def test_one_place_with_another_version_is_named_and_stops_the_release(tree: Path, place: Place) -> None:
    version = read(tree, place)
    text = (tree / place.path).read_text()
    found = re.search(place.pattern, text)
    assert found is not None
    start, end = found.span()[0] + len(found[1]), found.end() - len(found[2])
    (tree / place.path).write_text(f"{text[:start]}9.9.9{text[end:]}")
    sentence = f"{place.path}: {place.what} is 9.9.9, not {version}"
    assert disagreements(tree) == [sentence]
    with pytest.raises(ReleaseError) as refused:
        build_release(tree, is_dry=True)
    assert str(refused.value) == f"{sentence}: run make version VERSION={version}"
    assert not (tree / "dist").exists()


def test_a_version_is_written_to_every_place_and_to_the_changelog(tree: Path) -> None:
    write_version(tree, "0.2.0", TODAY)
    assert {read(tree, place) for place in (SOURCE, *COPIES)} == {"0.2.0"}
    changes = (tree / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2027-01-31\n\n### Added\n" in changes
    assert notes(changes, "0.2.0") == "### Added\n\n- A thing.\n"
    write_version(tree, "0.2.0", TODAY)
    assert (tree / "CHANGELOG.md").read_text() == changes, "the same version again changes nothing"


@pytest.mark.parametrize("version", ["1", "1.2", "v1.2.3", "1.2.3rc1", "1.2.3 ", "latest"])
def test_a_version_of_another_form_is_refused_before_anything_is_written(tree: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match=r"is not a version: use X\.Y\.Z"):
        write_version(tree, version, TODAY)
    assert disagreements(tree) == []
    assert (tree / "CHANGELOG.md").read_text() == CHANGES


def test_a_changelog_without_unreleased_changes_is_refused_before_anything_is_written(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    before = read(tree, SOURCE)
    with pytest.raises(ReleaseError, match="no section '## \\[Unreleased\\]': add one"):
        write_version(tree, "0.2.0", TODAY)
    assert {read(tree, place) for place in (SOURCE, *COPIES)} == {before}


def test_notes_end_where_the_next_section_or_the_links_begin() -> None:
    assert notes(CHANGES, "0.1.0") == "The first.\n"
    assert notes(CHANGES, "Unreleased") == "### Added\n\n- A thing.\n"


@pytest.mark.parametrize("changes", ["# Changelog\n", "## [0.3.0] - 2027-01-31\n\n## [0.2.0] - 2027-01-01\n\nOld.\n"])
def test_a_version_without_notes_is_refused(changes: str) -> None:
    with pytest.raises(ReleaseError, match=r"no changes of 0\.3\.0: add a section"):
        notes(changes, "0.3.0")


def test_a_clean_tree_without_the_tag_is_released(tree: Path) -> None:
    write_version(tree, "0.2.0", TODAY)
    commit(tree)
    refuse_unreleasable(tree, "0.2.0")


def test_a_changelog_with_unreleased_changes_is_refused_with_the_way_out(tree: Path) -> None:
    """Otherwise the archives have these changes, and the notes of the release do not."""
    commit(tree)
    with pytest.raises(ReleaseError, match="has unreleased changes: give them a version with make version VERSION="):
        refuse_unreleasable(tree, "0.1.0")


def test_a_changed_tree_is_refused_with_the_way_out(tree: Path) -> None:
    commit(tree)
    (tree / "CHANGELOG.md").write_text("changed")
    with pytest.raises(
        ReleaseError, match=r"commit in CHANGELOG\.md: commit or remove these changes, or try with DRY_RUN=1"
    ):
        refuse_unreleasable(tree, "0.2.0")


def test_a_version_that_has_its_tag_is_refused_with_the_way_out(tree: Path) -> None:
    commit(tree)
    git(tree, "tag", "v0.2.0")
    with pytest.raises(ReleaseError, match=r"the tag v0\.2\.0 exists: choose the next version with make version"):
        refuse_unreleasable(tree, "0.2.0")


def test_a_directory_that_is_no_clone_is_refused(tree: Path) -> None:
    with pytest.raises(ReleaseError, match=r"git status failed: .*not a git repository"):
        refuse_unreleasable(tree, "0.2.0")


def test_the_command_shows_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{read(ROOT, SOURCE)}\n"


def test_the_command_reports_a_refusal_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "two"]) == 1
    assert capsys.readouterr().err == "no release: 'two' is not a version: use X.Y.Z, such as 0.2.0\n"


def module_wheel(directory: Path, name: str, suffix: str = ".py") -> Path:
    """A wheel whose only module is `made`."""
    with zipfile.ZipFile(directory / name, "w") as wheel:
        wheel.writestr(f"made{suffix}", "")
    return directory / name


@pytest.mark.parametrize("compiler", [True, False])
def test_a_release_has_a_pure_wheel_and_with_a_compiler_one_with_extensions(
    tree: Path, monkeypatch: pytest.MonkeyPatch, *, compiler: bool
) -> None:
    commit(tree)
    runs: list[list[str]] = []

    def fake(source: Path, target: Path, settings: dict[str, str], *flags: str) -> None:
        runs.append([source.name, settings["TIDEMARK_COMPILE"], *flags])
        (target / (PURE if settings["TIDEMARK_COMPILE"] == "0" else PLATFORM)).touch()
        if not flags:
            with tarfile.open(target / "tidemark-0.1.0.tar.gz", "w:gz") as sdist:
                sdist.add(tree / "CHANGELOG.md", "tidemark-0.1.0/CHANGELOG.md")

    checked: list[str] = []
    monkeypatch.setattr(release, "_run_build", fake)
    monkeypatch.setattr(release, "_package_charts", lambda *_: None)
    monkeypatch.setattr(release, "check_wheel", lambda wheel: checked.append(wheel.name))
    monkeypatch.setattr(compiled, "missing", lambda: None if compiler else "there is no C compiler (gcc)")
    files = {path.name for path in build_release(tree, is_dry=True)}
    wheels = {PURE, PLATFORM} if compiler else {PURE}
    assert files == {*wheels, "tidemark-0.1.0.tar.gz", "SHA256SUMS", "NOTES.md"}
    assert set(checked) == wheels
    assert runs == [[tree.name, "0"], ["tidemark-0.1.0", "1", "--wheel"]][: len(wheels)]
    said = (tree / "dist" / "NOTES.md").read_text()
    assert {name for name in (PURE, PLATFORM) if f"- `{name}`: " in said} == wheels


def test_a_wheel_is_checked_by_the_modules_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MODULES", ("made",))
    check_wheel(module_wheel(tmp_path, PURE))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    with pytest.raises(ReleaseError, match=re.escape(f"{PLATFORM} has no {suffix} of a module, which came from /")):
        check_wheel(module_wheel(tmp_path, PLATFORM))
    with pytest.raises(ReleaseError, match=re.escape(f"{PURE} cannot be imported: ")):
        check_wheel(module_wheel(tmp_path, PURE, suffix))


def test_the_notes_say_which_wheel_is_for_which_system() -> None:
    pure, platform = notes_on_wheels([Path(PURE), Path(PLATFORM)]).splitlines()[-2:]
    assert pure == f"- `{PURE}`: pure Python, for every system."
    assert platform.startswith(
        f"- `{PLATFORM}`: with C extensions, for the Python and the system in its name, built with "
    )
