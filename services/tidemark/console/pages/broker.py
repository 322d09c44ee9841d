# SPDX-License-Identifier: Apache-2.0
"""One broker: readiness with the partitions that it waits for, disks, restart, settings that differ from defaults."""

from __future__ import annotations

from typing import Final

from tidemark.console.page import Asked, Refused, View
from tidemark.console.pages.brokers import any_partition, broker_facts, held_by, restart_facts
from tidemark.console.pages.cluster import cluster_of, log_dirs_of, obstacles_of, topics_of
from tidemark.console.pages.config_rows import config_rows
from tidemark.console.pages.paging import whole
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import BrokerId

_NAMED_MAX: Final = 50
_CONFIGS_LIFE_MS: Final = 10_000


async def load(asked: Asked) -> View:
    """The page `/brokers/{broker}`."""
    broker_id = BrokerId(whole(asked.path["broker"], "the broker"))
    cluster = await cluster_of(asked)
    topics = await topics_of(asked)
    held = held_by(topics.values())
    broker = cluster.view.brokers.get(broker_id)
    if broker is None and not held.replicas[broker_id]:
        live = ", ".join(map(str, sorted(cluster.view.brokers)))
        raise Refused(404, f"No broker {broker_id} is live or has replicas. Live brokers: {live}.")
    behind = held.behind.get(broker_id, [])
    seen = asked.sighted(("away", broker_id), broker is None)
    data: dict[str, object] = {
        "broker_id": broker_id,
        "live": broker is not None,
        "draining": broker_id in cluster.draining_brokers,
        "since_ms": seen.since_ms,
        "may_be_longer": seen.before is None,
        "leaders": held.leaders[broker_id],
        "replicas": held.replicas[broker_id],
        "out_of_sync": len(behind),
        "waits_for": [{"topic": one.topic, "partition": one.partition} for one in sorted(behind)[:_NAMED_MAX]],
    }
    if broker is not None:
        dirs = await log_dirs_of(asked, partitions=any_partition(topics))
        mine = next((one for one in dirs.value or [] if one.broker_id == broker_id), None)
        data |= broker_facts(broker, held, mine)
        data["restart"] = restart_facts(await obstacles_of(asked, broker_id))
        resource = ConfigResource(ConfigKind.BROKER, str(broker_id))
        configs = await asked.see_admin(
            "configs",
            lambda admin: admin.describe_configs([resource]),
            key=resource,
            life_ms=_CONFIGS_LIFE_MS,
        )
        data["configs"] = config_rows((configs.value or {}).get(resource, []))
    return View(f"Broker {broker_id}", f"tidemark cluster safe-to-restart {broker_id}", data)
