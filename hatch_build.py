# SPDX-License-Identifier: Apache-2.0
"""Build hook of wheels: the gRPC stubs, and C extensions where there is a C compiler.

The stubs, with their types, go from proto/ into services/tidemark/v1, and are never committed. deploy/tools/compiled.py
builds the extensions. TIDEMARK_COMPILE chooses them, but not for an editable installation, which has none:

    auto    extensions, or a wheel of pure Python and the reason on standard error; the default
    1       extensions, or an error
    0       a wheel of pure Python
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLUGINS = ("mypy", "mypy_grpc")


class StubsHook(BuildHookInterface):
    """Runs protoc before every wheel, editable ones included, and then maybe mypyc."""

    def dependencies(self) -> list[str]:
        """Of the build environment, beside those of pyproject.toml."""
        compiles = _choice() != "0" and _tool(self.root)["missing"]() is None
        return ["mypy[mypyc]>=2"] if compiles else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate; a source distribution carries proto/ only."""
        if self.target_name != "wheel":
            return
        _generate(Path(self.root))
        if version != "editable" and _choice() != "0":
            self._compile(Path(self.root), build_data)

    def _compile(self, root: Path, build_data: dict[str, Any]) -> None:
        target = root / "build" / "wheel"
        tool = _tool(root)
        reason = tool["missing"]()
        try:
            extensions = [] if reason else tool["build"](target)
        except RuntimeError as error:
            reason = str(error)
        if reason and _choice() == "1":
            raise RuntimeError(f"TIDEMARK_COMPILE=1, but {reason}")
        if reason:
            self.app.display_warning(f"the wheel is pure Python: {reason}")
            return
        build_data["force_include"] |= {str(path): str(path.relative_to(target)) for path in extensions}
        build_data |= {"pure_python": False, "infer_tag": True}
        self.app.display_info("the wheel has C extensions")


def _choice() -> str:
    choice = os.environ.get("TIDEMARK_COMPILE") or "auto"
    if choice not in {"auto", "0", "1"}:
        raise RuntimeError(f"TIDEMARK_COMPILE is auto, 0 or 1, not {choice!r}")
    return choice


def _tool(root: str | Path) -> dict[str, Any]:
    """Functions by name; the build environment has no module of them."""
    return runpy.run_path(str(Path(root, "deploy", "tools", "compiled.py")))


def _generate(root: Path) -> None:
    target = root / "services"
    protos = sorted(str(path.relative_to(root)) for path in (root / "proto").glob("tidemark/v1/*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", *_PLUGINS)]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *_plugin_paths(), *outputs, *protos]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"protoc failed:\n{done.stderr}")


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
