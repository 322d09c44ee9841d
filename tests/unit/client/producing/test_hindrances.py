# SPDX-License-Identifier: Apache-2.0
"""The error of a record that expired before it was sent names the reason."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.metadata.cluster import Leader
from tidemark.client.metadata.used_topics import UsedTopics
from tidemark.client.producing.sender import Sender
from tidemark.client.settings import producer_settings
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError

LEADER = Leader(BrokerId(1), "b:1", LeaderEpoch(2), "topic id", "first")
NO_BLOCK = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "ZooKeeper does not answer broker 1")


async def refuse(*_: Any) -> Any:
    raise NO_BLOCK


def cluster(leader: Leader | None) -> Any:
    """A cluster whose brokers have no more producer ids."""
    return SimpleNamespace(
        view=ClusterView(),
        headers=(),
        leader=lambda partition: leader,
        topic_now=lambda topic: None,
        listen=lambda listener: None,
        refresh=lambda: None,
        use=lambda topic: None,
        used_topics=UsedTopics(),
        ask_in_turn=refuse,
    )


@pytest.mark.parametrize(
    ("leader", "idempotent", "reason"),
    [(LEADER, True, NO_BLOCK.message), (None, False, "the partition has no leader that could be reached")],
    ids=["without producer ids", "without a leader"],
)
async def test_a_record_that_no_broker_got_names_the_reason(
    leader: Leader | None, idempotent: bool, reason: str
) -> None:
    """Brokers answer other requests, so "no broker answered" would send the operator to the wrong place."""
    settings = producer_settings(enable_idempotence=idempotent, linger_ms=0, delivery_timeout_ms=300)
    sender = Sender(cluster(leader), settings)
    sender.start()
    handle = sender.accumulator.add("orders", 0, 1, None, b"value", 1, None)
    with pytest.raises(TidemarkError, match=reason) as failed:
        async with asyncio.timeout(30):
            await handle
    assert (failed.value.code, failed.value.metadata["in_doubt"]) == (ErrorCode.REQUEST_TIMED_OUT, "False")
    await sender.stop()
