# SPDX-License-Identifier: Apache-2.0
"""`LogRepairs` for tests of the parts that read logs."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.model import TopicPartition


class FakeRepairs:
    """Remembers the requests; `heal` repairs the log of the test, None: there is no good copy."""

    def __init__(self, heal: Callable[[int], None] | None = None, *, running: bool = False) -> None:
        self.asked: list[int] = []
        self.suspected: list[int] = []
        self._heal = heal
        self._running = running

    def suspect(self, partition: TopicPartition, offset: int) -> None:
        self.suspected.append(offset)

    async def repair(self, partition: TopicPartition, offset: int) -> bool:
        self.asked.append(offset)
        if self._heal is not None:
            self._heal(offset)
        return self._heal is not None

    def is_running(self, partition: TopicPartition) -> bool:
        return self._running
