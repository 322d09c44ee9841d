# SPDX-License-Identifier: Apache-2.0
"""Warnings of `tidemark topic create`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tidemark.cli.app import app
from tidemark.cli.common import options
from tidemark.client.created_topic import CreatedTopic
from tidemark.core.cluster_view import PartitionView
from tidemark.core.schemas.model import SchemaDraft
from tidemark.model import BrokerId, LeaderEpoch
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin


class Cluster(FakeAdmin):
    """Creates a topic of one partition, with 3 replicas by default."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        schema: SchemaDraft | None,
        validate_only: bool,
    ) -> CreatedTopic:
        replicas = tuple(BrokerId(broker) for broker in range(replication_factor or 3))
        made = PartitionView(0, BrokerId(0), LeaderEpoch(0), replicas, replicas)
        return CreatedTopic(name, "id", partitions={0: made}, configs=dict(configs))


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: Cluster())


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["topic", "create", "t", *arguments])
    assert result.exit_code == 0
    return result


@pytest.mark.parametrize(
    "more", [(), ("-r", "3", "-c", "min.insync.replicas=2"), ("-r", "2", "-c", "min.insync.replicas=1")]
)
def test_a_topic_that_survives_a_restart_gets_no_warning(more: tuple[str, ...]) -> None:
    assert run(*more).stderr == ""


@pytest.mark.parametrize("more", [("-r", "2"), ("-r", "3", "-c", "min.insync.replicas=3")])
def test_a_topic_with_no_replica_to_spare_gets_a_warning(more: tuple[str, ...]) -> None:
    result = run(*more)
    assert result.stderr.startswith("warning: t has no replica to spare")
    assert "created topic t" in result.stdout
    printed = json.loads(run(*more, "-o", "json").stdout)
    assert printed["created"] is True
    assert [f"warning: {sentence}\n" for sentence in printed["warnings"]] == [result.stderr]


def test_the_warning_for_one_replica_names_the_effect_of_a_restart() -> None:
    assert "one replica" in run("-r", "1").stderr


@pytest.mark.parametrize(
    ("more", "sentence"),
    [(("--schema", ""), "INVALID_SCHEMA: the DDL is empty"), (("--key", "carrier"), "INVALID_REQUEST: --key and")],
)
def test_a_topic_without_the_schema_that_the_command_means_is_refused(more: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(app, ["topic", "create", "t", *more])
    assert result.exit_code == 1
    assert sentence in str(result.exception)
