# SPDX-License-Identifier: Apache-2.0
"""Spark's Python processes without the time that their imports take: forked off one that has imported them (warm.py).

Spark starts a Python process for each step of a query: to make the data source, to plan a read, to write, for each
stream. Such a process is forked here; its module runs from the start. The job under spark-submit in
tests/spark/pipelines/test_pipelines.py starts fresh ones. Linux only; elsewhere all are fresh.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import runpy
import shlex
import sys
from pathlib import Path
from typing import Final

from tidemark.runtime.collecting import no_collections

from tests.integration.harness import warm, warm_command

_SET_BY_SPARK: Final = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"}
"""Python reads these when it starts."""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Only a process of one thread may be forked."""


def write_python(path: Path) -> None:
    """An executable that Spark takes for Python; `PATH -m MODULE [argument ...]` is forked, all else is fresh."""
    places = os.pathsep.join([str(warm.ROOT), *warm.places(os.environ)])
    environment = {"PYTHONPATH": places, **_SET_BY_SPARK, **_ONE_THREAD}
    server = warm.start_server("tests.spark.harness.warm_python", environment=environment)
    launcher = shlex.join([sys.executable, "-I", "-S", str(warm_command.LAUNCHER), str(server)])
    fresh = shlex.quote(sys.executable)
    path.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec {fresh} "$@"\nexec {launcher} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def _import_everything() -> None:
    import pandas  # noqa: F401 - PySpark imports these two at the first rows
    import pyarrow.compute  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.worker

    for package in (pyspark.sql.worker, importlib.import_module("tidemark_spark")):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    for name in ("pyspark.sql.streaming.python_streaming_source_runner", "pyspark_tidemark"):
        importlib.import_module(name)


def _become(words: list[str]) -> None:
    """The steps of `python -m` up to the module's own code."""
    _, module, *arguments = words
    for place in map(os.path.abspath, reversed(warm.places(os.environ))):
        if place not in sys.path:
            sys.path.insert(0, place)
    sys.modules.pop(module, None)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with no_collections():
        _import_everything()
    asked = warm.serve(sys.argv[1], attend=warm_command.tell_the_end)
    warm.run_and_end(lambda: _become(asked))
