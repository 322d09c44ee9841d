# SPDX-License-Identifier: Apache-2.0
"""The modules of the optional build: this file runs on both the Python modules and the extensions."""

from __future__ import annotations

import importlib
import os
import sysconfig
from itertools import chain
from pathlib import Path

import pytest

from deploy.tools import compiled
from deploy.tools.compiled import MODULES, missing

TESTS = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_an_extension_only_where_the_build_was_asked_for(name: str) -> None:
    compiled = os.environ.get("TIDEMARK_COMPILE") == "1" and missing() is None
    path = importlib.import_module(name).__file__ or ""
    assert path.endswith((".so", ".pyd") if compiled else ".py")


def test_no_mutant_changes_a_compiled_module() -> None:
    """A mutant replaces attributes, which an extension refuses; so mutants run on the Python modules."""
    packages = {name.rpartition(".")[0] for name in MODULES}
    places = [TESTS.glob(f"{name}/**/*.py") for name in ("simulation", "exploration", "crash")]
    files = [*chain(*places), *TESTS.glob("contract/**/*mutants*.py")]
    assert len(files) > 100
    assert [str(path) for path in files if any(package in path.read_text() for package in packages)] == []


def test_extensions_of_a_build_stay_until_a_source_or_a_setting_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, target = tmp_path / "services", tmp_path / "compiled"
    built: list[int] = []

    def fake(target: Path, *_: object) -> None:
        built.append(len(built))
        (target / f"all{sysconfig.get_config_var('EXT_SUFFIX')}").write_text(f"build {len(built)}")

    for module in MODULES:
        (sources / module.replace(".", "/")).parent.mkdir(parents=True, exist_ok=True)
        (sources / f"{module.replace('.', '/')}.py").touch()
    monkeypatch.setattr(compiled, "_SERVICES", sources)
    monkeypatch.setattr(compiled, "_compile", fake)
    monkeypatch.setenv("MYPYC_OPT_LEVEL", "0")
    assert [path.read_text() for path in compiled.build(target)] == ["build 1"]
    (sources / "other.py").touch()
    assert [path.read_text() for path in compiled.build(target)] == ["build 1"]
    assert (target / "other.py").is_file()
    (sources / f"{MODULES[-1].replace('.', '/')}.py").write_text("changed = True")
    assert [path.read_text() for path in compiled.build(target)] == ["build 2"]
    monkeypatch.setenv("MYPYC_OPT_LEVEL", "1")
    assert [path.read_text() for path in compiled.build(target)] == ["build 3"]
