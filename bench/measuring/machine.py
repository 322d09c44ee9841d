# SPDX-License-Identifier: Apache-2.0
"""The facts of a machine and of a commit that belong to a measurement."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

from deploy.tools import compiled

ROOT: Final = Path(__file__).resolve().parents[2]


def facts() -> dict[str, str | int | float]:
    """Processor, cores that this process may use, memory in GiB, kernel, Python, and whether there are C extensions."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "extensions": _has_extensions(),
    }


def _has_extensions() -> bool:
    spec = importlib.util.find_spec(compiled.MODULES[0])
    return spec is not None and str(spec.origin).endswith(sysconfig.get_config_var("EXT_SUFFIX"))


def commit(root: Path = ROOT) -> str:
    """The short id of the commit, with "+" if files differ from it; "" outside of a repository."""
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    return head and head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
