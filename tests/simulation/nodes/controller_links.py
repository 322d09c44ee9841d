# SPDX-License-Identifier: Apache-2.0
"""Calls and heartbeats of a simulated controller: late, repeated or lost, as the links and the recipe decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.controller.ports import Submit
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.messages import LeaderAndIsrCommand, StopReplicaCommand
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, TidemarkError

from tests.simulation.engine import Answer

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.nodes.controller import ControllerNode

_CALL_TIMEOUT_MS = 700
_HEARTBEAT_INTERVAL_MS = 250
_HEARTBEAT_TIMEOUT_MS = 500

Respond = Callable[[Any], None]


def call(node: ControllerNode, broker: BrokerId, deliver: Callable[[BrokerNode, Respond], None]) -> Answer[Any]:
    """One call over the links; `deliver` runs on the broker, each time that the request arrives."""
    engine, network, name, dice = node.engine, node.world.network, f"b{broker}", node.dice
    answer: Answer[Any] = Answer()

    def respond(value: Any) -> None:
        if network.carries(name, node.name):
            node.after(network.delay_ms(name, node.name), lambda: answer.settle(value))

    def arrive() -> None:
        if not network.carries(node.name, name):
            return
        process = node.world.brokers.get(broker)
        if process is None:
            error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "connection refused")
            node.after(2, lambda: answer.settle(error=error))
            return
        process.run(lambda: deliver(process, respond))

    delays = [network.delay_ms(node.name, name)]
    if dice.random() < node.world.recipe.repeated_calls:
        delays.append(dice.choice((20, 100, 500, 900)))
    if dice.random() < node.world.recipe.late_calls:
        delays[0] += dice.choice((60, 200, 800))
    for delay_ms in delays:
        engine.after(delay_ms, arrive)
    late = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
    node.after(_CALL_TIMEOUT_MS, lambda: answer.settle(error=late))
    return answer


class SimChannels:
    """`BrokerChannels` over simulated links."""

    def __init__(self, node: ControllerNode, controller_epoch: ControllerEpoch) -> None:
        self._node = node
        self._controller_epoch = controller_epoch

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """A link finds its broker by name."""

    async def stop(self) -> None:
        """Drop the answers of the term's calls."""

    async def send_leader_and_isr(self, effect: fx.SendLeaderAndIsr) -> ev.ControlAnswered:
        # The command that arrives is another object than the one that was sent.
        copies = [replace(one, partitions=tuple(one.partitions)) for one in effect.commands]
        return await self._command(effect.broker, effect.request_id, *copies)

    async def send_stop_replica(self, effect: fx.SendStopReplica) -> ev.ControlAnswered:
        return await self._command(effect.broker, effect.request_id, replace(effect.command))

    async def send_update_metadata(self, effect: fx.SendUpdateMetadata) -> ev.ControlAnswered:
        def deliver(process: BrokerNode, respond: Respond) -> None:
            refusal = process.refuses(self._controller_epoch, effect.broker_epoch)
            respond(refusal if refusal is not None or not typed else process.update_metadata(effect.view))

        typed = self._node.world.recipe.typed

        try:
            error = await call(self._node, effect.broker, deliver)
        except TidemarkError as failure:
            error = failure
        return ev.ControlAnswered(effect.broker, effect.request_id, error)

    async def describe_replicas(self, effect: fx.DescribeReplicas) -> ev.ReplicasDescribed:
        def deliver(process: BrokerNode, respond: Respond) -> None:
            refusal = process.refuses(self._controller_epoch, effect.broker_epoch)
            respond((refusal, {}, {}, {}) if refusal is not None else (None, *process.describe(effect.partitions)))

        try:
            error, found, refused, held = await call(self._node, effect.broker, deliver)
        except TidemarkError as failure:
            error, found, refused, held = failure, {}, {}, {}
        return ev.ReplicasDescribed(effect.broker, effect.request_id, error, found, refused, held)

    async def _command(
        self, broker: BrokerId, request_id: int, *commands: LeaderAndIsrCommand | StopReplicaCommand
    ) -> ev.ControlAnswered:
        """Send all parts in order; the first error ends the call."""
        refused: tuple[Any, ...] = ()
        for command in commands:
            try:
                error, some = await call(self._node, broker, partial(_deliver_command, command))
            except TidemarkError as failure:
                error, some = failure, ()
            if error is not None:
                return ev.ControlAnswered(broker, request_id, error)
            refused += some
        return ev.ControlAnswered(broker, request_id, None, refused)


def _deliver_command(command: LeaderAndIsrCommand | StopReplicaCommand, process: BrokerNode, respond: Respond) -> None:
    process.command(command, lambda error, refused: respond((error, refused)))


class SimHeartbeats:
    """`BrokerHeartbeats`: a dead process refuses the connection, a stopped or partitioned one misses its deadline."""

    def __init__(self, node: ControllerNode, submit: Submit) -> None:
        self._node = node
        self._submit = submit
        self._followed: dict[BrokerId, BrokerEpoch] = {}
        self._reported_failed: set[tuple[BrokerId, BrokerEpoch]] = set()

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        for broker in [one for one in self._followed if one not in brokers]:
            del self._followed[broker]
        for broker, registration in brokers.items():
            if self._followed.get(broker) != registration.broker_epoch:
                self._followed[broker] = registration.broker_epoch
                self._ping(broker, registration.broker_epoch, self._node.engine.now)

    def release(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        def deliver(process: BrokerNode, respond: Respond) -> None:
            if process.broker_epoch == broker_epoch:
                process.may_go()

        call(self._node, broker, deliver)

    async def stop(self) -> None:
        self._followed.clear()

    def _ping(self, broker: BrokerId, broker_epoch: BrokerEpoch, answered_ms: int) -> None:
        node, world = self._node, self._node.world
        if self._followed.get(broker) != broker_epoch:
            return
        now_ms, process = node.engine.now, world.brokers.get(broker)
        reachable = process is not None and world.network.both_ways(node.name, process.name)
        if reachable and process is not None and not process.paused and process.broker_epoch == broker_epoch:
            answered_ms = now_ms
            self._submit(ev.BrokerTrusted(broker, broker_epoch))
            if process.wants_shutdown:
                self._submit(ev.ControlledShutdownRequested(broker, broker_epoch))
            if process.machine.failed and (broker, broker_epoch) not in self._reported_failed:
                self._reported_failed.add((broker, broker_epoch))
                self._submit(ev.DirectoriesFailed(broker, broker_epoch))
        elif process is None or now_ms - answered_ms > _HEARTBEAT_TIMEOUT_MS:
            self._submit(ev.BrokerSuspected(broker, broker_epoch))
        delay_ms = _HEARTBEAT_INTERVAL_MS + node.dice.randrange(30)
        node.after(delay_ms, lambda: self._ping(broker, broker_epoch, answered_ms))
