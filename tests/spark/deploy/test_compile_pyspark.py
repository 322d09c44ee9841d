# SPDX-License-Identifier: Apache-2.0
"""PySpark's zip file, with its modules compiled beforehand. No session is needed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from tidemark_spark import compile_pyspark

INSTALLED = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
WHERE = "import pyspark.serializers as module; print(module.__file__)"


def add_compiled(*paths: Path, code: int = 0, **environment: str) -> str:
    """The output of the command."""
    words = [sys.executable, compile_pyspark.__file__, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def output(program: str, *archives: Path) -> str:
    """The output of a Python that has only these archives before its own packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))}
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """PySpark's zip files, unchanged."""
    directory = tmp_path_factory.mktemp("plain")
    for path in INSTALLED:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(directory / path.name, "w") as made:
            for name in archive.namelist():
                if not name.endswith(".pyc"):
                    made.writestr(name, archive.read(name))
    return sorted(directory.iterdir())


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory, plain: list[Path]) -> list[Path]:
    """Copies of PySpark's zip files, compiled."""
    directory = tmp_path_factory.mktemp("lib")
    copies = [Path(shutil.copy(path, directory)) for path in plain]
    add_compiled(*copies)
    return copies


def test_workers_import_the_compiled_modules_of_pysparks_zip_file(archives: list[Path], plain: list[Path]) -> None:
    inside = [str(path) for path in archives]
    assert any("pyspark.zip" in path for path in inside)
    assert output(WHERE, *plain).strip().endswith("pyspark.zip/pyspark/serializers.py")
    (found,) = output(WHERE, *archives).split()
    assert found == f"{next(path for path in inside if path.endswith('pyspark.zip'))}/pyspark/serializers.pyc"
    started = "import sys, pyspark.worker; print(sum(module.__file__.endswith('.py') for name, module in "
    assert output(f"{started}sys.modules.items() if name.startswith(('pyspark', 'py4j'))))", *archives).strip() == "0"


def test_sources_stay_for_tracebacks_and_for_other_pythons(archives: list[Path], plain: list[Path]) -> None:
    for path, original in zip(archives, plain, strict=True):
        with zipfile.ZipFile(path) as compiled, zipfile.ZipFile(original) as source:
            assert compiled.testzip() is None
            assert {name: compiled.read(name) for name in source.namelist()} == {
                name: source.read(name) for name in source.namelist()
            }
    lines = "import inspect, pyspark.serializers as module; print(inspect.getsource(module.read_int).splitlines()[0])"
    assert output(lines, *archives).strip() == "def read_int(stream):"


def test_compiled_modules_are_not_compiled_again(archives: list[Path]) -> None:
    before = [path.read_bytes() for path in archives]
    assert all(line.endswith(": 0 modules compiled") for line in add_compiled(*archives).splitlines())
    assert [path.read_bytes() for path in archives] == before


def test_a_file_that_is_no_archive_or_does_not_compile_stays_as_it_was(tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("fine.py", "x = 1\n")
        archive.writestr("wrong.py", "def\n")
    before = broken.read_bytes()
    assert f"{broken} is unchanged: " in add_compiled(broken, code=1)
    assert broken.read_bytes() == before
    (tmp_path / "no.zip").write_text("no archive")
    assert "is unchanged" in add_compiled(tmp_path / "no.zip", code=1)
    assert "is unchanged" in add_compiled(tmp_path / "not there.zip", code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.zip", "no.zip"]


def test_the_default_is_the_installed_pyspark(tmp_path: Path, plain: list[Path]) -> None:
    home = tmp_path / "spark"
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for one in plain:
        with zipfile.ZipFile(library / one.name, "w") as archive:
            archive.writestr("module.py", "x = 1\n")
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = add_compiled(SPARK_HOME=str(home), PYTHONPATH=path)
    assert [line.split(":")[0] for line in said.splitlines()] == [str(library / path.name) for path in plain]
    assert all(" 0 modules" not in line for line in said.splitlines())
    assert "name one" in add_compiled(SPARK_HOME="", PYTHONPATH=path, code=2)
