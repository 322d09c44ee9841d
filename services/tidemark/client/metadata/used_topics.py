# SPDX-License-Identifier: Apache-2.0
"""The topics whose metadata a client keeps: those that the client uses, until they are idle (KIP-526)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

IDLE_S: Final = 300.0
"""Time without a use after which a client forgets a topic, as Kafka's `metadata.max.idle.ms`."""


class UsedTopics:
    """Names of topics, the one that was used longest ago first; used on one event loop. Times are of time.monotonic().

    Topics expire when another one is added: a client that always uses the same topics forgets none.

    Attributes:
        followed: topics that are in use until the next call of `follow`.
        users: functions that name topics in use, which do not expire.
        forgotten: functions that are called with the topics that have expired.
    """

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self.followed: frozenset[str] = frozenset()
        self.users: list[Callable[[], AbstractSet[str]]] = []
        self.forgotten: list[Callable[[AbstractSet[str]], None]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._used_s)

    def __len__(self) -> int:
        return len(self._used_s)

    def use(self, topic: str, now_s: float) -> bool:
        """Note a use of the topic; returns whether the topic is new."""
        is_new = self._used_s.pop(topic, None) is None
        self._used_s[topic] = now_s
        if is_new:
            self._expire(now_s)
        return is_new

    def discard(self, topic: str) -> None:
        """Remove a topic, unless it is followed."""
        if topic not in self.followed:
            self._used_s.pop(topic, None)

    def beyond(self, topics: Iterable[str]) -> bool:
        """Whether there are other topics than these."""
        return not self._used_s.keys() <= set(topics)

    def _expire(self, now_s: float) -> None:
        idle = set(itertools.takewhile(lambda topic: self._used_s[topic] + IDLE_S <= now_s, self._used_s))
        if not idle:
            return
        in_use = idle.intersection(self.followed.union(*(topics() for topics in self.users)))
        for topic in idle:
            del self._used_s[topic]
        self._used_s |= dict.fromkeys(in_use, now_s)
        for forget in self.forgotten:
            forget(idle - in_use)
