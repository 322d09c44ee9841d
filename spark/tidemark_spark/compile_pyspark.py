# SPDX-License-Identifier: Apache-2.0
"""python -m tidemark_spark.compile_pyspark [ZIP...]: adds the compiled form of each Python module, except tests, to zip
files. By default the zip files come from this Python's PySpark and from SPARK_HOME.

Spark's Python processes import PySpark from python/lib/pyspark.zip, and each compiles the modules again. That takes 0.4
s of a core, about seven times before the first row, and once for each stream. With compiled modules in the file, these
processes start faster. Python does not compare compiled modules with their sources here. Another version of Python
ignores these files, and a new PySpark has a new file. A second run has no effect.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode, PyCompileError


def _compiled(source: bytes, filename: str) -> bytes:
    """An unchecked .pyc; raises PyCompileError."""
    with tempfile.TemporaryDirectory() as directory:
        module, made = Path(directory, "module.py"), Path(directory, "module.pyc")
        module.write_bytes(source)
        py_compile.compile(
            str(module), str(made), filename, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
        )
        return made.read_bytes()


def add_compiled(path: Path) -> int:
    """Compile the modules of a zip file, and replace the file atomically; returns their number."""
    if path.exists() and not zipfile.is_zipfile(path):
        raise zipfile.BadZipFile("not a zip file")
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".zip", delete=False) as file:
        made = Path(file.name)
    try:
        shutil.copy(path, made)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
            there = set(archive.namelist())
            modules = (name for name in there if name.endswith(".py") and "/tests/" not in name)
            new = sorted(name for name in modules if f"{name}c" not in there)
            for name in new:
                # The zip format's earliest date, so that the same source makes the same file.
                entry = zipfile.ZipInfo(f"{name}c")
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, _compiled(archive.read(name), f"{path}/{name}"))
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)
    return len(new)


def installed() -> list[Path]:
    """Zip files of this Python's PySpark and of SPARK_HOME."""
    found = importlib.util.find_spec("pyspark")
    homes = [Path(found.origin).parent] if found is not None and found.origin else []
    homes += [Path(home) for home in (os.environ.get("SPARK_HOME"),) if home]
    return sorted({path.resolve() for home in homes for path in (home / "python" / "lib").glob("*.zip")})


def main(words: list[str]) -> int:
    """Exit status 1 for a file that cannot be read or written, 2 if there is no file."""
    if {"-h", "--help"} & set(words):
        sys.stdout.write(f"{__doc__}\nexample: python -m tidemark_spark.compile_pyspark /opt/spark/python/lib/*.zip\n")
        return 0
    paths = [Path(word).absolute() for word in words] or installed()
    if not paths:
        sys.stderr.write("no PySpark here has a zip file; name one: .../python/lib/pyspark.zip\n")
        return 2
    for path in paths:
        try:
            count = add_compiled(path)
        except (OSError, PyCompileError, zipfile.BadZipFile) as error:
            sys.stderr.write(f"{path} is unchanged: {error}\n")
            return 1
        sys.stdout.write(f"{path}: {count} modules compiled\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
