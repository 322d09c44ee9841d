# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source and sink: a Python with the matching PySpark, and their jars, downloaded to .peers/ once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
VERSION = "4.0.0"
"""Version of the connector and of PySpark: jars of one version do not run with another."""
_ROOT = HERE.parents[1] / ".peers" / f"spark-kafka-{VERSION}"
_ARTIFACTS = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
    "spark-avro_2.13",
)
"""Jars that Spark does not include."""
_PRODUCER = ("confluent-kafka[avro,json]",)
"""The peer's Python client with its serializers, for `bench typed`."""
_LIMIT_S = 600


class Connector(NamedTuple):
    """A Python with PySpark, and the jars for it."""

    python: Path
    jars: tuple[Path, ...]


def connector(*, fetch: bool) -> Connector | None:
    """The peer; None if it is missing, with a line on how to download it.

    Args:
        fetch: download a missing peer, some 450 MB.
    """
    found = Connector(_ROOT / "venv" / "bin" / "python", tuple(sorted((_ROOT / "jars").glob("*.jar"))))
    if found.python.exists() and found.jars:
        return found
    if not fetch:
        print(
            "no peer: --fetch-peer downloads PySpark and its Kafka connector; peer and ratio are null", file=sys.stderr
        )
        return None
    if shutil.which("mvn") is None:
        sys.exit("the Kafka connector needs Maven: install it (apt install maven), or omit --fetch-peer")
    print(f"downloading PySpark {VERSION} and its Kafka connector, 450 MB", file=sys.stderr)
    shutil.rmtree(_ROOT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(_ROOT / "venv")], check=True, timeout=_LIMIT_S)
    subprocess.run(
        [str(found.python), "-m", "pip", "install", "-q", f"pyspark=={VERSION}", *_PRODUCER],
        check=True,
        timeout=_LIMIT_S,
    )
    mvn = ["mvn", "-q", "-B", "-f", str(HERE / "spark-kafka-pom.xml"), f"-Dspark.version={VERSION}"]
    goal = [
        "dependency:copy-dependencies",
        f"-DbuildDirectory={_ROOT / 'build'}",
        f"-DoutputDirectory={_ROOT / 'jars'}",
    ]
    subprocess.run([*mvn, *goal, f"-DincludeArtifactIds={','.join(_ARTIFACTS)}"], check=True, timeout=_LIMIT_S)
    return connector(fetch=False)
