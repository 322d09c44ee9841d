# SPDX-License-Identifier: Apache-2.0
"""A topic that was created, and what its maker should know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from tidemark.core.cluster_view import TopicView
from tidemark.runtime.configuration import topic_settings

MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class CreatedTopic(TopicView):
    """A topic as it was created, or as it would be."""

    @classmethod
    def of(cls, topic: TopicView) -> Self:
        """The same topic."""
        return cls(**{one.name: getattr(topic, one.name) for one in fields(TopicView)})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its users will notice of a restart of any broker that has a replica, a sentence each; mostly none."""
        return noticed_of_restarts(self, self.configs)


def noticed_of_restarts(topic: TopicView, configs: Mapping[str, str]) -> tuple[str, ...]:
    """What users of a topic with these settings will notice of a restart of any broker that has a replica of it."""
    if not topic.partitions:
        return ()
    replicas = len(topic.partitions[min(topic.partitions)].assigned_replicas)
    wanted = topic_settings({name: configs[name] for name in (MIN_ISR,) if name in configs})
    if replicas == 1:
        return (f"{topic.topic} has one replica of each partition: nobody reads or writes it while that restarts",)
    if wanted.min_insync_replicas < replicas:
        return ()
    return (
        f"{topic.topic} has no replica to spare: with {replicas} replicas and {MIN_ISR}="
        f"{wanted.min_insync_replicas} each restart of a broker stops acks=all for a moment; give it one replica "
        f"more, or {MIN_ISR}={replicas - 1}",
    )
