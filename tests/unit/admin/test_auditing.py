# SPDX-License-Identifier: Apache-2.0
"""The audit log line of a change has its outcome, also for a cancelled stream; lines of all services are gathered."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.admin.auditing import AuditLines, observed
from tidemark.core.security.audit_lines import AuditFilter, AuditLine, ServiceAudit
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.rpc.security.audit_ring import AuditRing

from tests.fakes.contexts import PlainContext
from tests.refusals import raises_code


class Context(PlainContext):
    """A gRPC context, whose peer must not be read after the call."""

    over = False

    def peer(self) -> str:
        assert not self.over, "gRPC would end the process"
        return "ipv4:127.0.0.1:1"


async def stream(error: Exception | None = None) -> AsyncIterator[int]:
    context: Any = Context()
    async with observed("Stream", context, {"topic": "t"}):
        context.over = True
        yield 1
        if error is not None:
            raise error


async def outcome_of(caplog: pytest.LogCaptureFixture, update: AsyncIterator[int], *, leave: bool) -> str:
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        async for _ in update:
            if leave:
                await update.aclose()  # type: ignore[attr-defined]
    return str(caplog.records[-1].__dict__["outcome"])


async def test_completed_stream_is_logged_ok_and_abandoned_stream_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    assert await outcome_of(caplog, stream(), leave=False) == "OK"
    assert await outcome_of(caplog, stream(), leave=True) == "CANCELLED"


async def test_refused_stream_is_logged_with_its_error_code(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TidemarkError):
        await outcome_of(caplog, stream(TidemarkError(ErrorCode.THROTTLE_TOO_LOW, "raise it")), leave=False)
    assert caplog.records[-1].__dict__["outcome"] == "THROTTLE_TOO_LOW"


class Store:
    """A store with two live brokers."""

    async def live_brokers(self) -> dict[int, BrokerRegistration]:
        return {one: BrokerRegistration(BrokerId(one), "localhost", 9000 + one) for one in (2, 1)}

    async def cluster_id(self) -> str:
        return "shop"


async def ask(broker: BrokerRegistration, wanted: AuditFilter, headers: Headers) -> ServiceAudit:
    assert headers == receiver_headers("shop", broker.broker_id)
    if broker.broker_id == 2:
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2 is away")
    line = AuditLine(5, "denied", "User:bob", "::1", "READ", "topic:orders", "DENIED", "no rule allows it", {})
    return ServiceAudit("broker 1", 1, authorization_enabled=True, lines=(line,))


def audit_lines() -> AuditLines:
    store: Any = Store()
    return AuditLines(store, authorization_enabled=True, ring=AuditRing(), ask=ask)


async def test_lines_of_all_services_are_gathered_and_a_silent_broker_is_named() -> None:
    found = await audit_lines().gather(AuditFilter())
    assert [(one.service, len(one.lines), one.error is None) for one in found] == [
        ("admin", 0, True),
        ("broker 1", 1, True),
        ("broker 2", 0, False),
    ]


async def test_lines_of_cancelled_changes_can_be_selected() -> None:
    found = await audit_lines().gather(AuditFilter(outcome="CANCELLED"))
    assert [one.service for one in found] == ["admin", "broker 1", "broker 2"]


@pytest.mark.parametrize("wanted", [AuditFilter(outcome="ok"), AuditFilter(outcome="X" * 99), AuditFilter(limit=-1)])
async def test_a_filter_that_is_wrong_is_refused(wanted: AuditFilter) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "expected "):
        await audit_lines().gather(wanted)
