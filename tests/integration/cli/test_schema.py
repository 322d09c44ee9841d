# SPDX-License-Identifier: Apache-2.0
"""`tidemark schema` and typed topics of `tidemark topic` and `tidemark apply`, among real processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tidemark.client import Producer
from tidemark.local.cluster import LocalCluster

from tests.integration.cli.test_cli import succeeds, tidemark

DDL = "carrier STRING NOT NULL, delay INT, PRIMARY KEY (carrier)"
FILE = """\
columns:
  - {name: carrier, type: string, nullable: false}
  - {name: delay, type: int64}
  - {name: miles, type: int32, default: 0}
key: [carrier]
"""


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    name = f"schema-{uuid.uuid4().hex[:12]}"
    yield name
    tidemark(cluster, "topic", "delete", name, "--yes")


def test_a_topic_goes_through_its_versions(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    assert "created topic" in succeeds(cluster, "topic", "create", topic, "--schema", DDL)
    described = succeeds(cluster, "topic", "describe", topic)
    assert " SchemaVersion:1 Columns:2 Key:carrier EventTime:none\n" in described
    file = tmp_path / "flights.yaml"
    file.write_text(FILE)
    assert "version 2 of" in succeeds(cluster, "schema", "check", topic, "--schema", str(file))
    assert tidemark(cluster, "schema", "check", topic, "--schema", str(file), "--exact").status == 2
    assert "would be made" in succeeds(cluster, "schema", "evolve", topic, "--schema", str(file), "--dry-run")
    view = json.loads(succeeds(cluster, "topic", "describe", topic, "-o", "json"))[0]
    assert (view["schema_version"], view["key"], view["event_time"]) == (1, ["carrier"], None)
    made = succeeds(cluster, "schema", "evolve", topic, "--schema", str(file), "--expected-version", "1")
    assert f"version 2 of {topic} is made" in made
    conflict = tidemark(cluster, "schema", "evolve", topic, "--schema", "carrier STRING", "--expected-version", "1")
    assert conflict.status == 1
    assert conflict.error.startswith("error SCHEMA_CONFLICT: ")
    refused = tidemark(cluster, "schema", "check", topic, "--schema", "carrier INT, PRIMARY KEY (carrier)")
    assert (refused.status, refused.error.split(":")[0]) == (1, "error INCOMPATIBLE_SCHEMA")
    assert "nothing to change" in succeeds(cluster, "schema", "evolve", topic, "--schema", str(file))

    assert yaml.safe_load(succeeds(cluster, "schema", "show", topic)) == yaml.safe_load(FILE)
    first = succeeds(cluster, "schema", "show", topic, "--version", "1", "--format", "ddl")
    assert "delay INT" in first
    differences = succeeds(cluster, "schema", "diff", topic).splitlines()
    assert len(differences) == 2
    assert "no differences" in succeeds(cluster, "schema", "diff", topic, "--schema", str(file))
    history = json.loads(succeeds(cluster, "schema", "history", topic, "--output", "json"))
    assert [one["version"] for one in history["versions"]] == [1, 2]
    assert history["versions"][1]["differences"] == differences
    saved = tmp_path / "saved.json"
    saved.write_text(succeeds(cluster, "schema", "show", topic, "--format", "stored"))
    offline = tidemark(cluster, "schema", "check", "--against", str(saved), "--schema", str(file), "--exact")
    assert offline.status == 0
    missing = tidemark(cluster, "schema", "show", topic, "--version", "9")
    assert missing.error.startswith("error UNKNOWN_SCHEMA_VERSION: ")


def test_a_schema_is_proposed_from_a_topic_of_json_and_not_from_a_typed_one(cluster: LocalCluster, topic: str) -> None:
    succeeds(cluster, "topic", "create", topic, "--partitions", "2")
    assert tidemark(cluster, "schema", "infer", "--topic", topic).error.startswith("error INVALID_SCHEMA: ")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, json.dumps({"carrier": "UA", "delay": number}).encode(), partition=number % 2)
        producer.send(topic, b"no JSON", partition=0)
        producer.send(topic, None, key=b"k", partition=1)
        producer.flush()
    done = json.loads(succeeds(cluster, "schema", "infer", "--topic", topic, "--key", "carrier", "-o", "json"))
    assert [(one["name"], one["type"]) for one in done["schema"]["columns"]] == [
        ("carrier", "string"),
        ("delay", "int64"),
    ]
    assert done["notes"][-1] == "2 of 12 values are not JSON objects, and were omitted"
    assert tidemark(cluster, "schema", "show", topic).error.startswith("error INVALID_SCHEMA: ")
    typed = f"{topic}-typed"
    succeeds(cluster, "topic", "create", typed, "--schema", DDL)
    assert "has a schema" in tidemark(cluster, "schema", "infer", "--topic", typed).error
    succeeds(cluster, "topic", "delete", typed, "--yes")


def test_apply_creates_and_changes_a_typed_topic(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    (tmp_path / "flights.yaml").write_text(FILE.replace("int64", "int32"))
    file = tmp_path / "cluster.yaml"
    file.write_text(f"topics:\n  {topic}:\n    schema: flights.yaml\n")
    assert "3 columns" in succeeds(cluster, "apply", "-f", str(file))
    assert "nothing to change" in succeeds(cluster, "apply", "-f", str(file), "--check")
    (tmp_path / "flights.yaml").write_text(FILE)
    assert tidemark(cluster, "apply", "-f", str(file), "--check").status == 2
    assert "version 1 -> 2 of the schema" in succeeds(cluster, "apply", "-f", str(file))
    (tmp_path / "flights.yaml").write_text(FILE.replace("int64", "string"))
    refused = tidemark(cluster, "apply", "-f", str(file))
    assert (refused.status, refused.error.split(":")[0]) == (1, "error INCOMPATIBLE_SCHEMA")
    assert f"cluster.yaml:3: topic {topic}: version 3 cannot follow version 2" in refused.error
