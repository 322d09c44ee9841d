# SPDX-License-Identifier: Apache-2.0
"""Access rules changed by the admin service, in a fake ZooKeeper."""

from __future__ import annotations

from secrets import token_hex

import pytest
from tidemark.admin.acls import AclAdministration, ChangedAcls
from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType
from tidemark.model import ErrorCode

from tests.fakes.metadata_store import FakeZooKeeper
from tests.refusals import raises_code


def rule(topic: str) -> Acl:
    return Acl(ResourceType.TOPIC, Pattern.LITERAL, topic, "User:token:alice", "*", Operation.READ, Permission.ALLOW)


@pytest.fixture
async def acls() -> AclAdministration:
    store = FakeZooKeeper().store()
    await store.start()
    return AclAdministration(store, ())


async def test_a_dry_run_states_the_difference_and_changes_nothing(acls: AclAdministration) -> None:
    for validate_only, generation in ((True, -1), (False, 0)):
        changed = await acls.alter([rule("orders")], [rule("absent")], validate_only=validate_only)
        assert changed == ChangedAcls((rule("orders"),), (), generation)


async def test_a_dry_run_refuses_rules_that_do_not_fit_into_a_node(acls: AclAdministration) -> None:
    rules = [rule(token_hex(120)) for _ in range(5_000)]
    for validate_only in (True, False):
        with raises_code(ErrorCode.INVALID_REQUEST, "beyond ZooKeeper's limits"):
            await acls.alter(rules, (), validate_only=validate_only)
