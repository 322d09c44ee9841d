# SPDX-License-Identifier: Apache-2.0
"""Sources of the local ZooKeeper."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tidemark.local import zookeeper_process
from tidemark.local.zookeeper_process import ZooKeeperProcess, _class_path
from tidemark.model import TidemarkError


@pytest.fixture
def zipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark as spark-submit has it: out of a zip file, without jars in the same directory."""
    spec = ModuleSpec("pyspark", None, origin="/spark/python/lib/pyspark.zip/pyspark/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@pytest.mark.usefixtures("zipped")
def test_under_spark_submit_its_jars_are_those_of_spark_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "zookeeper-3.9.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _class_path() == str(tmp_path / "jars" / "zookeeper-3.9.4.jar")


@pytest.mark.usefixtures("zipped")
def test_without_jars_the_error_names_the_searched_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(TidemarkError, match=f"no ZooKeeper among the jars in {tmp_path}/jars"):
        _class_path()


def test_a_server_that_ends_is_reported_with_the_last_line_of_its_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zookeeper_process, "java_command", lambda *_: ["/bin/sh", "-c", "echo no memory; exit 3", "sh"])
    with pytest.raises(TidemarkError, match=r"ended with status 3; see .*; the last line there: no memory"):
        ZooKeeperProcess(tmp_path).start()


def test_the_files_of_a_server_are_in_its_directory_in_any_language(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zookeeper_process, "java_command", lambda *_: ["/bin/true"])
    directory = tmp_path / "José 資料 \N{WAVING HAND SIGN}"
    with pytest.raises(TidemarkError):
        ZooKeeperProcess(directory).start()
    for name, line in (("zoo.cfg", f"dataDir={directory}/data"), ("log4j2.properties", f"{directory}/zookeeper.log")):
        escaped = (directory / name).read_bytes().decode("ascii")
        assert line in json.loads(f'"{escaped.replace(chr(10), " ")}"')
