# SPDX-License-Identifier: Apache-2.0
"""The overview: health in one sentence, and the problems that need an operator with the command for each."""

from __future__ import annotations

from typing import Final

from tidemark.client.health import Need, health_of
from tidemark.console.page import Asked, View
from tidemark.console.pages.cluster import cluster_of, topics_of
from tidemark.model import BrokerId

_NAMED_MAX: Final = 20


async def load(asked: Asked) -> View:
    """Load the page `/`: health, urgent tasks, brokers and controller."""
    cluster = await cluster_of(asked)
    topics = await topics_of(asked)
    health = health_of(cluster, list(topics.values()))
    controller = asked.sighted("controller", cluster.view.controller_id)
    data = {
        "cluster_id": cluster.view.cluster_id,
        "health": {"level": str(health.level), "sentence": health.sentence},
        "needs": [_need(need) for need in health.needs],
        "brokers": sorted(cluster.view.brokers),
        "away": [_away(asked, broker) for broker in health.away],
        "draining_brokers": list(cluster.draining_brokers),
        "controller": {
            "id": cluster.view.controller_id,
            "since_ms": controller.since_ms,
            "before": controller.before,
        },
        "admin_address": cluster.view.admin_address,
        "topic_count": cluster.topic_count,
        "partition_count": cluster.partition_count,
        "under_replicated_count": cluster.under_replicated_count,
        "under_min_isr_count": cluster.under_min_isr_count,
        "offline_count": cluster.offline_count,
    }
    for broker in cluster.view.brokers:
        asked.sighted(("away", broker), False)
    return View("Overview", "tidemark cluster describe", data)


def _need(need: Need) -> dict[str, object]:
    named = [{"topic": one.topic, "partition": one.partition} for one in need.partitions[:_NAMED_MAX]]
    return {
        "level": str(need.level),
        "sentence": need.sentence,
        "command": need.command,
        "partitions": named,
        "partition_count": len(need.partitions),
    }


def _away(asked: Asked, broker: BrokerId) -> dict[str, object]:
    seen = asked.sighted(("away", broker), True)
    return {"broker_id": broker, "since_ms": seen.since_ms, "may_be_longer": seen.before is None}
