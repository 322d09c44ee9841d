# SPDX-License-Identifier: Apache-2.0
"""Live, suspected and stopping brokers (rules C2, C5, C6, C9), and the partitions to decide when they change."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.controlled_shutdown import ControlledShutdowns
from tidemark.core.controller.effects import Resign
from tidemark.core.controller.failure_detector import FailureDetector
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.controller.topic_deletion import TopicDeletions
from tidemark.model import BrokerEpochRecord, BrokerId, BrokerRegistration


class BrokerRegistry:
    """Keeps the brokers of `ControllerContext`: `brokers`, `epochs`, `commands`, `avoided`, `unheard`, `silent`
    and, with `CommandAnswers`, `unconfirmed`.

    Attributes:
        _failure_detector: the failure detector; None before this controller is elected.
    """

    def __init__(
        self,
        ctx: ControllerContext,
        controlled_shutdowns: ControlledShutdowns,
        deletions: TopicDeletions,
        reassignments: Reassignments,
    ) -> None:
        self._ctx = ctx
        self._controlled_shutdowns = controlled_shutdowns
        self._deletions = deletions
        self._reassignments = reassignments
        self._failure_detector: FailureDetector | None = None

    def elected(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        epochs: Mapping[BrokerId, BrokerEpochRecord],
        now_ms: int,
    ) -> None:
        """This controller was elected. The registrations are inherited: a session may outlive its broker (rule C9)."""
        self._failure_detector = FailureDetector(
            session_timeout_ms=self._ctx.config.session_timeout_ms, elected_ms=now_ms
        )
        self.learn(brokers, epochs)
        self._ctx.unheard = {broker: registration.broker_epoch for broker, registration in brokers.items()}
        self._ctx.unconfirmed = set(brokers)

    def learn(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        epochs: Mapping[BrokerId, BrokerEpochRecord],
    ) -> None:
        """The present registrations. Broker epochs are compared, so that a restart counts as a failure and a
        registration (rule C2).
        """
        gone = [broker for broker in self._ctx.brokers if broker not in brokers]
        new = [
            broker
            for broker, registration in brokers.items()
            if broker not in self._ctx.commands or self._ctx.commands[broker].broker_epoch != registration.broker_epoch
        ]
        self._ctx.epochs = dict(epochs)
        for broker in (*gone, *new):
            if self._failure_detector is not None:
                self._failure_detector.forget(broker)
            self._controlled_shutdowns.forget(broker)
            self._ctx.unheard.pop(broker, None)
            self._ctx.silent.discard(broker)
            self._ctx.unconfirmed.discard(broker)
            self._ctx.dirty |= self._ctx.on_broker[broker]
            self._deletions.broker_left(broker)
        for broker in gone:
            self._ctx.observe("broker_failed", None, broker=broker)
            self._ctx.brokers.pop(broker)
            self._ctx.commands.pop(broker, None)
        for broker in new:
            self._ctx.observe("broker_registered", None, broker=broker, broker_epoch=brokers[broker].broker_epoch)
            self._ctx.commands[broker] = PendingCommands(brokers[broker].broker_epoch)
        self._ctx.brokers.update(brokers)
        self._ctx.older = frozenset(broker for broker, found in brokers.items() if not found.stores_typed)
        if gone or new:
            self._reassignments.brokers_changed()
            for pending in self._ctx.commands.values():
                pending.brokers_changed = True

    def suspected(self, event: ev.BrokerSuspected, now_ms: int) -> None:
        """Heartbeats fail: suspect the broker, or resign if too many brokers are suspected at the same time (rule
        C6)."""
        registration = self._ctx.brokers.get(event.broker)
        if registration is None or registration.broker_epoch != event.broker_epoch or self._failure_detector is None:
            return
        if self._ctx.unheard.get(event.broker) == event.broker_epoch and event.broker not in self._ctx.silent:
            self._ctx.silent.add(event.broker)
            self._ctx.dirty |= self._ctx.on_broker[event.broker]
        if self._failure_detector.suspect(event.broker, event.broker_epoch, now_ms):
            self._ctx.observe("broker_suspected", None, broker=event.broker)
        if self._failure_detector.guard(len(self._ctx.brokers), now_ms):
            self._ctx.effects.append(
                Resign("too many brokers are suspected: this controller is probably the one partitioned")
            )

    def trusted(self, event: ev.BrokerTrusted, now_ms: int) -> None:
        """Heartbeats are answered, or answered again."""
        if self._ctx.unheard.get(event.broker) == event.broker_epoch:
            del self._ctx.unheard[event.broker]
            self._ctx.silent.discard(event.broker)
            self._ctx.dirty |= self._ctx.on_broker[event.broker]
        if self._failure_detector is not None:
            self._failure_detector.trust(event.broker, event.broker_epoch, now_ms)

    def act_on_suspicions(self, now_ms: int) -> None:
        """Before partitions are decided: end expired holds of suspected brokers, mark partitions of changed brokers."""
        if self._failure_detector is None:
            return
        self._failure_detector.on_time(now_ms)
        avoided = self._failure_detector.suspected(now_ms) | self._controlled_shutdowns.shutting_down
        if avoided == self._ctx.avoided:
            return
        for broker in avoided ^ self._ctx.avoided:
            self._ctx.dirty |= self._ctx.on_broker[broker]
        self._ctx.avoided = avoided
        for pending in self._ctx.commands.values():
            pending.suspects_changed = True

    def directories_failed(self, event: ev.DirectoriesFailed, now_ms: int) -> None:
        """Send every LeaderAndIsr again: the broker refuses partitions whose log it can no longer open."""
        pending = self._ctx.commands.get(event.broker)
        if pending is not None and pending.broker_epoch == event.broker_epoch:
            self._ctx.observe("directories_failed", None, broker=event.broker)
            pending.needs_full_leader_and_isr = True
