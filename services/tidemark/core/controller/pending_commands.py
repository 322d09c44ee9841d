# SPDX-License-Identifier: Apache-2.0
"""What each broker still has to be told (rules C1, C3): one command of a kind under way, the rest gathers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.cluster_view import TopicView
from tidemark.core.messages import StoppedReplica
from tidemark.model import BrokerEpoch, TopicPartition

_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 2_000


@dataclass(slots=True)
class Lane:
    """One kind of command to one broker.

    Attributes:
        request_id: of the command under way, None when there is none.
        retry_at_ms: not before this time, after a failure.
    """

    request_id: int | None = None
    retry_at_ms: int = 0
    failures: int = 0

    def is_free(self, now_ms: int) -> bool:
        """Whether the next command may go."""
        return self.request_id is None and now_ms >= self.retry_at_ms

    def succeeded(self) -> None:
        """The command was answered."""
        self.request_id = None
        self.failures = 0
        self.retry_at_ms = 0

    def failed(self, now_ms: int) -> None:
        """It was not, or refused as a whole: again after a back-off."""
        self.request_id = None
        self.retry_at_ms = now_ms + min(_RETRY_FIRST_MS << min(self.failures, 10), _RETRY_MAX_MS)
        self.failures += 1


Topics = Mapping[str, TopicView]


@dataclass(slots=True)
class FirstView:
    """Every partition there is, told in parts, which a broker takes in together; where one fails all are told again.
    `parts`: as they were made, by start.

    Invariant: a broker begins with it only while nothing has changed since `version` of what is shown.
    """

    partitions: tuple[TopicPartition, ...]
    version: int
    parts: dict[int, Topics] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerLink:
    """What one broker epoch has to be told. A new epoch gets a new link, which begins with everything."""

    broker_epoch: BrokerEpoch
    leadership: Lane = field(default_factory=Lane)
    stops: Lane = field(default_factory=Lane)
    metadata: Lane = field(default_factory=Lane)
    needs_all_leadership: bool = True
    needs_all_metadata: bool = True
    suspects_changed: bool = False
    brokers_changed: bool = False
    partitions: set[TopicPartition] = field(default_factory=set)
    """Leaderships to tell."""
    shown: set[TopicPartition] = field(default_factory=set)
    """Partitions whose metadata changed."""
    gone_topics: set[str] = field(default_factory=set)
    stopping: dict[TopicPartition, StoppedReplica] = field(default_factory=dict)
    sent_partitions: frozenset[TopicPartition] = frozenset()
    sent_all_leadership: bool = False
    first_view: FirstView | None = None
    first_at: int = 0
    sent_shown: Collection[TopicPartition] = ()
    sent_gone: frozenset[str] = frozenset()
    sent_all_metadata: bool = False
    sent_stops: frozenset[TopicPartition] = frozenset()

    def was_told(self, partition: TopicPartition) -> bool:
        """Whether nothing about this partition waits to be told or is under way."""
        under_way = self.leadership.request_id is not None and partition in self.sent_partitions
        return not (self.needs_all_leadership or partition in self.partitions or under_way)

    def leadership_failed(self, now_ms: int) -> None:
        """What was under way is to be told again."""
        self.partitions |= self.sent_partitions
        self.needs_all_leadership |= self.sent_all_leadership
        self.suspects_changed = True
        self.leadership.failed(now_ms)

    def metadata_succeeded(self) -> None:
        """What was under way is known; between two parts it is not forgotten how often all had to be told again."""
        failures = self.metadata.failures if self.first_view is not None else 0
        self.metadata.succeeded()
        self.metadata.failures = failures

    def metadata_failed(self, now_ms: int) -> None:
        """What was under way is to be told again."""
        self.shown.update(self.sent_shown)
        self.gone_topics |= self.sent_gone
        self.needs_all_metadata |= self.sent_all_metadata
        self.brokers_changed = True
        self.metadata.failed(now_ms)
