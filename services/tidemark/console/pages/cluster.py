# SPDX-License-Identifier: Apache-2.0
"""The questions that several pages ask: brokers, topics, log directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.client.aio import ClusterDescription
from tidemark.console.page import Asked
from tidemark.console.queries.shared import Answer
from tidemark.core.cluster_view import TopicView
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.model import TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs

SLOW_LIFE_MS: Final = 10_000
"""Life of answers that change with a command of an operator only, such as settings and schemas."""
RESTART_LIFE_MS: Final = 60_000
"""The admin service reads the state of every partition for this question, so pages share the answer for longer."""


async def cluster_of(asked: Asked) -> ClusterDescription:
    """Brokers, controller and counts of the cluster."""
    return await asked.need_admin("cluster", lambda admin: admin.describe_cluster())


async def topics_of(asked: Asked) -> Mapping[str, TopicView]:
    """All topics that the user may see, by name in alphabetical order."""
    views = await asked.need_admin("topics", lambda admin: admin.describe_topics())
    return {view.topic: view for view in views}


async def log_dirs_of(
    asked: Asked,
    *,
    topics: Sequence[str] = (),
    partitions: Sequence[TopicPartition] = (),
    include_isr_changes: bool = False,
) -> Answer[list[BrokerLogDirs]]:
    """Log directories with the replicas of these topics and partitions, of all brokers that answer."""
    names, places = tuple(topics), tuple(partitions)
    return await asked.see_admin(
        "log_dirs",
        lambda admin: admin.describe_log_dirs(topics=names, partitions=places, include_isr_changes=include_isr_changes),
        key=(names, places, include_isr_changes),
    )


async def obstacles_of(asked: Asked, broker: int) -> Answer[list[RestartObstacle]]:
    """The reasons why a broker must not be restarted now."""
    return await asked.see_admin(
        "obstacles", lambda admin: admin.obstacles_to_restart(broker), key=broker, life_ms=RESTART_LIFE_MS
    )
