# SPDX-License-Identifier: Apache-2.0
"""The start of a client whose token has expired, at brokers of which one does not answer in time any more."""

from __future__ import annotations

import math

import pytest
from tidemark.client.metadata import silence
from tidemark.client.metadata.cluster import Cluster
from tidemark.errors import AuthenticationError
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.expiring import expired

from tests.refusals import raises_code

LATE = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "b:1: deadline_exceeded")


async def test_an_expired_token_is_reported_also_if_the_last_round_is_too_short_for_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = [{"a:1": expired(), "b:1": expired()}]

    async def ask_any(*, timeout_s: float = math.inf) -> dict[str, TidemarkError]:
        return rounds.pop() if rounds else {"a:1": expired(), "b:1": LATE}

    cluster = Cluster("a:1,b:1", timeout_s=0.3)
    monkeypatch.setattr(cluster, "_ask_any", ask_any)
    with pytest.raises(AuthenticationError, match="has expired"):
        await cluster.start()
    await cluster.close()


async def test_a_start_without_an_answer_is_logged_once_before_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silence, "SHOWN_AFTER_S", 0.0)

    async def ask_any(*, timeout_s: float = math.inf) -> dict[str, TidemarkError]:
        return {"b:1": LATE}

    cluster = Cluster("b:1", timeout_s=0.3)
    monkeypatch.setattr(cluster, "_ask_any", ask_any)
    with raises_code(ErrorCode.BROKER_NOT_AVAILABLE) as failed:
        await cluster.start()
    assert [record.message for record in caplog.records] == [f"{failed.value.message}; trying again for 0 s"]
    await cluster.close()
