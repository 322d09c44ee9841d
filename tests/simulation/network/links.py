# SPDX-License-Identifier: Apache-2.0
"""Reachability and delays between processes; streams between brokers are in order until they break."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidemark.core.messages import FollowerMessage, LeaderMessage
from tidemark.core.replication import events as ev

from tests.simulation.disks.bit_flips import as_received
from tests.simulation.engine import Engine, Node

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode

_STALL_POLL_MS = 40
_KEEPALIVE_MS = 600
"""A direction that carries nothing for this time ends the stream."""


class Network:
    """Links by name ("b0", "c100", "zk"); a cut is one-way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cuts: dict[tuple[str, str], int] = {}

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] = self._cuts.get((sender, receiver), 0) + 1

    def heal(self, sender: str, receiver: str) -> None:
        count = self._cuts.get((sender, receiver), 0) - 1
        if count > 0:
            self._cuts[sender, receiver] = count
        else:
            self._cuts.pop((sender, receiver), None)

    def heal_all(self) -> None:
        self._cuts.clear()

    def carries(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._cuts

    def both_ways(self, one: str, other: str) -> bool:
        return self.carries(one, other) and self.carries(other, one)

    def delay_ms(self, sender: str, receiver: str) -> int:
        return self._engine.dice(f"delay {sender} {receiver}").choice((0, 1, 1, 2, 5, 30))


class _Direction:
    """The messages in flight in one direction, in order."""

    def __init__(self) -> None:
        self.messages: deque[tuple[int, FollowerMessage | LeaderMessage]] = deque()
        self.last_ms = 0
        self.stalled_ms: int | None = None
        self.retry_ms = -1


class Stream:
    """A stream from a follower's process to a leader's."""

    def __init__(self, engine: Engine, network: Network, follower: BrokerNode, leader: BrokerNode) -> None:
        self._engine = engine
        self._network = network
        self.follower = follower
        self.leader = leader
        self.broker_epoch = follower.broker_epoch
        self.open = True
        self._directions = {True: _Direction(), False: _Direction()}

    def send(self, to_leader: bool, message: FollowerMessage | LeaderMessage) -> None:
        sender, receiver = self._ends(to_leader)
        direction = self._directions[to_leader]
        delay_ms = self._network.delay_ms(sender.name, receiver.name)
        direction.last_ms = max(direction.last_ms, self._engine.now + delay_ms)
        direction.messages.append((direction.last_ms, message))
        self._engine.at(direction.last_ms, lambda: self._arrive(to_leader))

    def _ends(self, to_leader: bool) -> tuple[Node, Node]:
        return (self.follower, self.leader) if to_leader else (self.leader, self.follower)

    def _arrive(self, to_leader: bool) -> None:
        """Deliver due messages; on a cut link they wait, and after some time the stream breaks."""
        now = self._engine.now
        direction = self._directions[to_leader]
        sender, receiver = self._ends(to_leader)
        while self.open and direction.messages and direction.messages[0][0] <= now:
            if not self._network.carries(sender.name, receiver.name):
                self._stall(to_leader, direction)
                return
            direction.stalled_ms = None
            message = direction.messages.popleft()[1]
            receiver.run(lambda message=message: self._deliver(to_leader, message))  # type: ignore[misc]

    def _stall(self, to_leader: bool, direction: _Direction) -> None:
        now = self._engine.now
        if direction.stalled_ms is None:
            direction.stalled_ms = now
        if now - direction.stalled_ms > _KEEPALIVE_MS:
            self.break_()
        elif direction.retry_ms <= now:
            direction.retry_ms = now + _STALL_POLL_MS
            self._engine.at(direction.retry_ms, lambda: self._arrive(to_leader))

    def _deliver(self, to_leader: bool, message: FollowerMessage | LeaderMessage) -> None:
        if to_leader:
            assert isinstance(message, FollowerMessage)
            if self.leader.inbound.get(self.follower.broker_id) is self:
                self.leader.feed(ev.FollowerMessageArrived(self.follower.broker_id, self.broker_epoch, message))
        else:
            assert isinstance(message, LeaderMessage)
            if self.follower.outbound.get(self.leader.broker_id) is self:
                received = as_received(self.follower.world, message)
                self.follower.feed(ev.LeaderMessageArrived(self.leader.broker_id, received))

    def break_(self) -> None:
        """Each end gets the break after the messages that it has received."""
        if not self.open:
            return
        self.open = False
        self.leader.run(lambda: self.leader.follower_gone(self))
        self.follower.run(lambda: self.follower.leader_gone(self))
