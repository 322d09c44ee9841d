# SPDX-License-Identifier: Apache-2.0
"""The order in which a broker leaves the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidemark.broker.process import BrokerProcess


async def test_a_broker_ends_its_streams_to_leaders_before_its_registration() -> None:
    """Leaders added a follower again that still fetched while its registration ended: 3,000 failed writes."""
    steps: list[str] = []

    async def stop_following() -> None:
        steps.append("streams")

    async def stop() -> None:
        steps.append("registration")

    parts = SimpleNamespace(
        _replication=SimpleNamespace(stop_following=stop_following),
        _registration=SimpleNamespace(stop=stop),
        _on_epoch=lambda epoch: None,
        _node=SimpleNamespace(driver=SimpleNamespace(submit=lambda event: steps.append("leaderships"))),
    )
    await cast("Any", BrokerProcess)._leave_cluster(parts)
    assert steps == ["streams", "registration", "leaderships"]
