# SPDX-License-Identifier: Apache-2.0
"""Failure detection: a stream of heartbeats to each live broker (rule C5).

After a refused reconnect or a missed deadline the broker is suspected; the core decides on the consequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from enum import Enum
from itertools import count
from typing import Any, Final

import grpc

from tidemark.controller.ports import Submit
from tidemark.core.controller.events import (
    BrokerSuspected,
    BrokerTrusted,
    ControlledShutdownRequested,
    DirectoriesFailed,
)
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch
from tidemark.rpc.channel import open_channel
from tidemark.rpc.codecs.control import header_to_proto
from tidemark.rpc.receiver import receiver_headers
from tidemark.runtime.clock import timeout
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceStub

_log = logging.getLogger(__name__)
_RECONNECT_S: Final = 0.2
_REPEATED_S: Final = 0.05
"""Pause before the one reconnect, if the stream broke as soon as it was connected."""
_CONNECT: Final = (("grpc.min_reconnect_backoff_ms", 1_000),)
"""Time limit of a connection attempt, shorter than for clients: during the attempt the partitions of a silent broker
have no leader.
"""
_SILENCE_S: Final = 0.8
"""A connection attempt that fails after this time timed out; an earlier failure is a refusal."""


class _Ending(Enum):
    REFUSED = "refused"  # the connection was refused
    BROKE = "broke"  # the stream broke after its connection
    MISSED_DEADLINE = "missed deadline"


class Heartbeats:
    """`BrokerHeartbeats` over gRPC: one stream for each live broker epoch."""

    def __init__(
        self,
        controller_id: BrokerId,
        controller_epoch: ControllerEpoch,
        cluster_id: str,
        submit: Submit,
        *,
        interval_ms: int,
        timeout_ms: int,
    ) -> None:
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._cluster_id = cluster_id
        self._submit = submit
        self._interval_s = interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._tasks: dict[BrokerId, tuple[BrokerEpoch, asyncio.Task[None]]] = {}
        self._released: dict[BrokerId, tuple[BrokerEpoch, asyncio.Event]] = {}

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Send heartbeats to exactly these brokers."""
        for broker, (epoch, task) in list(self._tasks.items()):
            if broker not in brokers or brokers[broker].broker_epoch != epoch:
                task.cancel()
                del self._tasks[broker]
                self._released.pop(broker, None)
        for broker, registration in brokers.items():
            if broker not in self._tasks:
                self._released[broker] = (registration.broker_epoch, asyncio.Event())
                task = asyncio.create_task(self._watch(registration), name=f"heartbeat {broker}")
                self._tasks[broker] = (registration.broker_epoch, task)

    def release(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Permit this broker to shut down; a heartbeat is sent immediately."""
        known = self._released.get(broker)
        if known is not None and known[0] == broker_epoch:
            known[1].set()

    async def stop(self) -> None:
        """Stop the heartbeats to all brokers."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, broker: BrokerRegistration) -> None:
        """Suspect the broker after a missed deadline; a stream that was up and broke gets one immediate reconnect.

        So a new controller detects a broker that failed together with the old controller as fast as any other failed
        broker.
        """
        failures = 0
        while True:
            began_s = time.monotonic()
            ending = await self._one_stream(broker)
            took_s = time.monotonic() - began_s
            if ending is _Ending.REFUSED and took_s > _SILENCE_S:
                ending = _Ending.MISSED_DEADLINE
            failures = 1 if ending is _Ending.BROKE else failures + 1
            if failures >= 2 or ending is _Ending.MISSED_DEADLINE:
                self._submit(BrokerSuspected(broker.broker_id, broker.broker_epoch))
                await asyncio.sleep(_RECONNECT_S)
            elif took_s < _RECONNECT_S:
                await asyncio.sleep(_REPEATED_S)

    async def _one_stream(self, broker: BrokerRegistration) -> _Ending:
        """Send heartbeats until the stream fails.

        A read is always pending, so the end of the broker's process ends the stream immediately, not at the next
        heartbeat.
        """
        ending = _Ending.REFUSED
        offline: frozenset[str] = frozenset()
        async with open_channel(broker.address, options=_CONNECT) as channel:
            stub: Any = BrokerControlServiceStub(channel)
            call = stub.Heartbeat(metadata=receiver_headers(self._cluster_id, broker.broker_id))
            pings = asyncio.create_task(self._ping(call, broker))
            try:
                while True:
                    async with timeout(self._timeout_s):
                        response = await call.read()
                    if response is grpc.aio.EOF or response.broker_epoch != broker.broker_epoch:
                        return ending
                    ending = _Ending.BROKE
                    self._submit(BrokerTrusted(broker.broker_id, broker.broker_epoch))
                    if response.wants_shutdown:
                        self._submit(ControlledShutdownRequested(broker.broker_id, broker.broker_epoch))
                    if not offline.issuperset(response.offline_directories):
                        self._submit(DirectoriesFailed(broker.broker_id, broker.broker_epoch))
                    offline = frozenset(response.offline_directories)
            except TimeoutError:
                _log.info("a broker missed a heartbeat", extra={"broker": broker.broker_id})
                return _Ending.MISSED_DEADLINE
            except (grpc.RpcError, asyncio.InvalidStateError) as error:
                _log.info("heartbeat broke", extra={"broker": broker.broker_id, "why": type(error).__name__})
                return ending
            finally:
                pings.cancel()
                call.cancel()

    async def _ping(self, call: Any, broker: BrokerRegistration) -> None:
        header = header_to_proto(self._controller_id, self._controller_epoch, broker.broker_epoch)
        _, released = self._released[broker.broker_id]
        try:
            for sequence in count(1):
                may_shut_down = released.is_set()
                ping = pb.HeartbeatRequest(
                    header=header,
                    sequence=sequence,
                    may_shut_down=may_shut_down,
                    interval_ms=round(1000 * self._interval_s),
                )
                await call.write(ping)
                await _either(self._interval_s, None if may_shut_down else released)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            # The pending read also fails. Cancelling the call here would cancel the task that reads.
            _log.debug("ping not sent", extra={"broker": broker.broker_id, "why": type(error).__name__})


async def _either(seconds: float, event: asyncio.Event | None) -> None:
    """Wait for the event, if there is one, for `seconds` at most."""
    if event is None:
        await asyncio.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await event.wait()
