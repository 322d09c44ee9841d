# SPDX-License-Identifier: Apache-2.0
"""Updates of topics' nodes: at most one write of a topic is in flight, with every change that is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import WriteTopic
from tidemark.model import TopicDescription

_RETRY_MS: Final = 200

Rewrite = Callable[[TopicDescription], TopicDescription]


class TopicUpdates:
    """Composes the nodes of the topics in `ControllerContext.rewritten`.

    Attributes:
        _rewrites: each takes the node that the previous rewrite returned, and returns the wanted node.
        _in_flight: topics whose write was not answered yet.
        _not_before_ms: time when the next write of a topic may begin, after a failed one.
    """

    def __init__(self, ctx: ControllerContext, rewrites: Sequence[Rewrite]) -> None:
        self._ctx = ctx
        self._rewrites = rewrites
        self._in_flight: set[str] = set()
        self._not_before_ms: dict[str, int] = {}

    def write(self, now_ms: int) -> None:
        """Write the nodes that change; a topic with a write in flight, or in its back-off, waits."""
        waiting = set()
        for name in self._ctx.rewritten:
            topic = self._ctx.topics.get(name)
            if topic is None:
                continue
            if name in self._in_flight or now_ms < self._not_before_ms.get(name, 0):
                waiting.add(name)
                continue
            wanted = topic
            for rewrite in self._rewrites:
                wanted = rewrite(wanted)
            if wanted != topic:
                self._in_flight.add(name)
                self._ctx.emit(WriteTopic(wanted))
        self._ctx.rewritten = waiting

    def answered(self, topic: str, written: bool, now_ms: int) -> None:
        """Note the outcome of a write. After a failure or an unknown outcome, the next write uses the node as read."""
        self._in_flight.discard(topic)
        self._not_before_ms.pop(topic, None)
        if not written:
            self._not_before_ms[topic] = now_ms + _RETRY_MS
            self._ctx.rewritten.add(topic)
