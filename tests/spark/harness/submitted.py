# SPDX-License-Identifier: Apache-2.0
"""Drivers under spark-submit, and the contents of their checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidemark.local.process import Guard

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def driver(
    log: Path, script: Path, *words: str, settings: Mapping[str, str] | None = None, python: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver under spark-submit; its group of processes ends with the block, or with this process.

    Args:
        python: the Python that Spark starts for the steps of queries; None: this Python.
    """
    paths = os.pathsep.join([str(ROOT), str(ROOT / "services"), str(ROOT / "spark")])
    environment = {"PYSPARK_PYTHON": str(python or sys.executable), "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"}
    submit = str(Path(sys.executable).with_name("spark-submit"))
    given = [word for name, value in (settings or {}).items() for word in ("--conf", f"{name}={value}")]
    with log.open("wb") as output:
        started = subprocess.Popen(
            [submit, "--master", "local[2]", *given, str(script), *words],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    guard = Guard(-started.pid)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        guard.release()


def batches(checkpoint: Path, kind: str) -> set[int]:
    """The micro-batches that a checkpoint lists as planned ("offsets") or completed ("commits")."""
    return {int(path.name) for path in (checkpoint / kind).glob("[0-9]*")}
