"""deploy/images/compile-zip.py: PySpark's zip file, with its modules compiled beforehand. No session is needed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "images" / "compile-zip.py"
ARCHIVES = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
WHERE = "import pyspark.serializers as module; print(module.__file__)"


def add_compiled(*paths: Path) -> str:
    words = [sys.executable, str(SCRIPT), *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout


def output(program: str, *archives: Path) -> str:
    """What a Python says that has nothing but these archives before its own packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))}
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of PySpark's zip files, compiled."""
    directory = tmp_path_factory.mktemp("lib")
    copies = [Path(shutil.copy(path, directory)) for path in ARCHIVES]
    add_compiled(*copies)
    return copies


def test_workers_import_the_compiled_modules_of_pysparks_zip_file(archives: list[Path]) -> None:
    inside = [str(path) for path in archives]
    assert any("pyspark.zip" in path for path in inside)
    assert output(WHERE, *ARCHIVES).strip().endswith("pyspark.zip/pyspark/serializers.py")
    (found,) = output(WHERE, *archives).split()
    assert found == f"{next(path for path in inside if path.endswith('pyspark.zip'))}/pyspark/serializers.pyc"
    started = "import sys, pyspark.worker; print(sum(module.__file__.endswith('.py') for name, module in "
    assert output(f"{started}sys.modules.items() if name.startswith(('pyspark', 'py4j'))))", *archives).strip() == "0"


def test_sources_stay_for_tracebacks_and_for_other_pythons(archives: list[Path], tmp_path: Path) -> None:
    for path, original in zip(archives, ARCHIVES, strict=True):
        with zipfile.ZipFile(path) as compiled, zipfile.ZipFile(original) as plain:
            assert compiled.testzip() is None
            assert {name: compiled.read(name) for name in plain.namelist()} == {
                name: plain.read(name) for name in plain.namelist()
            }
    lines = "import inspect, pyspark.serializers as module; print(inspect.getsource(module.read_int).splitlines()[0])"
    assert output(lines, *archives).strip() == "def read_int(stream):"


def test_what_is_compiled_already_is_left_as_it_is(archives: list[Path]) -> None:
    before = [path.read_bytes() for path in archives]
    assert all(line.endswith(": 0 modules compiled") for line in add_compiled(*archives).splitlines())
    assert [path.read_bytes() for path in archives] == before


def test_a_file_that_is_no_archive_or_does_not_compile_stays_as_it_was(tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("fine.py", "x = 1\n")
        archive.writestr("wrong.py", "def\n")
    before = broken.read_bytes()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        add_compiled(broken)
    assert "SyntaxError" in caught.value.stderr
    assert broken.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["broken.zip"]
