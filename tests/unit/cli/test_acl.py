# SPDX-License-Identifier: Apache-2.0
"""`tidemark acl`: rules for every type of resource that has prefixes, as options and in a file of `tidemark apply`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tidemark.admin.acls import ChangedAcls
from tidemark.cli.app import app
from tidemark.cli.apply.acl_section import RESOURCES, rules_of
from tidemark.cli.common import options
from tidemark.core.security.acls import APPLICABLE, Acl, Operation, Pattern, ResourceType
from typer.testing import CliRunner

from tests.unit.cli.fake_admin import FakeAdmin

ALICE = "User:token:alice"
PREFIXED = [ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID]


class Cluster(FakeAdmin):
    """Accepts every rule."""

    def alter_acls(self, *, add: Sequence[Acl], remove: Sequence[Acl], **_: Any) -> ChangedAcls:
        return ChangedAcls(tuple(add), tuple(remove), 1)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "connect_admin", lambda *_, **__: Cluster())


@pytest.mark.parametrize("kind", PREFIXED)
def test_a_rule_may_name_a_prefix(kind: ResourceType) -> None:
    key = f"{kind.lower()}_prefix"
    assert RESOURCES[key] == (kind, Pattern.PREFIXED)
    (rule,) = rules_of(ALICE, {"allow": ["describe"], key: ["spark-"]})
    assert (rule.resource_type, rule.pattern, rule.name) == (kind, Pattern.PREFIXED, "spark-")
    option = f"--{key.replace('_', '-')}"
    words = ["acl", "add", "--principal", ALICE, "--allow", "describe", option, "spark-"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"+ {rule}\n1 rule changed\n"


def test_every_type_of_resource_has_a_key() -> None:
    assert {kind for kind, _ in RESOURCES.values()} == set(ResourceType)
    assert all(Operation.DESCRIBE in APPLICABLE[kind] for kind in ResourceType)
