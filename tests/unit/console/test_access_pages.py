# SPDX-License-Identifier: Apache-2.0
"""The pages of access rules, quotas and the audit log over a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest
from tidemark.core.quotas.quotas import DEFAULT, Limits, QuotaEntity, QuotaKind
from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType
from tidemark.core.security.audit_lines import AuditLine, ServiceAudit
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.console.conftest import JSON, FakeCluster, refused

HOSTILE = "User:<script>alert(1)</script>"


class GuardedCluster(FakeCluster):
    """A cluster with access rules and quotas."""

    def __init__(self) -> None:
        super().__init__()
        topic = (ResourceType.TOPIC, Pattern.PREFIXED, "orders")
        self.acls = [
            Acl(*topic, HOSTILE, "*", Operation.READ, Permission.ALLOW),
            Acl(ResourceType.CLUSTER, Pattern.LITERAL, "*", "User:ops", "10.0.0.1", Operation.ALL, Permission.DENY),
        ]
        self.quotas: dict[QuotaEntity, Limits] = {
            QuotaEntity(user=HOSTILE): dict.fromkeys(QuotaKind, 5.0),
            QuotaEntity(client_id=DEFAULT): {next(iter(QuotaKind)): 7.0},
        }

        self.authorization_enabled = True
        self.audit_asked: dict[str, object] = {}

    async def list_audit_lines(self, **asked: object) -> list[ServiceAudit]:
        self.audit_asked = asked
        facts = {"diff": HOSTILE}
        made = AuditLine(2_000, "AlterConfigs", HOSTILE, "::1", "", "topic:orders", "INVALID_REQUEST", "a rule", facts)
        denied = AuditLine(3_000, "denied", "User:bob", "::1", "READ", "topic:orders", "DENIED", "no rule", {})
        away = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 1 is away")
        return [
            ServiceAudit("admin", 1_000, self.authorization_enabled, (made,)),
            ServiceAudit("broker 0", 1_500, self.authorization_enabled, (denied,)),
            ServiceAudit("broker 1", error=away),
        ]

    async def list_acls(self) -> list[Acl]:
        return self.acls

    async def describe_client_quotas(self) -> Mapping[QuotaEntity, Limits]:
        return self.quotas


@pytest.fixture
def cluster() -> GuardedCluster:
    return GuardedCluster()


async def test_the_access_rules_are_searched(browser: httpx.AsyncClient) -> None:
    data = (await browser.get("/acls?q=OPS", headers=JSON)).json()["data"]
    (rule,) = data["acls"]
    assert (rule["principal"], rule["operation"], rule["permission"]) == ("User:ops", "ALL", "DENY")
    assert (data["total"], data["acl_count"]) == (1, 2)


async def test_the_quotas_show_each_limit(browser: httpx.AsyncClient) -> None:
    data = (await browser.get("/quotas", headers=JSON)).json()["data"]
    assert [one["entity"] for one in data["quotas"]] == ["the default client id", f"user {HOSTILE}"]
    assert set(data["quotas"][1]["limits"]) == {str(kind) for kind in QuotaKind}
    assert (await browser.get("/quotas?q=default", headers=JSON)).json()["data"]["total"] == 1


async def test_the_audit_page_has_lines_of_all_services_the_newest_first(
    browser: httpx.AsyncClient, cluster: GuardedCluster
) -> None:
    page = (await browser.get("/audit?q=or ders&principal=BOB&outcome=denied", headers=JSON)).json()
    assert [(one["service"], one["event"]) for one in page["data"]["lines"]] == [
        ("broker 0", "denied"),
        ("admin", "AlterConfigs"),
    ]
    assert cluster.audit_asked == {"principal": "BOB", "resource": "or ders", "outcome": "DENIED", "limit": 500}
    assert page["command"] == "tidemark audit --principal BOB --resource 'or ders' --outcome DENIED"
    text = (await browser.get("/audit")).text
    assert "Lines of broker 1 are missing: broker 1 is away" in text
    assert "Authorization is off" not in text
    assert (await browser.get("/audit?outcome=none")).status_code == 400
    assert (await browser.get("/audit?principal=" + "x" * 250)).status_code == 400


async def test_the_audit_page_of_a_cluster_without_authorization_says_so(
    browser: httpx.AsyncClient, cluster: GuardedCluster
) -> None:
    cluster.authorization_enabled = False
    assert "Authorization is off: nothing is denied" in (await browser.get("/audit")).text


@pytest.mark.parametrize(
    ("path", "command"),
    [("/acls", "tidemark acl list"), ("/quotas", "tidemark quota list"), ("/audit", "tidemark audit")],
)
async def test_a_page_of_users_names_its_command_and_shows_names_as_text(
    path: str, command: str, browser: httpx.AsyncClient
) -> None:
    text = (await browser.get(path)).text
    assert f"<code>{command}</code>" in text
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    assert (await browser.get(f"{path}?q=" + "x" * 250)).status_code == 400


@pytest.mark.parametrize("path", ["/acls", "/quotas", "/audit"])
async def test_a_user_without_the_right_is_refused(
    path: str, browser: httpx.AsyncClient, cluster: GuardedCluster
) -> None:
    cluster.failure = refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no right to describe the cluster")
    page = await browser.get(path, headers=JSON)
    assert (page.status_code, page.json()["error"]["message"]) == (403, "no right to describe the cluster")
