# SPDX-License-Identifier: Apache-2.0
"""When a broker that is told to stop may stop."""

from __future__ import annotations

import asyncio

from tidemark.broker.lifecycle.controlled_shutdown import ControlledShutdown


class World:
    """A broker that leads one partition; its time stands still unless a test moves it."""

    def __init__(self, max_wait_ms: int = 30_000) -> None:
        self.now_s = 1_000.0
        self.leader_count = 1
        self.announced = asyncio.Event()
        self.shutdown = ControlledShutdown(
            max_wait_ms=max_wait_ms,
            leader_count=lambda: self.leader_count,
            now_s=lambda: self.now_s,
        )
        self.given_up: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def _announce(self) -> None:
        self.announced.set()

    def run(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.shutdown.run(announce=self._announce, given_up=self.given_up))


async def test_it_says_so_and_waits_until_the_controller_lets_it_go() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None
    world.shutdown.on_ping(True)
    await running
    assert "controller" in (world.shutdown.why_now() or "")


async def test_a_permission_given_before_it_was_asked_for_is_not_one() -> None:
    world = World()
    world.shutdown.on_ping(True)
    running = world.run()
    await world.announced.wait()
    assert world.shutdown.why_now() is None
    world.shutdown.on_ping(True)
    await running


async def test_it_waits_no_longer_than_it_was_told_whatever_it_leads() -> None:
    world = World(max_wait_ms=5_000)
    running = world.run()
    await world.announced.wait()
    world.now_s += 4.9
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None
    world.now_s += 0.2
    await running


async def test_with_no_time_to_wait_it_says_so_and_stops_at_once() -> None:
    world = World(max_wait_ms=0)
    await world.run()
    assert world.announced.is_set()


async def test_without_a_controller_it_waits_only_while_it_leads_something() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.now_s += 3
    assert world.shutdown.why_now() is None, "a new controller may come and move what it leads"
    world.leader_count = 0
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None, "one that still asks may have to tell others first"
    world.now_s += 2
    await running


async def test_a_broker_that_has_failed_waits_for_nothing() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.given_up.set_exception(RuntimeError("a mistake of ours"))
    await running
    assert world.shutdown.why_now() is None
    assert str(world.given_up.exception()) == "a mistake of ours", "asked for, or a later test's log has it"


async def test_where_there_is_no_controller_at_all_it_does_not_wait_in_vain_for_one() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.now_s += 9.9
    assert world.shutdown.why_now() is None, "another one may just be elected"
    world.shutdown.on_ping(False)
    world.now_s += 9.9
    assert world.shutdown.why_now() is None
    world.now_s += 0.2
    await running
    assert "no controller" in (world.shutdown.why_now() or "")
