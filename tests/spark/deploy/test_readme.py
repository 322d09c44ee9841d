# SPDX-License-Identifier: Apache-2.0
"""The commands of the README work as they stand, except for the address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tidemark.local.cluster import LocalCluster

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()
ADDRESS = "127.0.0.1:9192"


def commands() -> list[str]:
    """The lines of the second terminal, from the first that needs the cluster."""
    block = README.split("In another:\n")[1].split("From Python")[0]
    lines = [line.strip() for line in block.splitlines() if line.startswith("    ")]
    return lines[1:]


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_opens_with_the_two_commands() -> None:
    assert [line.split("#")[0].strip() for line in README.splitlines()[2:4]] == ["make demo", "make test"]


def test_its_commands_its_client_and_its_spark_query_work(
    spark: SparkSession, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = "\n".join(["set -e", *commands()]).replace(ADDRESS, cluster.bootstrap)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["/bin/sh", "-c", shell], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert "PartitionCount" in done.stdout
    client, query = programs()
    exec(client.replace(ADDRESS, cluster.bootstrap), {})
    assert "b'world' b'hello'" in capsys.readouterr().out
    exec(query.replace(ADDRESS, cluster.bootstrap), {"spark": spark})
    assert "world" in capsys.readouterr().out
