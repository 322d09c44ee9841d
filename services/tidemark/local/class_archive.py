# SPDX-License-Identifier: Apache-2.0
"""python -m tidemark.local.class_archive: writes the classes of the local ZooKeeper into an archive that Java maps.

Java parses and verifies ZooKeeper's classes at every start, which is half of the start's time. An archive of this
Python environment (class data sharing, JEP 350) replaces that. Java ignores an archive of another Java or of other
jars, so the archive is never needed and never wrong; the set-up of a checkout writes it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tidemark.local.zookeeper_process import CLASS_ARCHIVE, ZooKeeperProcess

_WRITE = "-XX:ArchiveClassesAtExit="


def write_archive(archive: Path = CLASS_ARCHIVE) -> None:
    """Start a ZooKeeper, stop it, and keep the classes that it has loaded.

    Raises:
        TidemarkError: COORDINATION_UNAVAILABLE when Java or PySpark is missing.
    """
    archive.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        ZooKeeperProcess(Path(directory), java_options=[f"{_WRITE}{archive}"]),
    ):
        pass


if __name__ == "__main__":
    write_archive()
    sys.stdout.write(f"{CLASS_ARCHIVE}: {CLASS_ARCHIVE.stat().st_size} bytes\n")
