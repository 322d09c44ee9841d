"""A topic that was created, and what its maker should know of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from tidemark.core.cluster_state import TopicView
from tidemark.runtime.configuration import topic_settings

_MIN_ISR = "min.insync.replicas"


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
        if not self.partitions:
            return ()
        replicas = len(self.partitions[min(self.partitions)].assigned_replicas)
        wanted = topic_settings({name: self.configs[name] for name in (_MIN_ISR,) if name in self.configs})
        if replicas == 1:
            return (f"{self.topic} has one replica of each partition: nobody reads or writes it while that restarts",)
        if wanted.min_insync_replicas < replicas:
            return ()
        return (
            f"{self.topic} has no replica to spare: with {replicas} replicas and {_MIN_ISR}="
            f"{wanted.min_insync_replicas} each restart of a broker stops acks=all for a moment; give it one replica "
            f"more, or {_MIN_ISR}={replicas - 1}",
        )
