# SPDX-License-Identifier: Apache-2.0
"""Makes a release: one version everywhere, built files and notes in dist/, and a tag.

    python -m deploy.tools.release version [X.Y.Z]     show the version, or write it everywhere
    python -m deploy.tools.release build [--dry-run]   build dist/ and tag; --dry-run builds and does not tag

pyproject.toml is the source of the version. The charts repeat it, because Helm reads nothing else; CHANGELOG.md has a
section for it. `build` refuses to run while they disagree.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from deploy.tools import compiled

ROOT: Final = Path(__file__).resolve().parents[2]
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


class Place(NamedTuple):
    """A line that holds the version: `pattern` has one group on each side of the version."""

    path: str
    what: str
    pattern: str


SOURCE: Final = Place("pyproject.toml", "project.version", r'(?m)^(version = ")[^"]*(")$')
COPIES: Final = (
    Place("charts/tidemark/Chart.yaml", "version", r"(?m)^(version: )\S+()$"),
    Place("charts/tidemark/Chart.yaml", "appVersion", r'(?m)^(appVersion: ")[^"]*(")$'),
    Place("charts/tidemark/Chart.yaml", "dependencies[zookeeper].version", r"(?m)^(    version: )\S+()$"),
    Place("charts/zookeeper/Chart.yaml", "version", r"(?m)^(version: )\S+()$"),
    Place("deploy/spark/Chart.yaml", "version", r"(?m)^(version: )\S+()$"),
)
_CHANGES: Final = "CHANGELOG.md"
_UNRELEASED: Final = "## [Unreleased]\n"


class ReleaseError(Exception):
    """Why the release is refused, and what to do, in one sentence."""


def read(root: Path, place: Place) -> str:
    """The version at a place."""
    text = (root / place.path).read_text(encoding="utf-8")
    found = re.search(place.pattern, text)
    if found is None:
        raise ReleaseError(f"{place.path} has no {place.what}: restore the line that matches {place.pattern}")
    return found.group().removeprefix(found.group(1)).removesuffix(found.group(2))


def disagreements(root: Path) -> list[str]:
    """A sentence for each place whose version is not that of pyproject.toml."""
    version = read(root, SOURCE)
    found = [(place, read(root, place)) for place in COPIES]
    return [f"{place.path}: {place.what} is {other}, not {version}" for place, other in found if other != version]


def write_version(root: Path, version: str, today: datetime.date) -> None:
    """Write a version to every place, and move the unreleased changes below its heading.

    Raises:
        ReleaseError: the version has another form, or CHANGELOG.md has no section of unreleased changes.
    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version: use X.Y.Z, such as 0.2.0")
    changes = (root / _CHANGES).read_text(encoding="utf-8")
    heading = f"## [{version}]"
    if heading not in changes:
        if _UNRELEASED not in changes:
            raise ReleaseError(f"{_CHANGES} has no section '{_UNRELEASED.strip()}': add one")
        changes = changes.replace(_UNRELEASED, f"{_UNRELEASED}\n{heading} - {today.isoformat()}\n", 1)
        (root / _CHANGES).write_text(changes, encoding="utf-8")
    for place in (SOURCE, *COPIES):
        path = root / place.path
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(place.pattern, rf"\g<1>{version}\g<2>", text, count=1), encoding="utf-8")


def notes(changes: str, version: str) -> str:
    """The section of CHANGELOG.md on one version, without its heading.

    Raises:
        ReleaseError: the section is missing or empty.
    """
    found = _section(changes, version)
    if not found:
        raise ReleaseError(f"{_CHANGES} has no changes of {version}: add a section '## [{version}] - YYYY-MM-DD'")
    return found + "\n"


def _section(changes: str, heading: str) -> str:
    """The text below a heading, empty without the heading."""
    found = re.search(rf"(?ms)^## \[{re.escape(heading)}\][^\n]*\n(.*?)(?=^## \[|^\[[^\]]+\]: |\Z)", changes)
    return found.group(1).strip() if found else ""


def refuse_unreleasable(root: Path, version: str) -> None:
    """Raise ReleaseError if the work tree differs from its commit, the version has a tag, or changes are unreleased."""
    if changed := _git(root, "status", "--porcelain").splitlines():
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise ReleaseError(
            f"the work tree differs from its commit in {changed[0][3:]}{others}: "
            "commit or remove these changes, or try with DRY_RUN=1"
        )
    if _git(root, "tag", "--list", f"v{version}").strip():
        raise ReleaseError(f"the tag v{version} exists: choose the next version with make version VERSION=X.Y.Z")
    if _section((root / _CHANGES).read_text(encoding="utf-8"), "Unreleased"):
        raise ReleaseError(f"{_CHANGES} has unreleased changes: give them a version with make version VERSION=X.Y.Z")


