# SPDX-License-Identifier: Apache-2.0
"""Jobs use Unix sockets, and Spark's Python processes log nothing when Spark closes these."""

from __future__ import annotations

import inspect
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext, daemon
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession
from tidemark_spark.compat import prefer_unix_sockets

SETTING = "spark.python.unix.domain.socket.enabled"
_WORKER = """
from tidemark_spark.closed_sockets import end_silently
def main(infile, outfile):
    end_silently()
    if infile.read():
        raise ValueError("a defect")
    outfile.write(b"the last words")
"""


@pytest.mark.skipif(
    "PYTHON_UNIX_DOMAIN_ENABLED" not in inspect.getsource(daemon), reason="PySpark 4.0 has no Unix sockets"
)
@pytest.mark.parametrize(("sent", "logged"), [(b"", ""), (b"x", "ValueError: a defect")], ids=["closed", "defect"])
def test_a_worker_of_the_daemon_logs_a_traceback_unless_spark_closed_its_socket(
    sent: bytes, logged: str, tmp_path: Path
) -> None:
    (tmp_path / "pyspark_last_words.py").write_text(_WORKER)
    told = tmp_path / "stderr"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_last_words"]
    with (
        told.open("wb") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **environment}
        ) as started,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        assert started.stdout is not None
        connection.connect(UTF8Deserializer().loads(started.stdout))
        worker = os.pidfd_open(read_int(connection.makefile("rb")))
        connection.sendall(sent)
        connection.close()
        ended, _, _ = select.select([worker], [], [], 60)
        os.close(worker)
        assert started.stdin is not None
        started.stdin.close()
    assert ended, "the worker did not end"
    assert told.read_text().rpartition("\n")[0].rpartition("\n")[2] == logged


@pytest.fixture
def tcp_by_spark_submit(spark: SparkSession) -> Iterator[None]:
    """Spark has the setting as spark-submit passes it, while the test runs."""
    assert spark.sparkContext is not None
    system = SparkContext._jvm.java.lang.System
    system.setProperty(SETTING, "false")
    yield
    system.clearProperty(SETTING)


@pytest.mark.usefixtures("tcp_by_spark_submit")
def test_a_job_keeps_the_setting_of_spark_submit() -> None:
    assert dict(prefer_unix_sockets(SparkSession.Builder())._options) == {}


@pytest.mark.usefixtures("spark")
def test_a_job_uses_unix_sockets_by_default() -> None:
    assert dict(prefer_unix_sockets(SparkSession.Builder())._options) == {SETTING: "true"}
