# SPDX-License-Identifier: Apache-2.0
"""The start of a client whose token has expired, at brokers of which one does not answer in time any more."""

from __future__ import annotations

import math

import pytest
from tidemark.client.metadata.cluster import Cluster
from tidemark.errors import AuthenticationError
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.expiring import expired

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
