# SPDX-License-Identifier: Apache-2.0
"""The core driver: events in, effects out, in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark.broker.node import core_driver as driver_module
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.core.config import ReplicationConfig
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.effects import Effect, LeadershipChanged, Observed
from tidemark.core.replication.events import Event, FollowerDisconnected, LeaderDisconnected, Tick
from tidemark.model import BrokerEpoch, BrokerId, TopicPartition
from tidemark.runtime.scheduler import AsyncioScheduler

from tests.fakes.metadata_store import ManualClock
from tests.turns import turns

PARTITION = TopicPartition("flights", 0)


class ScriptedCore(BrokerCore):
    """Returns the effects that the test chooses."""

    def __init__(self, answer: Callable[[Event], list[Effect]]) -> None:
        super().__init__(BrokerId(0), ReplicationConfig())
        self.seen: list[Event] = []
        self._answer = answer

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.seen.append(event)
        return self._answer(event)


def leader_gone(number: int) -> LeaderDisconnected:
    return LeaderDisconnected(BrokerId(number))


async def test_effects_run_in_order_and_events_they_submit_are_queued() -> None:
    core = ScriptedCore(
        lambda event: [Observed("first", None, {}), LeadershipChanged(PARTITION, True)] if event == Tick() else []
    )
    failures: list[BaseException] = []
    driver = BrokerDriver(core, ManualClock(), AsyncioScheduler(), failures.append)
    done: list[str] = []

    def on_observed(effect: Observed) -> None:
        driver.submit(leader_gone(1))
        done.append(effect.kind)

    driver.wire({Observed: on_observed, LeadershipChanged: lambda _: done.append("second")})
    driver.submit_all([Tick(), leader_gone(2)])
    assert done == ["first", "second"]
    assert core.seen == [Tick(), leader_gone(2), leader_gone(1)]


async def test_a_burst_yields_to_the_event_loop_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_SLICE_S", 0.0)
    core = ScriptedCore(lambda event: [])
    failures: list[BaseException] = []
    driver = BrokerDriver(core, ManualClock(), AsyncioScheduler(), failures.append)
    driver.submit_all([leader_gone(number) for number in range(5)])
    assert len(core.seen) == 1
    driver.submit(FollowerDisconnected(BrokerId(9), BrokerEpoch(0)))  # arrives during the burst
    await turns()
    assert core.seen == [
        *(leader_gone(number) for number in range(5)),
        FollowerDisconnected(BrokerId(9), BrokerEpoch(0)),
    ]


async def test_a_defect_of_the_core_ends_the_broker_and_no_later_event_is_handled() -> None:
    def fail(event: Event) -> list[Effect]:
        raise AssertionError("an invariant does not hold")

    core = ScriptedCore(fail)
    failures: list[BaseException] = []
    driver = BrokerDriver(core, ManualClock(), AsyncioScheduler(), failures.append)
    driver.submit(Tick())
    driver.submit(leader_gone(1))
    assert core.seen == [Tick()]
    assert [str(error) for error in failures] == ["an invariant does not hold"]


async def test_a_failure_of_another_part_during_a_burst_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_SLICE_S", 0.0)
    core = ScriptedCore(lambda event: [])
    failures: list[BaseException] = []
    driver = BrokerDriver(core, ManualClock(), AsyncioScheduler(), failures.append)
    driver.submit_all([leader_gone(1), leader_gone(2)])
    driver.fail(RuntimeError("a thread has died"))
    await turns(3)  # the rest of the burst was scheduled
    driver.submit(leader_gone(3))
    assert core.seen == [leader_gone(1)]
    assert [str(error) for error in failures] == ["a thread has died"]
