# SPDX-License-Identifier: Apache-2.0
"""Runs tests/spark on other versions of PySpark than the suite's own, one after the other.

    python -m tests.spark.versions [VERSION ...] [-- ARGUMENT OF PYTEST ...]

Each version is a thin layer over the environment that this runs in: PySpark is its own, everything else is shared.
Layers are kept in that environment's directory. Exit status: that of the first version that failed, else 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
PINNED: Final = ("4.0.5", "4.1.4", "4.2.1")
"""The last of each supported series but the newest, on which the suite itself runs."""
LIMIT_S: Final = 1200
_WARNINGS: Final = ("-W", "ignore:unclosed <socket:ResourceWarning")
"""PySpark 4.0 leaves a socket open after each toArrow() and collect(): Spark's to close."""


def layer(version: str) -> Path:
    """The Python of an environment with that PySpark; creates the environment if it does not exist.

    Raises:
        subprocess.CalledProcessError: there is no such version, or its installation fails.
    """
    directory = Path(sys.prefix) / f"pyspark-{version}"
    python, ready = directory / "bin" / "python", directory / "ready"
    if ready.exists():
        return python
    say(f"installing PySpark {version} (a minute or two the first time)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"pyspark=={version}"], check=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = directory / "lib" / name / "site-packages"
    below = sysconfig.get_path("purelib")
    # A line of a .pth file that begins with import is run: it finds the packages that are installed editable, too.
    (own / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    ready.touch()
    return python


def run(version: str, words: list[str]) -> int:
    """The exit status of pytest on that PySpark."""
    python = layer(version)
    found = subprocess.run(
        [str(python), "-c", "import pyspark; print(pyspark.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert found == version, f"the layer of {version} imports PySpark {found}"
    command = [str(python), "-m", "pytest", "-q", "--color=no", *_WARNINGS, *(words or ["tests/spark"])]
    commands = sysconfig.get_path("scripts")  # `tidemark` is in this directory, and not in the layer
    environment = {**os.environ, "PATH": os.pathsep.join([commands, os.environ.get("PATH", os.defpath)])}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            say(f"PySpark {version}: not done in {LIMIT_S} s")
        process.send_signal(signal.SIGINT)  # so that brokers and Spark are ended, too
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    return 124


def main(words: list[str]) -> int:
    """Run the named versions, or the pinned ones."""
    # In the background this process may ignore interrupts, and then so would pytest.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cut = words.index("--") if "--" in words else len(words)
    versions = [version for version in words[:cut] if version != "all"] or list(PINNED)
    outcomes: list[tuple[str, int, float]] = []
    for version in versions:
        say(f"== PySpark {version}")
        started_s = time.monotonic()
        outcomes.append((version, run(version, words[cut + 1 :]), time.monotonic() - started_s))
    for version, status, seconds in outcomes:
        say(f"PySpark {version:<8} {seconds:6.1f} s  {'ok' if status == 0 else f'FAILED, status {status}'}")
    return next((status for _, status, _ in outcomes if status), 0)


def say(text: str) -> None:
    """A line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
