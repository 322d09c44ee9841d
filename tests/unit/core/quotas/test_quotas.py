# SPDX-License-Identifier: Apache-2.0
"""The quota that applies to a client, and quotas that are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.quotas.quotas import (
    DEFAULT,
    QuotaEntity,
    QuotaKind,
    Quotas,
    check_client_id,
    check_entity,
    check_limit,
    kind_of,
    limit_text,
)
from tidemark.model import ErrorCode

from tests.refusals import raises_code

ALICE, BOB, LOADER, VIEWER = "User:token:alice", "User:token:bob", "loader", "viewer"
RATE = QuotaKind.PRODUCER_BYTE_RATE
PRECEDENCE = [
    QuotaEntity(ALICE, LOADER),
    QuotaEntity(ALICE, DEFAULT),
    QuotaEntity(ALICE, None),
    QuotaEntity(DEFAULT, LOADER),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT, None),
    QuotaEntity(None, LOADER),
    QuotaEntity(None, DEFAULT),
]
SHARED = [
    *(QuotaEntity(ALICE, LOADER),) * 2,
    QuotaEntity(ALICE, None),
    *(QuotaEntity(ALICE, LOADER),) * 2,
    QuotaEntity(ALICE, None),
    *(QuotaEntity(None, LOADER),) * 2,
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_entity_decides(first: int) -> None:
    quotas = Quotas({entity: {RATE: float(at + 1)} for at, entity in enumerate(PRECEDENCE) if at >= first})
    assert quotas.decide(RATE, ALICE, LOADER) == (PRECEDENCE[first], first + 1, SHARED[first])


@given(st.sets(st.sampled_from(PRECEDENCE)), st.sampled_from([ALICE, BOB]), st.sampled_from([LOADER, VIEWER, ""]))
def test_a_decision_is_the_first_entity_of_the_precedence_that_covers_the_caller(
    entities: set[QuotaEntity], user: str, client_id: str
) -> None:
    def covers(entity: QuotaEntity) -> bool:
        return entity.user in (None, DEFAULT, user) and entity.client_id in (None, DEFAULT, client_id)

    expected = next((entity for entity in PRECEDENCE if entity in entities and covers(entity)), None)
    found = Quotas({entity: {RATE: 1.0} for entity in entities}).decide(RATE, user, client_id)
    assert (None if found is None else found.entity) == expected


def test_each_kind_is_decided_by_itself() -> None:
    quotas = Quotas({QuotaEntity(ALICE): {RATE: 5.0}, QuotaEntity(None, LOADER): {QuotaKind.REQUEST_PERCENTAGE: 7.0}})
    assert quotas.decide(RATE, ALICE, LOADER) == (QuotaEntity(ALICE), 5.0, QuotaEntity(ALICE))
    decided = quotas.decide(QuotaKind.REQUEST_PERCENTAGE, ALICE, LOADER)
    assert decided == (QuotaEntity(None, LOADER), 7.0, QuotaEntity(None, LOADER))
    assert quotas.decide(QuotaKind.CONSUMER_BYTE_RATE, ALICE, LOADER) is None
    assert quotas.decide(RATE, BOB, VIEWER) is None


def refused(call: object, *arguments: object) -> str:
    with raises_code(ErrorCode.INVALID_REQUEST) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.message


@pytest.mark.parametrize(
    "entity",
    [
        QuotaEntity(),
        QuotaEntity(""),
        QuotaEntity(None, ""),
        QuotaEntity("", ""),
        QuotaEntity("alice"),
        QuotaEntity("User:"),
        QuotaEntity("User:*"),
        QuotaEntity("User:alice"),
        QuotaEntity("User:token:a\nb"),
        QuotaEntity("User:token:" + "a" * 1024),
        QuotaEntity(ALICE, "a space "),
        QuotaEntity(ALICE, "a" * 256),
        QuotaEntity(ALICE, "\x7f"),
    ],
)
def test_an_entity_that_no_caller_can_be_is_refused(entity: QuotaEntity) -> None:
    assert len(refused(check_entity, entity)) < 400


@pytest.mark.parametrize("entity", [*PRECEDENCE, QuotaEntity("User:ANONYMOUS", "tidemark consume 1.0")])
def test_users_client_ids_and_defaults_are_entities(entity: QuotaEntity) -> None:
    assert check_entity(entity) == entity


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e16])
@pytest.mark.parametrize("kind", QuotaKind)
def test_a_limit_is_above_0_and_finite(kind: QuotaKind, limit: float) -> None:
    assert f"{kind} is" in refused(check_limit, kind, limit)
    assert check_limit(kind, 5) == 5.0


def test_unknown_kinds_and_client_ids_of_other_characters_are_refused() -> None:
    assert "give one of producer_byte_rate, " in refused(kind_of, "ip_connection_rate")
    for wrong in ("", "ä", " a", "a\n", "x" * 256, DEFAULT):
        refused(check_client_id, wrong)


@pytest.mark.parametrize(("limit", "text"), [(1e7, "10000000"), (12345678, "12345678"), (1e15, "1000000000000000")])
def test_a_limit_is_shown_with_all_its_digits(limit: float, text: str) -> None:
    """Otherwise a change of 12345678 to 12345679 would show no difference."""
    assert limit_text(limit) == text
    assert limit_text(33.5) == "33.5"
