# SPDX-License-Identifier: Apache-2.0
"""The conditions under which a stopping broker stops."""

from __future__ import annotations

import asyncio

from tidemark.broker.lifecycle.controlled_shutdown import ControlledShutdown


class World:
    """A broker that leads one partition; the test advances its time."""

    def __init__(self, max_wait_ms: int = 30_000) -> None:
        self.now_s = 1_000.0
        self.leader_count = 1
        self.announced = asyncio.Event()
        self.shutdown = ControlledShutdown(
            max_wait_ms=max_wait_ms,
            leader_count=lambda: self.leader_count,
            now_s=lambda: self.now_s,
        )
        self.failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def _announce(self) -> None:
        self.announced.set()

    def run(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.shutdown.run(announce=self._announce, failed=self.failed))


async def test_the_broker_requests_the_shutdown_and_waits_for_the_permission() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None
    world.shutdown.on_ping(True)
    await running
    assert "controller" in (world.shutdown.why_now() or "")


async def test_a_permission_before_the_request_does_not_count() -> None:
    world = World()
    world.shutdown.on_ping(True)
    running = world.run()
    await world.announced.wait()
    assert world.shutdown.why_now() is None
    world.shutdown.on_ping(True)
    await running


async def test_the_broker_waits_at_most_max_wait_ms_even_as_a_leader() -> None:
    world = World(max_wait_ms=5_000)
    running = world.run()
    await world.announced.wait()
    world.now_s += 4.9
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None
    world.now_s += 0.2
    await running


async def test_the_broker_with_max_wait_ms_of_0_stops_immediately() -> None:
    world = World(max_wait_ms=0)
    await world.run()
    assert world.announced.is_set()


async def test_a_broker_without_pings_waits_only_while_it_leads_partitions() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.now_s += 3
    assert world.shutdown.why_now() is None, "a new controller may move its leaderships"
    world.leader_count = 0
    world.shutdown.on_ping(False)
    assert world.shutdown.why_now() is None, "a controller that still pings may command other brokers first"
    world.now_s += 2
    await running


async def test_a_failed_broker_does_not_wait() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.failed.set_exception(RuntimeError("an unexpected error"))
    await running
    assert world.shutdown.why_now() is None
    assert str(world.failed.exception()) == "an unexpected error", "retrieved, or the log of a later test has it"


async def test_a_broker_without_a_controller_stops_after_a_fixed_time() -> None:
    world = World()
    running = world.run()
    await world.announced.wait()
    world.now_s += 9.9
    assert world.shutdown.why_now() is None, "a controller election may be running"
    world.shutdown.on_ping(False)
    world.now_s += 9.9
    assert world.shutdown.why_now() is None
    world.now_s += 0.2
    await running
    assert "no controller" in (world.shutdown.why_now() or "")
