# SPDX-License-Identifier: Apache-2.0
"""Topics' nodes written anew: at most one write of a topic under way, with everything that is to be changed in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import WriteTopic
from tidemark.model import TopicDescription

_RETRY_MS: Final = 200

Rewrite = Callable[[TopicDescription], TopicDescription]


class TopicWrites:
    """`rewrites` give, one after the other, the node as it should be; equal to what it is: nothing is to be done."""

    def __init__(self, ctx: ControllerContext, rewrites: Sequence[Rewrite]) -> None:
        self._ctx = ctx
        self._rewrites = rewrites
        self._under_way: set[str] = set()
        self._not_before_ms: dict[str, int] = {}

    def write(self, now_ms: int) -> None:
        """Those that are to be changed, unless they are being written, or it was just tried in vain."""
        waiting = set()
        for name in self._ctx.rewritten:
            topic = self._ctx.topics.get(name)
            if topic is None:
                continue
            if name in self._under_way or now_ms < self._not_before_ms.get(name, 0):
                waiting.add(name)
                continue
            wanted = topic
            for rewrite in self._rewrites:
                wanted = rewrite(wanted)
            if wanted != topic:
                self._under_way.add(name)
                self._ctx.emit(WriteTopic(wanted))
        self._ctx.rewritten = waiting

    def answered(self, topic: str, written: bool, now_ms: int) -> None:
        """It was written; or not, or nobody knows: then once more, by when it has been read."""
        self._under_way.discard(topic)
        self._not_before_ms.pop(topic, None)
        if not written:
            self._not_before_ms[topic] = now_ms + _RETRY_MS
            self._ctx.rewritten.add(topic)
