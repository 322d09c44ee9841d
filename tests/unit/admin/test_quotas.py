# SPDX-License-Identifier: Apache-2.0
"""Quotas changed by the admin service, in a fake ZooKeeper."""

from __future__ import annotations

import asyncio
from secrets import token_hex

import pytest
from tidemark.admin.quotas import QuotaAdministration
from tidemark.core.quotas import quotas as module
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind
from tidemark.model import ErrorCode
from tidemark.rpc.quotas.codec import ChangedQuota, QuotaChange, change_from_proto, change_to_proto
from tidemark.v1 import admin_quotas_pb2 as pb

from tests.fakes.metadata_store import FakeZooKeeper, ManualClock
from tests.refusals import raises_code

ALICE = QuotaEntity("User:token:alice")
PRODUCE, CREATE = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.PARTITION_CREATION_RATE


@pytest.fixture
async def quotas() -> QuotaAdministration:
    store = FakeZooKeeper(ManualClock()).store()
    await store.start()
    return QuotaAdministration(store)


async def test_a_change_states_the_differences_and_the_same_change_again_changes_nothing(
    quotas: QuotaAdministration,
) -> None:
    change = QuotaChange(ALICE, {PRODUCE: 5.0, CREATE: 1.0})
    planned = await quotas.alter([change], validate_only=True)
    assert planned.generation == -1
    assert (await quotas.describe()).limits == {}
    done = await quotas.alter([change], validate_only=False)
    assert (
        done.changed == planned.changed == (ChangedQuota(ALICE, CREATE, None, 1), ChangedQuota(ALICE, PRODUCE, None, 5))
    )
    assert await quotas.alter([change], validate_only=False) == ((), 0)
    other = QuotaChange(QuotaEntity(DEFAULT, DEFAULT), {PRODUCE: 7.0})
    removed = QuotaChange(ALICE, {}, frozenset(QuotaKind))
    changed = await quotas.alter([other, removed], validate_only=False)
    assert {(one.before, one.after) for one in changed.changed} == {(None, 7), (5, None), (1, None)}
    assert (await quotas.describe()).limits == {other.entity: {PRODUCE: 7.0}}


async def test_concurrent_changes_are_all_made(quotas: QuotaAdministration) -> None:
    entities = [QuotaEntity(None, f"id-{number}") for number in range(10)]
    await asyncio.gather(*(quotas.alter([QuotaChange(one, {PRODUCE: 5.0})], validate_only=False) for one in entities))
    assert (await quotas.describe()).limits.keys() == set(entities)


async def test_a_dry_run_refuses_quotas_that_do_not_fit_into_a_node(quotas: QuotaAdministration) -> None:
    changes = [QuotaChange(QuotaEntity(None, token_hex(120)), {PRODUCE: 5.0}) for _ in range(5_000)]
    for validate_only in (True, False):
        with raises_code(ErrorCode.INVALID_REQUEST, "beyond ZooKeeper's limits"):
            await quotas.alter(changes, validate_only=validate_only)


async def test_an_entity_twice_and_too_many_entities_change_nothing(
    quotas: QuotaAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = [QuotaChange(ALICE, {PRODUCE: 5.0}), QuotaChange(ALICE, {CREATE: 5.0})]
    monkeypatch.setattr("tidemark.admin.quotas.ENTITIES_MAX", 2)
    many = [QuotaChange(QuotaEntity(None, f"id-{number}"), {PRODUCE: 5.0}) for number in range(3)]
    for changes in (twice, many):
        with raises_code(ErrorCode.INVALID_REQUEST):
            await quotas.alter(changes, validate_only=False)
    assert (await quotas.describe()).limits == {}
    assert module.ENTITIES_MAX > 1000


@pytest.mark.parametrize(
    ("entity", "limits", "remove"),
    [
        ({}, {"producer_byte_rate": 1.0}, []),
        ({"user": ""}, {}, []),
        ({"client_id": ""}, {}, []),
        ({"user": "User:*"}, {}, []),
        ({"client_id": "a"}, {"producer_byte_rate": -1.0}, []),
        ({"client_id": "a"}, {"producer_byte_rate": float("nan")}, []),
        ({"client_id": "a"}, {"ip_rate": 1.0}, []),
        ({"client_id": "a"}, {}, ["ip_rate"]),
        ({"client_id": "a"}, {"producer_byte_rate": 1.0}, ["producer_byte_rate"]),
    ],
)
def test_a_message_with_a_wrong_change_is_refused(
    entity: dict[str, str], limits: dict[str, float], remove: list[str]
) -> None:
    message = pb.ClientQuotasChange(entity=pb.QuotaEntity(**entity), set=limits, remove=remove)
    with raises_code(ErrorCode.INVALID_REQUEST):
        change_from_proto(message)


def test_a_change_survives_its_message() -> None:
    change = QuotaChange(QuotaEntity(DEFAULT, "a"), {PRODUCE: 5.5}, frozenset({CREATE}))
    assert change_from_proto(change_to_proto(change)) == change
