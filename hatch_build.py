# SPDX-License-Identifier: Apache-2.0
"""Build hook: the gRPC stubs, with their types, from proto/ into services/tidemark/v1. They are never committed.

With TIDEMARK_COMPILE=1 a wheel also gets the C extensions of deploy/tools/compiled.py, and is for one platform.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLUGINS = ("mypy", "mypy_grpc")
_COMPILES = os.environ.get("TIDEMARK_COMPILE") == "1"


class StubsHook(BuildHookInterface):
    """Runs protoc before every wheel, editable ones included."""

    def dependencies(self) -> list[str]:
        """Of the build environment, beside those of pyproject.toml."""
        return ["mypy[mypyc]>=2"] if _COMPILES else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate; a source distribution carries proto/ only."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        target = root / "services"
        protos = sorted(str(path.relative_to(root)) for path in (root / "proto").glob("tidemark/v1/*.proto"))
        outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", *_PLUGINS)]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *_plugin_paths(), *outputs, *protos]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"protoc failed:\n{done.stderr}")
        if _COMPILES and version != "editable":
            self._compile(root, build_data)

    def _compile(self, root: Path, build_data: dict[str, Any]) -> None:
        target = root / "build" / "compiled"
        command = [sys.executable, "deploy/tools/compiled.py", str(target)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        extensions = list(target.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))
        if done.returncode or not extensions:
            raise RuntimeError(f"TIDEMARK_COMPILE=1, but nothing was compiled:\n{done.stdout}{done.stderr}")
        build_data["force_include"] |= {str(path): str(path.relative_to(target)) for path in extensions}
        build_data |= {"pure_python": False, "infer_tag": True}


def _plugin_paths() -> list[str]:
    """Where the build environment put protoc's plugins, which may not be on PATH."""
    scripts = [Path(entry).parent for entry in sys.path if entry.endswith("site-packages")]
    places = [Path(sysconfig.get_path("scripts")), *(place.parent.parent / "bin" for place in scripts)]
    found = []
    for plugin in _PLUGINS:
        name = f"protoc-gen-{plugin}"
        path = next((place / name for place in places if (place / name).exists()), None)
        if path is not None:
            found.append(f"--plugin={name}={path}")
    return found
