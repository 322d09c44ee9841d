# SPDX-License-Identifier: Apache-2.0
"""The use of quotas over time; the tests give the time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.quotas.accounts import BURST_S, OTHERS, WAIT_MAX_S, Account, Accounts
from tidemark.core.quotas.bucket import Bucket
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind, Quotas

ALICE, BOB = "User:token:alice", "User:token:bob"
RATE = QuotaKind.PRODUCER_BYTE_RATE
AMOUNTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 5)), min_size=1, max_size=40)


@given(AMOUNTS, st.floats(1, 1e5), st.floats(0, 3))
def test_a_user_that_waits_keeps_the_rate(uses: list[tuple[float, float]], rate: float, burst_s: float) -> None:
    bucket, now_s, used, last = Bucket(), 100.0, 0.0, 0.0
    for amount, pause_s in uses:
        assert bucket.wait_s(rate, now_s, burst_s) == pytest.approx(0, abs=1e-6)
        now_s += bucket.debit(amount, rate, now_s, burst_s)
        used += amount
        last = max(last, amount)
        assert used <= (now_s - 100 + burst_s) * rate * (1 + 1e-9) + 1e-6
        now_s += pause_s


@given(AMOUNTS, st.floats(1, 1e5))
def test_a_wait_is_never_longer_than_its_limit_and_ends(uses: list[tuple[float, float]], rate: float) -> None:
    bucket, now_s = Bucket(), 0.0
    for amount, pause_s in uses:
        now_s += pause_s
        wait_s = bucket.debit(amount, rate, now_s, BURST_S, WAIT_MAX_S)
        assert 0 <= wait_s <= WAIT_MAX_S + 1e-6
    assert bucket.wait_s(rate, now_s + wait_s, BURST_S) == pytest.approx(0, abs=1e-6)


def test_a_changed_rate_changes_the_rest_of_a_wait_and_a_clock_that_goes_back_changes_nothing() -> None:
    bucket = Bucket()
    assert bucket.debit(100, 10, 0) == 10
    assert bucket.wait_s(100, 0) == 1
    assert bucket.wait_s(10, -5) == 10
    assert bucket.wait_s(10, 4) == 6


def spend(accounts: Accounts, user: str, client_id: str, amount: float, now_s: float = 0.0) -> float | None:
    account = accounts.of(RATE, user, client_id, now_s)
    return None if account is None else account.debit(amount, now_s)


def with_quotas(*limits: tuple[QuotaEntity, float], accounts_max: int = 100) -> Accounts:
    accounts = Accounts(accounts_max)
    accounts.use(Quotas({entity: {RATE: limit} for entity, limit in limits}))
    return accounts


def test_callers_share_a_quota_as_its_entity_says() -> None:
    of_user = with_quotas((QuotaEntity(ALICE), 10))
    assert spend(of_user, ALICE, "a", 20) == 1
    assert spend(of_user, ALICE, "b", 10) == 2
    assert spend(of_user, BOB, "a", 20) is None
    of_client_id = with_quotas((QuotaEntity(None, DEFAULT), 10))
    assert spend(of_client_id, ALICE, "a", 20) == 1
    assert spend(of_client_id, BOB, "a", 10) == 2
    assert spend(of_client_id, BOB, "b", 10) == 0
    of_pairs = with_quotas((QuotaEntity(DEFAULT, DEFAULT), 10))
    assert [spend(of_pairs, *pair, 20) for pair in itertools.product((ALICE, BOB), ("a", "b"))] == [1, 1, 1, 1]


def test_new_quotas_apply_to_earlier_use_and_a_removed_one_ends_the_wait() -> None:
    accounts = with_quotas((QuotaEntity(ALICE), 10))
    assert spend(accounts, ALICE, "", 110) == 10
    accounts.use(Quotas({QuotaEntity(ALICE): {RATE: 100.0}}))
    assert spend(accounts, ALICE, "", 0) == pytest.approx(0.1)
    accounts.use(Quotas())
    assert spend(accounts, ALICE, "", 1e9) is None


def test_any_number_of_client_ids_takes_a_bounded_number_of_accounts() -> None:
    accounts = with_quotas((QuotaEntity(None, DEFAULT), 10), accounts_max=5)
    for number in range(5):
        spend(accounts, ALICE, f"id{number}", 100)
    for number in range(5, 50):
        spend(accounts, ALICE, f"id{number}", 100)
    assert len(list(accounts)) == 6
    assert {one.shared_by for one in accounts} >= {OTHERS}
    waits = [spend(accounts, ALICE, f"new{number}", 1, now_s=100) for number in range(3)]
    assert waits == [0, 0, 0]
    assert len(list(accounts)) <= 6
    assert OTHERS not in {one.shared_by for one in accounts}


def test_many_client_ids_of_a_user_leave_other_users_their_own_accounts() -> None:
    accounts = with_quotas((QuotaEntity(ALICE, DEFAULT), 10), (QuotaEntity(DEFAULT), 1000), accounts_max=5)
    for number in range(50):
        spend(accounts, ALICE, f"id{number}", 1e6)
    assert spend(accounts, BOB, "", 100) == 0
    assert spend(accounts, ALICE, "id50", 0) == WAIT_MAX_S
    assert spend(accounts, BOB, "", 100) == 0
    assert len(list(accounts)) == 7
    for number in range(50):
        spend(accounts, f"{BOB}{number}", "", 1e6)
    assert len(list(accounts)) == 11, "ten accounts, and one for all other users"


def test_partitions_are_admitted_while_the_quota_is_kept_and_nothing_is_counted_otherwise() -> None:
    account = Account(QuotaKind.PARTITION_CREATION_RATE, QuotaEntity(ALICE))
    account.rate = 2.0
    assert account.admit(100, 0.0) == 0
    assert account.admit(1, 0.0) == 49
    assert account.admit(1, 10.0) == 39
    assert account.used == 100
    assert account.admit(1, 49.0) == 0
    assert account.throttled == 2


def test_request_time_is_debited_in_seconds_of_one_processor() -> None:
    accounts = Accounts()
    accounts.use(Quotas({QuotaEntity(ALICE): {QuotaKind.REQUEST_PERCENTAGE: 50.0}}))
    account = accounts.of(QuotaKind.REQUEST_PERCENTAGE, ALICE, "", 0.0)
    assert account is not None
    assert account.debit(0.5, 0.0) == 0
    assert account.debit(1.0, 0.0) == 2
