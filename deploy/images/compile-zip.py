"""compile-zip.py ZIP...: puts beside every Python module in a zip file, but for tests, the same module compiled.

Python imports from a zip file what is compiled if it is there, else compiles the source again in each process: Spark's
workers take PySpark out of python/lib/pyspark.zip. Compiled modules are unchecked: nobody edits a zip file in an image.
A Python of another version passes them over. Run twice, it changes nothing.
"""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def compiled(source: bytes, filename: str) -> bytes:
    """A .pyc that its source is not held against; raises SyntaxError."""
    code = compile(source, filename, "exec", dont_inherit=True)
    made: bytes = bootstrap._code_to_hash_pyc(code, importlib.util.source_hash(source), False)
    return made


def add_compiled(path: Path) -> int:
    """How many modules were compiled; the file is replaced as a whole, or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".zip", delete=False) as file:
        made = Path(file.name)
    try:
        shutil.copy(path, made)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
            there = set(archive.namelist())
            modules = (name for name in there if name.endswith(".py") and "/tests/" not in name)
            new = sorted(name for name in modules if f"{name}c" not in there)
            for name in new:
                # Dated as all are that have no date, so that the same source makes the same file.
                entry = zipfile.ZipInfo(f"{name}c")
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, compiled(archive.read(name), f"{path}/{name}"))
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)
    return len(new)


def main(words: list[str]) -> int:
    """Compile in each of the named files; exit status 2 where there is none."""
    if not words or {"-h", "--help"} & set(words):
        sys.stdout.write(f"{__doc__}\nexample: compile-zip.py $SPARK_HOME/python/lib/*.zip\n")
        return 0 if words else 2
    for word in words:
        count = add_compiled(Path(word).absolute())
        sys.stdout.write(f"{word}: {count} modules compiled\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
