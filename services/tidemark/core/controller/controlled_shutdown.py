# SPDX-License-Identifier: Apache-2.0
"""Controlled shutdown: move leaderships to other brokers before a broker stops.

Until its session ends the broker is handled like a suspected one. Leadership moves to other in-sync replicas, and the
broker leaves every ISR that keeps at least min_isr members without it; no leader adds it again. The broker is released
once that is decided, written and acknowledged. The broker leads partitions without another in-sync replica until it
stops.
"""

from __future__ import annotations

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import ReleaseBroker
from tidemark.model import BrokerEpoch, BrokerId


class ControlledShutdowns:
    """Brokers that requested controlled shutdown.

    Attributes:
        _shutting_down: with the broker epoch that asked; until that registration ends or is replaced.
        _released: brokers to which `ReleaseBroker` was sent. Invariant: a subset of `_shutting_down`.
    """

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._shutting_down: dict[BrokerId, BrokerEpoch] = {}
        self._released: set[BrokerId] = set()

    @property
    def shutting_down(self) -> frozenset[BrokerId]:
        """Brokers that requested controlled shutdown and are still registered."""
        return frozenset(self._shutting_down)

    def requested(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """A heartbeat of this broker requests controlled shutdown; every later heartbeat repeats the request."""
        registration = self._ctx.brokers.get(broker)
        if registration is None or registration.broker_epoch != broker_epoch:
            return
        if broker in self._shutting_down:
            self._released.discard(broker)  # the command that released the broker may have been lost
            return
        self._ctx.observe("broker_leaving", None, broker=broker)
        self._shutting_down[broker] = broker_epoch

    def forget(self, broker: BrokerId) -> None:
        """Forget a broker whose registration ended, or was replaced by a newer registration."""
        self._shutting_down.pop(broker, None)
        self._released.discard(broker)

    def release(self) -> None:
        """Release the brokers that are not needed any more."""
        for broker, broker_epoch in self._shutting_down.items():
            if broker not in self._released and not self._is_needed(broker):
                self._released.add(broker)
                self._ctx.emit(ReleaseBroker(broker, broker_epoch))

    def _is_needed(self, broker: BrokerId) -> bool:
        """Whether a partition of this broker is not decided or written yet, or another broker has not acknowledged."""
        ctx = self._ctx
        for other, pending in ctx.commands.items():
            waits = (
                pending.needs_full_leader_and_isr or pending.partitions or pending.leader_and_isr.request_id is not None
            )
            if waits and other not in ctx.avoided:
                return True
        partitions = ctx.on_broker[broker]
        undecided = not (partitions.isdisjoint(ctx.dirty) and partitions.isdisjoint(ctx.undecided))
        return undecided or any(ctx.partitions[one].busy for one in partitions)
