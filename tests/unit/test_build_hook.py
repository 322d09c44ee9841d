# SPDX-License-Identifier: Apache-2.0
"""The build hook: a wheel has C extensions where there is a compiler, unless TIDEMARK_COMPILE disables them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deploy.tools import compiled

ROOT = Path(__file__).resolve().parents[2]
MYPYC = ["mypy[mypyc]>=2"]
NO_COMPILER = "there is no C compiler (/no/compiler)"
INTERFACE = "hatchling.builders.hooks.plugin.interface"


class Plugin:
    """The part of hatchling's class that the hook uses; hatchling itself is in build environments only."""

    root = str(ROOT)
    target_name = "wheel"

    def __init__(self) -> None:
        self.app = self
        self.said: list[str] = []

    def display_info(self, message: str) -> None:
        self.said.append(message)

    display_warning = display_info


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module without protoc and mypyc: a build has one extension, and there is a compiler."""
    interface = ModuleType(INTERFACE)
    interface.__dict__["BuildHookInterface"] = Plugin
    for depth in range(1, INTERFACE.count(".") + 1):
        name = INTERFACE.rsplit(".", depth)[0]
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    monkeypatch.delitem(sys.modules, "hatch_build", raising=False)
    module = importlib.import_module("hatch_build")
    del sys.modules["hatch_build"]
    monkeypatch.setattr(module, "_generate", lambda _: None)
    assert module._tool(ROOT).keys() >= {"missing", "build"}
    monkeypatch.setattr(module, "_tool", lambda _: vars(compiled))
    monkeypatch.setattr(compiled, "missing", lambda: None)
    monkeypatch.setattr(compiled, "build", lambda target: [target / "tidemark" / "lanes.so"])
    monkeypatch.delenv("TIDEMARK_COMPILE", raising=False)
    return module


def built(hook: ModuleType, version: str = "standard") -> tuple[list[str], dict[str, Any], list[str]]:
    """Build a wheel; returns the requirements of the build, the data of the wheel, and the messages."""
    plugin = hook.StubsHook()
    data: dict[str, Any] = {"force_include": {}}
    required = plugin.dependencies()
    plugin.initialize(version, data)
    return required, data, plugin.said


@pytest.mark.parametrize("choice", [None, "", "auto", "1"])
def test_a_wheel_has_the_extensions_where_there_is_a_compiler(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, choice: str | None
) -> None:
    if choice is not None:
        monkeypatch.setenv("TIDEMARK_COMPILE", choice)
    extension = str(ROOT / "build" / "wheel" / "tidemark" / "lanes.so")
    data = {"force_include": {extension: "tidemark/lanes.so"}, "pure_python": False, "infer_tag": True}
    assert built(hook) == (MYPYC, data, ["the wheel has C extensions"])


def test_a_wheel_is_pure_python_where_no_compiler_is_and_needs_no_mypyc(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "missing", lambda: NO_COMPILER)
    assert built(hook) == ([], {"force_include": {}}, [f"the wheel is pure Python: {NO_COMPILER}"])


@pytest.mark.parametrize("reason", ["there is no mypyc", "mypyc failed:\nsome output"])
def test_a_wheel_is_pure_python_where_the_build_fails(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def fail(_: Path) -> list[Path]:
        raise RuntimeError(reason)

    monkeypatch.setattr(compiled, "build", fail)
    assert built(hook) == (MYPYC, {"force_include": {}}, [f"the wheel is pure Python: {reason}"])
    monkeypatch.setenv("TIDEMARK_COMPILE", "1")
    with pytest.raises(RuntimeError, match=f"TIDEMARK_COMPILE=1, but {reason}"):
        built(hook)


def test_extensions_that_were_asked_for_are_refused_where_no_compiler_is(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "missing", lambda: NO_COMPILER)
    monkeypatch.setenv("TIDEMARK_COMPILE", "1")
    with pytest.raises(RuntimeError, match=r"TIDEMARK_COMPILE=1, but there is no C compiler \(/no/compiler\)"):
        built(hook)


def test_a_wheel_is_pure_python_on_request(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_COMPILE", "0")
    assert built(hook) == ([], {"force_include": {}}, [])


def test_an_editable_installation_has_no_extensions(hook: ModuleType) -> None:
    assert built(hook, "editable")[1:] == ({"force_include": {}}, [])


def test_another_choice_is_refused(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_COMPILE", "yes")
    with pytest.raises(RuntimeError, match="TIDEMARK_COMPILE is auto, 0 or 1, not 'yes'"):
        built(hook)


def test_a_machine_without_a_compiler_or_headers_says_which_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/no/compiler -pthread")
    assert compiled.missing() == NO_COMPILER
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert compiled.missing() == f"there are no headers of Python ({tmp_path / 'Python.h'})"
    (tmp_path / "Python.h").touch()
    assert compiled.missing() is None
