# SPDX-License-Identifier: Apache-2.0
"""The replicas that a reassignment adds to a partition led here, throttled until they are in sync (rule M2)."""

from __future__ import annotations

from tidemark.core.messages import PartitionCommand
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.leader.follower_session import PartitionSender
from tidemark.core.replication.throttle import Throttle
from tidemark.model import BrokerId


class AddingReplicas:
    """The replicas that are being added, as of the last command; none after the reassignment.

    Attributes:
        _adding: the brokers of these replicas.
        _throttle: the throttle of the reassignment. Invariant: joined exactly while it is set, so that `end` or the
            next command leaves it.
    """

    __slots__ = ("_adding", "_ctx", "_throttle")

    def __init__(self, ctx: BrokerContext, command: PartitionCommand) -> None:
        self._ctx = ctx
        self._adding: tuple[BrokerId, ...] = ()
        self._throttle: Throttle | None = None
        self.on_command(command)

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        """Brokers whose replicas are being added."""
        return self._adding

    def on_command(self, command: PartitionCommand) -> None:
        """Apply a command; the caller calls `place` for every follower afterwards."""
        before, self._adding = self._throttle, command.adding_replicas
        self._throttle = self._ctx.throttles.join(command.throttle_bytes_per_s if self._adding else 0, self._ctx.now_ms)
        self._ctx.throttles.leave(before)

    def place(self, sender: PartitionSender, *, waited_for: bool) -> None:
        """Throttle a sender if its replica is being added; not if the high watermark waits for it (`waited_for`)."""
        added = sender.session.follower in self._adding
        if added or sender.adding:
            sender.adding = added
            sender.set_throttle(self._throttle if added and not waited_for else None)
            sender.send_more()

    def end(self) -> None:
        """End the leadership: leave the throttle."""
        self._ctx.throttles.leave(self._throttle)
        self._throttle = None
