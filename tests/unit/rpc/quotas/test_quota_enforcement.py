# SPDX-License-Identifier: Apache-2.0
"""Callers over their quotas: their waits, and the callers without quotas."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from tidemark.core.quotas.accounts import Accounts
from tidemark.core.quotas.quotas import DEFAULT, QuotaEntity, QuotaKind, Quotas
from tidemark.core.security.principals import ANONYMOUS, Principal, principal_of
from tidemark.model import ErrorCode
from tidemark.rpc.quotas import enforcement
from tidemark.rpc.quotas.enforcement import NO_QUOTAS, ClientQuotas
from tidemark.rpc.quotas.metrics import QuotaMetrics

from tests.refusals import raises_code

RATE, CREATE = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.PARTITION_CREATION_RATE
ALICE = "User:tidemark://shop/user/alice"


class Call:
    """The context of a call."""

    def __init__(self, caller: Principal | None, *headers: tuple[str, str | bytes]) -> None:
        self.caller = caller
        self._headers = headers

    def invocation_metadata(self) -> Any:
        return self._headers


@pytest.fixture(autouse=True)
def known_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcement, "caller_of", lambda context: context.caller)


def with_quotas(limit: float, *, cluster: str = "shop") -> ClientQuotas:
    quotas = ClientQuotas(cluster, lambda: now_s[0])
    now_s[0] = 100.0
    entities = (QuotaEntity(DEFAULT), QuotaEntity(DEFAULT, "loader"))
    quotas.use(Quotas({entity: {RATE: limit, CREATE: limit} for entity in entities}))
    return quotas


now_s = [0.0]
"""The time of the quotas."""


def user(uri: str = "tidemark://shop/user/alice") -> Principal:
    return principal_of([uri])


def test_a_caller_is_known_by_user_and_client_id() -> None:
    quotas = with_quotas(10)
    callers = [
        quotas.of(Call(user())),
        quotas.of(Call(user(), ("client-id", "loader"))),
        quotas.of(Call(user("tidemark://shop/user/bob"))),
        quotas.of(Call(None)),
    ]
    for number, caller in enumerate(callers):
        caller.debit(RATE, 20 + 10 * number)
    assert [caller.wait_ms(RATE) for caller in callers] == [1001, 2001, 3001, 4001]
    text = QuotaMetrics(quotas.accounts).render()
    assert f'tidemark_quota_produced_bytes_total{{user="{ALICE}",client_id="loader"}} 30.0' in text
    assert f'tidemark_quota_produced_bytes_total{{user="{ANONYMOUS.name}",client_id=""}} 50.0' in text
    assert 'tidemark_quota_throttle_seconds_total{kind="producer_byte_rate"' in text


@pytest.mark.parametrize(
    "uri", ["tidemark://shop/broker/3", "tidemark://shop/controller/100", "tidemark://shop/admin/a"]
)
def test_a_service_of_the_cluster_has_no_quotas_and_one_of_another_cluster_has(uri: str) -> None:
    assert with_quotas(10).of(Call(user(uri))) is NO_QUOTAS
    assert with_quotas(10, cluster="other").of(Call(user(uri))) is not NO_QUOTAS
    assert with_quotas(10, cluster="").of(Call(user(uri))) is not NO_QUOTAS


@pytest.mark.parametrize("value", ["x" * 256, "", " a", b"\xff\xfe", "<default>"])
def test_a_wrong_client_id_is_refused(value: str | bytes) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST):
        with_quotas(10).of(Call(user(), ("user-agent", "x"), ("client-id", value)))


async def test_a_held_caller_continues_after_its_limit_or_at_a_change_of_the_quotas() -> None:
    quotas = with_quotas(10)
    caller = quotas.of(Call(user()))
    caller.debit(RATE, 1_000)
    assert caller.wait_ms(RATE) == 30_001
    quotas.now_s = time.monotonic
    caller.debit(RATE, 1_000)
    began_s = time.monotonic()
    await caller.hold(RATE, at_most_s=0.05)
    assert 0.04 < time.monotonic() - began_s < 10
    held = asyncio.create_task(caller.hold(RATE))
    await asyncio.sleep(0)
    assert not held.done()
    quotas.use(Quotas())
    async with asyncio.timeout(10):
        await held
    await caller.hold(RATE)
    assert caller.wait_ms(RATE) == 0


def test_a_caller_in_debt_creates_no_partitions() -> None:
    caller = with_quotas(10).of(Call(user()))
    caller.admit(CREATE, 40, "partitions")
    with raises_code(ErrorCode.THROTTLING_QUOTA_EXCEEDED) as refused:
        caller.admit(CREATE, 1, "partitions")
    assert refused.value.metadata == {"quota": "partition_creation_rate", "throttle_time_ms": "3001"}
    now_s[0] += 3.1
    caller.admit(CREATE, 1, "partitions")
    NO_QUOTAS.admit(CREATE, 1_000, "partitions")


def test_the_series_of_metrics_are_bounded() -> None:
    quotas = with_quotas(10)
    for number in range(20):
        quotas.of(Call(user(f"tidemark://shop/user/{number}"))).debit(RATE, 2)
    text = QuotaMetrics(quotas.accounts, limit=5).render()
    lines = [line for line in text.splitlines() if line.startswith("tidemark_quota_produced_bytes_total")]
    assert len(lines) == 6
    assert lines[-1] == 'tidemark_quota_produced_bytes_total{user="_other",client_id="_other"} 30.0'


def test_the_common_series_never_falls_when_accounts_close() -> None:
    """Regression: Prometheus took the fall for a restart, and counted the rest of the sum again."""
    quotas = ClientQuotas("shop", lambda: now_s[0])
    quotas.accounts = Accounts(accounts_max=8)
    quotas.use(Quotas({QuotaEntity(DEFAULT): {RATE: 10.0}}))
    metrics, sums = QuotaMetrics(quotas.accounts, limit=5), [0.0]
    for number in range(40):
        quotas.of(Call(user(f"tidemark://shop/user/{number}"))).debit(RATE, 100)
        if number % 10 == 9:
            now_s[0] += 100
        found = re.search(r'bytes_total{user="_other",client_id="_other"} (.+)', metrics.render())
        sums.append(float(found[1]) if found else sums[-1])
        assert sums[-1] >= sums[-2]
    assert sums[-1] > 1_000


async def test_a_single_call_is_timed_and_held_up_for_a_moment_only() -> None:
    quotas = ClientQuotas()
    quotas.use(Quotas({QuotaEntity(DEFAULT): {QuotaKind.REQUEST_PERCENTAGE: 1.0}}))
    caller = quotas.of(Call(user()))
    async with caller.timed(at_most_s=0.05):
        await asyncio.sleep(0.02)
    assert caller.wait_ms(QuotaKind.REQUEST_PERCENTAGE) > 500
    began_s = time.monotonic()
    async with caller.timed(at_most_s=0.05):
        assert 0.04 < time.monotonic() - began_s < 10
