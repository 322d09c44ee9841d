# SPDX-License-Identifier: Apache-2.0
"""One Spark session and one cluster for all tests of a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark_spark import compat

from tests.integration.harness import patience
from tests.integration.harness.warm_service import warm_services
from tests.spark.harness.secure import AUTHORIZATION, let_the_token_in
from tests.spark.harness.warm_python import write_python

ROOT = Path(__file__).parents[2]

_JAVA = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:MetaspaceSize=256m"),
    *("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Queries on a few rows end before Java's optimizing compiler saves time: without this compiler they take a fifth less
CPU time.

Spark's classes are not verified again when they load, which saves a tenth. The last options prevent full collections
that begin only because many classes were loaded.
"""
_DEFAULTS = "".join(f"spark.{process}.extraJavaOptions {' '.join(_JAVA)}\n" for process in ("driver", "executor"))
_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Spark's default for local files starts `readlink` forty times in each micro-batch; PySpark 4.2 has this name."""
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # PySpark forks to start Java, and gRPC's handlers may abort the child
_certificate: dict[str, str] = {}
"""Variables that name the client's certificate, once `cluster` has started."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Clients of a test use the certificate of `cluster`; pytest calls this for tests of this directory only."""
    os.environ.update(_certificate)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Tests of other directories start clusters and clients without a certificate."""
    yield
    for name in _certificate:
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Services start without the time that their imports take."""
    with warm_services():
        yield


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PySpark's own, without the zip file of its Python side, which workers would prefer to the installed package.

    Modules in a zip file are not compiled beforehand: each of Spark's many Python processes would compile them again,
    for more than half a second.
    """
    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text(_DEFAULTS, encoding="utf-8")
    return home


@pytest.fixture(scope="session")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python that Spark starts."""
    if sys.platform != "linux":
        return Path(sys.executable)
    python = tmp_path_factory.mktemp("spark-python") / "python"
    write_python(python)
    return python


@pytest.fixture(scope="session")
def spark(spark_home: Path, spark_python: Path, cluster: LocalCluster) -> Iterator[SparkSession]:
    """A local session with this Python; its workers import the modules here, and have the environment of `cluster`."""
    paths = [str(ROOT / "services"), str(ROOT / "spark"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {
        "PYSPARK_PYTHON": str(spark_python),
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **(_CHECKPOINTS if compat.HAS_READ_LIMITS else {}),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers, a controller and an admin service. Records of the tests are years old: retention never runs.

    The cluster is secure. Without other options clients use the certificate that the environment names during tests.
    """
    broker = {"log.retention.check.interval.ms": "86400000", **AUTHORIZATION}
    settings = {"broker": broker, "admin": AUTHORIZATION}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), controllers=1, settings=settings, secure=True) as started:
        let_the_token_in(started)
        _certificate.update(zip(FILE_VARIABLES, started.client_files, strict=True))
        os.environ.update(_certificate)
        yield started


@pytest.fixture
def topic(cluster: LocalCluster) -> Callable[..., str]:
    """Creates a topic: topic("flights", partitions=3)."""

    def make(name: str, *, partitions: int = 3) -> str:
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(name, partitions=partitions, replication_factor=3)
        return name

    return make


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process give up soon on a missing topic; for topics that never exist."""
    patience.with_topics(monkeypatch)
