# SPDX-License-Identifier: Apache-2.0
"""Compiles the path of a sent record with mypyc: `python deploy/tools/compiled.py DIRECTORY`.

DIRECTORY gets a copy of the package, with C extensions in addition to the modules of `MODULES`. The sources stay pure
Python. The build reads no other modules, so it needs no dependency of the package, and the extensions of an
earlier build stay while `MODULES`, mypy, Python and the settings of the build are the same.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MODULES: Final = (
    "tidemark.client.producing.accumulator",
    "tidemark.client.producing.batching",
    "tidemark.client.producing.lanes",
    "tidemark.client.producing.splitting",
    "tidemark.client.producing.typed_format",
    "tidemark.client.producing.typed_formats",
    "tidemark.client.typed.record_rows",
)
"""Modules that a measurement has shown to pay, and those with subclasses of their classes (docs/performance.md)."""
SETTING: Final = "TIDEMARK_COMPILE"
"""Environment variable of hatch_build.py."""
_SERVICES: Final = Path(__file__).resolve().parents[2] / "services"
_OPTIONS: Final = ("--config-file=", "--explicit-package-bases", "--follow-imports=skip", "--ignore-missing-imports")
_SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")
_BUILT_FROM: Final = "built-from"
"""File of a directory: a digest of the sources and tools of its extensions."""


def missing() -> str | None:
    """The part of a C compiler that this machine lacks, as a clause; None if it can compile."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.is_file() else f"there are no headers of Python ({header})"


def copy(target: Path) -> None:
    """Replace a directory by a copy of the package."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_SERVICES, target, ignore=shutil.ignore_patterns("__pycache__"))


def build(target: Path) -> list[Path]:
    """Compile into a new directory and return the paths of the extensions in it.

    Raises:
        RuntimeError: there is no mypyc, or mypyc or the C compiler failed; with the output.
    """
    if importlib.util.find_spec("mypyc") is None:
        raise RuntimeError("there is no mypyc")
    environment = {**os.environ, "MYPYPATH": "."}
    environment.setdefault("MYPYC_OPT_LEVEL", "1")  # as fast as 3 here, and built in half the time
    sources = [f"{module.replace('.', '/')}.py" for module in MODULES]
    built_from = _digest(sources, environment)
    stamp = target / _BUILT_FROM
    kept: dict[Path, bytes] = {}
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == built_from:
        kept = {path.relative_to(target): path.read_bytes() for path in target.rglob(f"*{_SUFFIX}")}
    copy(target)
    if not kept:
        _compile(target, sources, environment)
    for path, content in kept.items():
        (target / path).write_bytes(content)
    stamp.write_text(built_from, encoding="utf-8")
    return sorted(target.rglob(f"*{_SUFFIX}"))


def _digest(sources: list[str], environment: Mapping[str, str]) -> str:
    """Digest of all inputs of the extensions."""
    settings = {name: environment.get(name) for name in ("CC", "CFLAGS", "MYPYC_OPT_LEVEL", "MYPYC_DEBUG_LEVEL")}
    tools = (sys.version, sysconfig.get_platform(), importlib.metadata.version("mypy"), _OPTIONS, settings)
    digest = hashlib.sha256(repr(tools).encode())
    for source in sources:
        digest.update(source.encode() + hashlib.sha256((_SERVICES / source).read_bytes()).digest())
    return digest.hexdigest()


def _compile(target: Path, sources: list[str], environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "mypyc", *_OPTIONS, *sources]
    done = subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(target / "build", ignore_errors=True)
    shutil.rmtree(target / ".mypy_cache", ignore_errors=True)
    if done.returncode:
        raise RuntimeError(f"mypyc failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Build into the named directory, or copy the package where there is no C compiler."""
    target = Path(sys.argv[1])
    reason = missing()
    if reason is None:
        sys.stdout.write(f"{len(build(target))} extensions are in {target}\n")
        return
    copy(target)
    sys.stdout.write(f"{reason}: the tests run on the Python modules\n")


if __name__ == "__main__":
    main()
