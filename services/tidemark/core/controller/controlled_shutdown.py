# SPDX-License-Identifier: Apache-2.0
"""Brokers that want to shut down (controlled shutdown): nobody shall need one when it goes.

Until it has gone such a broker counts as suspected: leadership moves to others in sync, it leaves every ISR that keeps
at least m members, and nobody takes it in again. Once that is decided, written and told it may go; what nobody else can
lead it leads to the end.
"""

from __future__ import annotations

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import ReleaseBroker
from tidemark.model import BrokerEpoch, BrokerId


class Departures:
    """Who wants to go, in which broker epoch; released once."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._leaving: dict[BrokerId, BrokerEpoch] = {}
        self._released: set[BrokerId] = set()

    @property
    def leaving(self) -> frozenset[BrokerId]:
        """Who wants to go."""
        return frozenset(self._leaving)

    def wanted(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """It says so with every heartbeat."""
        registration = self._ctx.brokers.get(broker)
        if registration is None or registration.broker_epoch != broker_epoch:
            return
        if broker in self._leaving:
            self._released.discard(broker)  # it may not have heard
            return
        self._ctx.observe("broker_leaving", None, broker=broker)
        self._leaving[broker] = broker_epoch

    def forget(self, broker: BrokerId) -> None:
        """It has gone, or come back."""
        self._leaving.pop(broker, None)
        self._released.discard(broker)

    def release(self) -> None:
        """Those whom nobody needs any more."""
        for broker, broker_epoch in self._leaving.items():
            if broker not in self._released and not self._is_needed(broker):
                self._released.add(broker)
                self._ctx.emit(ReleaseBroker(broker, broker_epoch))

    def _is_needed(self, broker: BrokerId) -> bool:
        """Whether something about its partitions is still to be decided, written, or told to the others."""
        ctx = self._ctx
        for other, link in ctx.links.items():
            waits = link.needs_all_leadership or link.partitions or link.leadership.request_id
            if waits and other not in ctx.unwanted:
                return True
        partitions = ctx.on_broker[broker]
        undecided = not (partitions.isdisjoint(ctx.dirty) and partitions.isdisjoint(ctx.undecided))
        return undecided or any(ctx.records[one].busy for one in partitions)
