# SPDX-License-Identifier: Apache-2.0
"""`tidemark quota` and the quotas of `tidemark apply`, on a cluster without TLS; and a client of that cluster."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.cli.app import app
from tidemark.client import AdminClient, Producer
from tidemark.client.quotas import QuotaChange, QuotaEntity, QuotaKind
from tidemark.local.cluster import LocalCluster
from typer.testing import CliRunner

from tests.integration.harness.quotas import until_in_effect

RATE = 40_000
VALUE = bytes(4_000)
RECORDS = 40


@pytest.fixture
def client_id(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A client id of this test only; its quotas are removed."""
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", cluster.bootstrap)
    name = f"quota-{uuid.uuid4().hex[:12]}"
    yield name
    with AdminClient(cluster.bootstrap) as admin:
        ours = [entity for entity in admin.describe_client_quotas() if entity.client_id == name]
        admin.alter_client_quotas([QuotaChange(entity, {}, frozenset(QuotaKind)) for entity in ours])


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout


def test_the_command_sets_lists_describes_and_removes_quotas(client_id: str) -> None:
    of = ("--client-id", client_id)
    line = f"~ producer_byte_rate of client id {client_id}: no limit -> 40000 bytes/s\n"
    to_set = ("quota", "set", *of, "--producer-byte-rate", "40kB")
    assert run(*to_set, "--dry-run") == f"{line}1 quota to change\n"
    assert run("quota", "describe", *of).startswith("producer_byte_rate: no limit\n")
    assert run(*to_set) == f"{line}1 quota changed\n"
    assert run(*to_set) == "nothing to change\n"
    run(
        "quota",
        "set",
        *of,
        "--user",
        "User:ANONYMOUS",
        "--request-percentage",
        "12.5",
        "--partition-creation-rate",
        "3",
    )
    assert run("quota", "describe", *of).splitlines() == [
        f"producer_byte_rate: 40000 bytes/s (quota of client id {client_id})",
        "consumer_byte_rate: no limit",
        f"request_percentage: 12.5 % (quota of user User:ANONYMOUS with client id {client_id})",
        f"partition_creation_rate: 3 partitions/s (quota of user User:ANONYMOUS with client id {client_id})",
    ]
    listed = [one for one in json.loads(run("quota", "list", "-o", "json")) if one["client_id"] == client_id]
    assert listed[0] == {"user": None, "client_id": client_id, "limits": {"producer_byte_rate": 40000.0}}
    assert client_id in run("quota", "list")
    assert run("quota", "remove", *of, "--quota", "request-percentage") == "nothing to change\n"
    assert run("quota", "remove", *of, "--quota", "producer_byte_rate").endswith("1 quota changed\n")
    assert "producer_byte_rate: no limit" in run("quota", "describe", *of)


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "--client-id", "a"),
        ("set", "--producer-byte-rate", "1"),
        ("set", "--client-id", "", "--producer-byte-rate", "1"),
        ("set", "--user", "alice", "--producer-byte-rate", "1"),
        ("set", "--client-id", "a", "--producer-byte-rate", "-1"),
        ("set", "--client-id", "a", "--producer-byte-rate", "many"),
        ("set", "--client-id", "a", "--request-percentage", "-1"),
        ("set", "--client-id", "a", "--default-client-id", "--request-percentage", "1"),
        ("remove", "--client-id", "a", "--quota", "ip_rate"),
        ("remove",),
        ("describe", "--user", "alice"),
    ],
)
@pytest.mark.usefixtures("client_id")
def test_a_wrong_argument_of_the_command_changes_nothing(arguments: tuple[str, ...]) -> None:
    before = run("quota", "list", "-o", "json")
    result = CliRunner().invoke(app, ["quota", *arguments])
    assert result.exit_code != 0
    assert getattr(result.exception, "code", "") in ("INVALID_REQUEST", 2)
    assert run("quota", "list", "-o", "json") == before


def test_a_file_has_all_quotas_of_an_entity_and_a_client_without_tls_keeps_to_them(
    cluster: LocalCluster, client_id: str, tmp_path: Path
) -> None:
    with AdminClient(cluster.bootstrap) as admin:
        admin.alter_client_quotas([QuotaChange(QuotaEntity(None, client_id), {QuotaKind.CONSUMER_BYTE_RATE: 5.0})])
        admin.create_topic(client_id, partitions=1, replication_factor=1)
    file = tmp_path / "cluster.yaml"
    file.write_text(f"quotas: [{{client_id: {client_id}, producer_byte_rate: 40kB}}]")
    text = run("apply", "-f", str(file))
    assert text.startswith("~ quotas: 2 to change\n")
    assert f"    + producer_byte_rate of client id {client_id}: 40000\n" in text
    assert f"    - consumer_byte_rate of client id {client_id}: 5\n" in text
    run("apply", "-f", str(file), "--check")
    with AdminClient(cluster.bootstrap) as admin:
        until_in_effect(cluster, admin.alter_client_quotas([]).generation)
    with Producer(cluster.bootstrap, client_id=client_id, batch_bytes=5_000) as producer:
        began_s = time.monotonic()
        for _ in range(RECORDS):
            producer.send(client_id, VALUE)
        producer.flush(60)
        assert time.monotonic() - began_s > (RECORDS * len(VALUE) - RATE) / RATE - 1
        assert producer.metrics().throttled_s > 0
    file.write_text(f"quotas: [{{client_id: {client_id}}}]")
    run("apply", "-f", str(file))
    assert client_id not in run("quota", "list")
