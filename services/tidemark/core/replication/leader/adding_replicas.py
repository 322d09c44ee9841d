# SPDX-License-Identifier: Apache-2.0
"""The replicas that a move adds to a partition led here: they are slowed down until they are in sync (rule M2)."""

from __future__ import annotations

from tidemark.core.messages import PartitionCommand
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.leader.follower_session import PartitionSender
from tidemark.core.replication.throttle import Throttle
from tidemark.model import BrokerId


class AddingReplicas:
    """As the latest command says; it ends with the move, when a command names neither replicas nor throttle."""

    __slots__ = ("_adding", "_ctx", "_throttle")

    def __init__(self, ctx: BrokerContext, command: PartitionCommand) -> None:
        self._ctx = ctx
        self._adding: tuple[BrokerId, ...] = ()
        self._throttle: Throttle | None = None
        self.take_up(command)

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        """Who is being added."""
        return self._adding

    def take_up(self, command: PartitionCommand) -> None:
        """What the controller says now; `place` is to be called for every follower after it."""
        before, self._adding = self._throttle, command.adding_replicas
        self._throttle = self._ctx.throttles.join(command.throttle_bytes_per_s if self._adding else 0, self._ctx.now_ms)
        self._ctx.throttles.leave(before)

    def place(self, sender: PartitionSender, *, waited_for: bool) -> None:
        """Slow it down, or not; `waited_for`: the high watermark waits for it, so it must not be."""
        added = sender.session.follower in self._adding
        if added or sender.adding:
            sender.adding = added
            sender.set_throttle(self._throttle if added and not waited_for else None)
            sender.send_more()

    def end(self) -> None:
        """The leadership is over."""
        self._ctx.throttles.leave(self._throttle)
        self._throttle = None
