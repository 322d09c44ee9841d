# SPDX-License-Identifier: Apache-2.0
"""`tidemark apply` among real processes, as CI runs it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster
from tidemark.runtime.configuration.entries import ConfigSource

from tests.integration.cli.test_cli import Ended, succeeds, tidemark

EVERY_BROKER = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.admin_address) as client:
        yield client
        client.alter_configs(EVERY_BROKER, delete=["replica.lag.time.max.ms"])


@pytest.fixture
def prefix() -> str:
    return f"apply-{uuid.uuid4().hex[:12]}"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return str(path)


def codes(ended: Ended) -> list[str]:
    assert ended.status == 1, ended
    return [line.split(":")[0].removeprefix("error ") for line in ended.error.splitlines()]


def test_apply_changes_a_cluster_to_the_file_and_a_second_run_changes_nothing(
    cluster: LocalCluster, admin: AdminClient, prefix: str, tmp_path: Path
) -> None:
    file = written(
        tmp_path,
        f"""\
topics:
  {prefix}-a:
    partitions: 3
    replication_factor: 2
    configs: {{retention.ms: 1000, min.insync.replicas: 1}}
  {prefix}-b:
brokers:
  default: {{replica.lag.time.max.ms: 15000}}
""",
    )
    expected = f"""\
+ topic {prefix}-a: 3 partitions, replication factor 2
    + min.insync.replicas: 1
    + retention.ms: 1000
+ topic {prefix}-b: 1 partition, the cluster's replication factor
~ broker default
    + replica.lag.time.max.ms: 15000
"""
    assert succeeds(cluster, "apply", "-f", file, "--dry-run") == f"{expected}3 changes to make\n"
    assert tidemark(cluster, "apply", "-f", file, "--check").status == 2
    assert [name for name in admin.list_topics() if name.startswith(prefix)] == []
    assert succeeds(cluster, "apply", "-f", file) == f"{expected}3 changes made\n"
    assert succeeds(cluster, "apply", "-f", file, "--check") == "nothing to change: the cluster matches the file\n"
    made = admin.describe_topics([f"{prefix}-a"])[0]
    assert (len(made.partitions), made.configs) == (3, {"retention.ms": "1000", "min.insync.replicas": "1"})
    lag = admin.describe_configs([EVERY_BROKER], ["replica.lag.time.max.ms"])[EVERY_BROKER][0]
    assert (lag.value, lag.source) == ("15000", ConfigSource.CLUSTER)

    admin.alter_configs(ConfigResource(ConfigKind.TOPIC, f"{prefix}-a"), {"retention.ms": "9", "segment.ms": "8"})
    drifted = tidemark(cluster, "apply", "-f", file, "--check", "-o", "json")
    assert (drifted.status, drifted.error) == (2, "")
    (change,) = json.loads(drifted.out)["changes"]
    assert (change["action"], change["resource"], change["applied"]) == ("configure", f"topic {prefix}-a", False)
    assert change["changes"] == [
        {"key": "retention.ms", "before": "9", "after": "1000"},
        {"key": "segment.ms", "before": "8", "after": None},
    ]
    succeeds(cluster, "apply", "-f", file)
    assert admin.describe_topics([f"{prefix}-a"])[0].configs == made.configs


def test_apply_adds_partitions_up_to_the_file(
    cluster: LocalCluster, admin: AdminClient, prefix: str, tmp_path: Path
) -> None:
    before = admin.create_topic(f"{prefix}-a", partitions=2, replication_factor=2)
    file = written(tmp_path, f"topics:\n  {prefix}-a: {{partitions: 5, replication_factor: 2}}\n")
    assert (
        tidemark(cluster, "apply", "-f", file, "--check").out
        == f"~ topic {prefix}-a: 2 -> 5 partitions\n1 change to make\n"
    )
    assert succeeds(cluster, "apply", "-f", file) == f"~ topic {prefix}-a: 2 -> 5 partitions\n1 change made\n"
    grown = admin.describe_topics([f"{prefix}-a"])[0]
    assert (grown.topic_id, len(grown.partitions)) == (before.topic_id, 5)
    assert {len(partition.assigned_replicas) for partition in grown.partitions.values()} == {2}
    assert succeeds(cluster, "apply", "-f", file) == "nothing to change: the cluster matches the file\n"


def test_apply_deletes_only_topics_that_the_file_marks_for_deletion(
    cluster: LocalCluster, admin: AdminClient, prefix: str, tmp_path: Path
) -> None:
    for name in ("goes", "stays"):
        admin.create_topic(f"{prefix}-{name}", partitions=1, replication_factor=1)
    file = written(tmp_path, f"topics:\n  {prefix}-goes: {{delete: true}}\n")
    assert succeeds(cluster, "apply", "-f", file) == f"- topic {prefix}-goes: with all its records\n1 change made\n"
    assert [name for name in admin.list_topics() if name.startswith(prefix)] == [f"{prefix}-stays"]
    assert succeeds(cluster, "apply", "-f", file) == "nothing to change: the cluster matches the file\n"
    pruned = json.loads(succeeds(cluster, "apply", "-f", file, "--prune", "--dry-run", "-o", "json"))
    assert f"topic {prefix}-stays" in [change["resource"] for change in pruned["changes"]]


def test_all_problems_of_a_file_are_reported_with_their_lines_and_nothing_changes(
    cluster: LocalCluster, admin: AdminClient, prefix: str, tmp_path: Path
) -> None:
    admin.create_topic(f"{prefix}-there", partitions=2, replication_factor=1)
    before = sorted(admin.list_topics())
    file = written(tmp_path, f"topics:\n  {prefix}-a:\n    partitions: many\n    configs:\n      retention: 1\n")
    ended = tidemark(cluster, "apply", "-f", file)
    assert codes(ended) == ["INVALID_REQUEST", "UNKNOWN_CONFIG"]
    assert [f"{file}:{line}: " in told for line, told in zip((3, 5), ended.error.splitlines(), strict=True)] == [
        True,
        True,
    ]
    file = written(
        tmp_path,
        f"""\
topics:
  {prefix}-good: {{}}
  {prefix}-much: {{replication_factor: 9}}
  a/b: {{}}
  {prefix}-few:
    replication_factor: 1
    configs:
      min.insync.replicas: 2
  {prefix}-there:
    partitions: 1
brokers:
  one: {{}}
""",
    )
    ended = tidemark(cluster, "apply", "-f", file)
    assert codes(ended) == [
        "INVALID_REPLICATION_FACTOR",
        "INVALID_TOPIC_NAME",
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REQUEST",
    ]
    lines = [told.split(f"{file}:")[1].split(":")[0] for told in ended.error.splitlines()]
    assert lines == ["3", "4", "8", "10", "12"]
    assert ended.out == ""
    assert sorted(admin.list_topics()) == before
    missing = tidemark(cluster, "apply", "-f", str(tmp_path / "none.yaml"))
    assert codes(missing) == ["INVALID_REQUEST"]
