# SPDX-License-Identifier: Apache-2.0
"""The result of creating a topic, with warnings about broker restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from tidemark.core.cluster_view import TopicView
from tidemark.model import invalid_request
from tidemark.runtime.configuration.settings import topic_settings

MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class CreatedTopic(TopicView):
    """A topic as it was created, or as `validate_only` planned it."""

    @classmethod
    def of(cls, topic: TopicView) -> Self:
        """Make the result from the view of the topic."""
        return cls(**{one.name: getattr(topic, one.name) for one in fields(TopicView)})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Effects that a restart of any broker with a replica will have on users, one sentence each; usually empty."""
        return restart_warnings(self, self.configs)


def check_schema_was_made(topic: TopicView, *, validate_only: bool) -> None:
    """Raise INVALID_REQUEST if an admin service of 0.1.0, which ignores the schema, made a topic of bytes."""
    if topic.schema_version:
        return
    if validate_only:
        raise invalid_request(f"{topic.topic} would be created without its schema: upgrade the admin service first")
    raise invalid_request(
        f"{topic.topic} was created without its schema, since the admin service is of an older version: delete the "
        "topic, upgrade the admin service, and create the topic again"
    )


def restart_warnings(topic: TopicView, configs: Mapping[str, str]) -> tuple[str, ...]:
    """List the effects of restarting any broker with a replica on users of a topic with these settings."""
    if not topic.partitions:
        return ()
    replicas = len(topic.partitions[min(topic.partitions)].assigned_replicas)
    wanted = topic_settings({name: configs[name] for name in (MIN_ISR,) if name in configs})
    if replicas == 1:
        return (f"{topic.topic} has one replica of each partition: reads and writes stop while its broker restarts",)
    if wanted.min_insync_replicas < replicas:
        return ()
    return (
        f"{topic.topic} has no replica to spare. With {replicas} replicas and {MIN_ISR}="
        f"{wanted.min_insync_replicas} each restart of a broker stops acks=all for a moment. Use one replica more, "
        f"or {MIN_ISR}={replicas - 1}",
    )
