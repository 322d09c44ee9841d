# SPDX-License-Identifier: Apache-2.0
"""RPCs whose answer was lost: the audit log has what the caller asked for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tidemark.admin.acls import AclAdministration
from tidemark.admin.quotas import QuotaAdministration
from tidemark.admin.servicer import AdminServicer
from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.codecs.acl import acl_to_proto
from tidemark.v1 import admin_acls_pb2, admin_quotas_pb2

from tests.fakes.contexts import PlainContext
from tests.unit.admin.moving import Cluster

READ = Acl(
    ResourceType.TOPIC, Pattern.LITERAL, "t", "User:token:alice", "*", Operation.READ, Permission.ALLOW
)  # fmt: skip


class Context(PlainContext):
    """The context of a call of an anonymous caller."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float:
        return 10.0


CONTEXT: Any = Context()


@pytest.fixture
async def cluster() -> Cluster:
    cluster = Cluster()
    await cluster.start(brokers=4)
    await cluster.topic("t", (0, 1), (1, 2))
    return cluster


@pytest.fixture
def servicer(cluster: Cluster) -> AdminServicer:
    unused: Any = None
    return AdminServicer(
        unused,
        unused,
        descriptions=unused,
        configs=unused,
        requests=unused,
        reassignments=unused,
        partitions=unused,
        brokers=unused,
        log_dirs=unused,
        acls=AclAdministration(cluster.store, ()),
        quotas=QuotaAdministration(cluster.store),
        schemas=unused,
        audit_lines=unused,
        of_callers=unused,
        request_timeout_ms=10_000,
    )


def without_answer(write: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """A write that succeeds, and whose answer is lost."""

    async def lost(*arguments: Any, **named: Any) -> bool:
        await write(*arguments, **named)
        raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no answer in time")

    return lost


async def audited(caplog: pytest.LogCaptureFixture, call: Awaitable[object]) -> dict[str, Any]:
    """The line of the audit log of a call without an answer from ZooKeeper."""
    with caplog.at_level(logging.INFO, "tidemark.audit"), pytest.raises(TidemarkError):
        await call
    return vars(caplog.records[-1])


async def test_audit_line_of_access_rules_written_without_an_answer_has_the_rules(
    cluster: Cluster, servicer: AdminServicer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.store, "write_acls", without_answer(cluster.store.write_acls))
    request = admin_acls_pb2.AlterAclsRequest(add=[acl_to_proto(READ)])
    line = await audited(caplog, servicer.AlterAcls(request, CONTEXT))
    assert (line["outcome"], line["add"], line["remove"]) == ("COORDINATION_UNAVAILABLE", [str(READ)], [])
    assert (await cluster.store.acls()).acls == (READ,), "the rule is in effect"


async def test_audit_line_of_quotas_written_without_an_answer_has_the_quotas(
    cluster: Cluster, servicer: AdminServicer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.store, "write_quotas", without_answer(cluster.store.write_quotas))
    change = admin_quotas_pb2.ClientQuotasChange(
        entity=admin_quotas_pb2.QuotaEntity(client_id="app"),
        set={"producer_byte_rate": 1000.0},
        remove=["consumer_byte_rate"],
    )
    request = admin_quotas_pb2.AlterClientQuotasRequest(changes=[change])
    line = await audited(caplog, servicer.AlterClientQuotas(request, CONTEXT))
    assert line["outcome"] == "COORDINATION_UNAVAILABLE"
    assert line["changes"] == ["client id app: consumer_byte_rate=none, producer_byte_rate=1000"]