def build(root: Path, *, is_dry: bool) -> list[Path]:
    """Check, build everything into dist/, and tag the commit unless `is_dry`; returns the files.

    A dry run also accepts a work tree that differs from its commit, and a version that has its tag.

    Raises:
        ReleaseError: a check or a builder failed.
    """
    version = read(root, SOURCE)
    if wrong := disagreements(root):
        raise ReleaseError(f"{'; '.join(wrong)}: run make version VERSION={version}")
    text = notes((root / _CHANGES).read_text(encoding="utf-8"), version)
    if not is_dry:
        refuse_unreleasable(root, version)
    target = root / "dist"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    _build_python(root, target)
    _package_charts(root, target)
    files = sorted(target.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / "SHA256SUMS").write_text(sums, encoding="utf-8")
    text += notes_on_wheels([path for path in files if path.suffix == ".whl"])
    (target / "NOTES.md").write_text(text, encoding="utf-8")
    if not is_dry:
        _git(root, "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--file", str(target / "NOTES.md"))
    return sorted(target.iterdir())


def _build_python(root: Path, target: Path) -> None:
    """The sdist and the wheels built from that sdist, so that the sdist is known to be complete.

    One wheel is pure Python. The other has C extensions for this machine's Python, if there is a C compiler.
    """
    epoch = _git(root, "log", "-1", "--format=%ct").strip()
    _run_build(root, target, {"SOURCE_DATE_EPOCH": epoch, "TIDEMARK_COMPILE": "0"})
    if compiled.missing() is None:
        with tempfile.TemporaryDirectory() as directory, tarfile.open(next(target.glob("*.tar.gz"))) as sdist:
            sdist.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
            sdist.extractall(directory)
            (source,) = Path(directory).iterdir()
            _run_build(source, target, {"SOURCE_DATE_EPOCH": epoch, "TIDEMARK_COMPILE": "1"}, "--wheel")
    for wheel in target.glob("*.whl"):
        check_wheel(wheel)


def _run_build(source: Path, target: Path, settings: dict[str, str], *flags: str) -> None:
    command = [sys.executable, "-m", "build", *flags, "--outdir", str(target), str(source)]
    done = subprocess.run(command, check=False, env=os.environ | settings, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise ReleaseError("python -m build failed; its output is above")


def check_wheel(wheel: Path) -> None:
    """Import from a wheel each module that can be compiled.

    Raises:
        ReleaseError: a module of a pure wheel is an extension, or one of another wheel is not, or an import failed.
    """
    suffix = ".py" if is_pure(wheel) else sysconfig.get_config_var("EXT_SUFFIX")
    script = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as content:
        content.extractall(directory)
        command = [sys.executable, "-c", script, *compiled.MODULES]
        environment = os.environ | {"PYTHONPATH": directory}
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, cwd=directory)
    if done.returncode:
        raise ReleaseError(f"{wheel.name} cannot be imported: {done.stderr.strip()}")
    wrong = [path for path in done.stdout.splitlines() if not (path.startswith(directory) and path.endswith(suffix))]
    if wrong:
        raise ReleaseError(f"{wheel.name} has no {suffix} of a module, which came from {wrong[0]}")


def is_pure(wheel: Path) -> bool:
    """Whether the name of a wheel states that it has no extensions."""
    return wheel.name.endswith("-none-any.whl")


def notes_on_wheels(wheels: list[Path]) -> str:
    """A section of the release notes: which wheel is for which system."""
    lines = [
        f"- `{wheel.name}`: pure Python, for every system."
        if is_pure(wheel)
        else f"- `{wheel.name}`: with C extensions, for the Python and the system in its name, "
        f"built with {' '.join(platform.libc_ver()).strip() or platform.system()}. pip prefers this wheel there."
        for wheel in wheels
    ]
    return "\n".join(["", "### Wheels", "", *lines, ""])


def _package_charts(root: Path, target: Path) -> None:
    import helm_python

    for name in ("tidemark", "zookeeper"):
        helm_python.package(root / "charts" / name, destination=target)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ReleaseError("git is not installed: a release is made from a git clone") from None
    except subprocess.CalledProcessError as error:
        raise ReleaseError(f"git {words[0]} failed: {error.stderr.strip()}") from error
    return done.stdout


def main(arguments: list[str]) -> int:
    """Run one command; the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m deploy.tools.release", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version").add_argument("version", nargs="?", help="X.Y.Z, written everywhere")
    commands.add_parser("build").add_argument("--dry-run", action="store_true", help="do not tag")
    options = parser.parse_args(arguments)
    try:
        if options.command == "version":
            if options.version:
                write_version(ROOT, options.version, datetime.datetime.now(datetime.UTC).date())
            _say(read(ROOT, SOURCE))
            for line in disagreements(ROOT):
                _say(f"  {line}")
            return 0
        for path in build(ROOT, is_dry=options.dry_run):
            _say(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")
        version = read(ROOT, SOURCE)
        _say("dry run: no tag" if options.dry_run else f"tagged v{version}; to publish: git push origin v{version}")
    except ReleaseError as error:
        sys.stderr.write(f"no release: {error}\n")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
