# SPDX-License-Identifier: Apache-2.0
"""A broker process that stops on SIGTERM, as a controller sees it (controlled shutdown)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidemark.local.process import ServiceProcess
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import TopicPartition
from tidemark.rpc.channel import open_channel
from tidemark.v1 import controller_service_pb2
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceStub

from tests.integration.harness.hand_controller import Brokers, HandController, client_of, controller_of
from tests.unit.record.samples import sample

RECORDS = 3
"""Records in one sample batch."""


class Pings:
    """A heartbeat stream to a broker."""

    def __init__(self, call: Any, broker_epoch: int) -> None:
        self._call = call
        self._header = controller_service_pb2.ControlHeader(
            controller_id=100, controller_epoch=99, broker_epoch=broker_epoch
        )

    async def ping(self, *, may_shut_down: bool = False) -> None:
        await self._call.write(
            controller_service_pb2.HeartbeatRequest(header=self._header, sequence=7, may_shut_down=may_shut_down)
        )

    async def answer(self) -> controller_service_pb2.HeartbeatResponse:
        async with asyncio.timeout(5):
            found: controller_service_pb2.HeartbeatResponse = await self._call.read()
        return found


@asynccontextmanager
async def pings_to(brokers: Brokers, controller: HandController) -> AsyncIterator[Pings]:
    async with open_channel(brokers.address(0)) as channel:
        stub: Any = BrokerControlServiceStub(channel)
        call = stub.Heartbeat()
        yield Pings(call, int((await controller.store.live_brokers())[brokers.ids[0]].broker_epoch))
        call.cancel()


@pytest.fixture
async def patient(tmp_path: Path, zookeeper: ZooKeeperProcess) -> AsyncIterator[Brokers]:
    """A broker that waits for its release as long as a test may take."""
    brokers = Brokers(tmp_path, zookeeper, 1, {"controlled.shutdown.max.wait.ms": "120000"})
    try:
        await brokers.start()
        yield brokers
    finally:
        brokers.kill_all()


@pytest.fixture
async def leads(patient: Brokers) -> AsyncIterator[tuple[Brokers, HandController, TopicPartition]]:
    """A broker that leads a partition with records."""
    async with controller_of(patient) as controller:
        partition = await controller.create_topic("flights", replicas=[0])
        async with client_of(patient, 0) as client:
            await client.produce(partition, [sample()])
        yield patient, controller, partition


async def ends(process: ServiceProcess) -> float:
    """Wait for the end of a process; returns the seconds."""
    began_s = time.monotonic()
    assert await asyncio.to_thread(process.wait, 10.0), process.tail()
    assert process.exit_status == 0, process.tail()
    return time.monotonic() - began_s


@pytest.mark.alone
async def test_a_stopping_broker_announces_this_and_serves_until_it_is_released(
    leads: tuple[Brokers, HandController, TopicPartition],
) -> None:
    brokers, controller, partition = leads
    process = brokers.processes[brokers.ids[0]]
    async with pings_to(brokers, controller) as pings:
        await pings.ping()
        first = await pings.answer()
        assert (first.sequence, first.wants_shutdown) == (7, False)
        process.signal(signal.SIGTERM)
        assert (await pings.answer()).wants_shutdown, "no shutdown was requested"
        async with client_of(brokers, 0) as client:
            (result,) = await client.produce(partition, [sample()])
            assert (result.base_offset, result.error.code) == (RECORDS, "")
        await pings.ping()
        assert (await pings.answer()).wants_shutdown
        assert process.running
        await pings.ping(may_shut_down=True)
        assert await ends(process) < 8.0, process.tail(200)  # without an answer it takes 10 s
    assert (brokers.log_directory(0) / "clean-shutdown.json").exists()
    log = process.log.read_text()
    assert "waiting until no partition needs this broker" in log
    assert "the controller permits it: no partition needs this broker any more" in log


async def test_a_second_signal_ends_the_wait_at_once(leads: tuple[Brokers, HandController, TopicPartition]) -> None:
    brokers, controller, _ = leads
    process = brokers.processes[brokers.ids[0]]
    async with pings_to(brokers, controller) as pings:
        await pings.ping()
        await pings.answer()
        process.signal(signal.SIGTERM)
        assert (await pings.answer()).wants_shutdown
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 5.0)
    assert process.exit_status == 128 + signal.SIGTERM


@pytest.mark.alone
async def test_a_broker_that_leads_nothing_does_not_wait_for_a_controller_that_is_not_there(patient: Brokers) -> None:
    process = patient.processes[patient.ids[0]]
    process.signal(signal.SIGTERM)
    assert await ends(process) < 6.0
