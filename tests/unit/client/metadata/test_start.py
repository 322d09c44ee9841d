# SPDX-License-Identifier: Apache-2.0
"""The start of a client whose token brokers refuse, or that no broker answers in time."""

from __future__ import annotations

import math

import pytest
from tidemark.client.metadata import silence
from tidemark.client.metadata.blocking_cluster import BlockingCluster
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


def test_a_blocking_client_whose_token_every_broker_refuses_fails_with_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a blocking client asked until its deadline, and then raised BROKER_NOT_AVAILABLE."""
    asked: list[str] = []

    def refuse(_: BlockingCluster, address: str, *__: object) -> None:
        asked.append(address)
        raise TidemarkError(ErrorCode.AUTHENTICATION_FAILED, "the token is not known", {"reason": "unknown"})

    monkeypatch.setattr(BlockingCluster, "call", refuse)
    with BlockingCluster("a:1,b:1", deadline_s=2.0) as cluster, raises_code(ErrorCode.AUTHENTICATION_FAILED, "known"):
        cluster.topics(["orders"])
    assert asked == ["a:1", "b:1"]


def test_a_blocking_client_tries_an_expired_token_again_until_its_connect_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise expired()

    monkeypatch.setattr(BlockingCluster, "call", refuse)
    with (
        BlockingCluster("a:1,b:1", deadline_s=60.0, connect_timeout_s=0.1) as cluster,
        pytest.raises(AuthenticationError, match="has expired"),
    ):
        cluster.topics(["orders"])
