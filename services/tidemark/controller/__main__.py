# SPDX-License-Identifier: Apache-2.0
"""`python -m tidemark.controller`: the process, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tidemark.runtime.collecting import no_collections

with no_collections():
    from tidemark.controller.assembly import new_loop
    from tidemark.controller.metrics import ControllerMetrics
    from tidemark.controller.service import ControllerServicer
    from tidemark.core.security.principals import Role
    from tidemark.model import BrokerId
    from tidemark.rpc.limits.connections import limits_of
    from tidemark.rpc.receiver import ReceiverCheck
    from tidemark.rpc.security.handshakes import NativeLines
    from tidemark.rpc.security.listeners import ListenerPort, identity_in
    from tidemark.rpc.security.scrapes import serve_metrics
    from tidemark.rpc.security.service import load_ports
    from tidemark.rpc.server import GrpcServer, Service
    from tidemark.runtime.clock import SystemClock
    from tidemark.runtime.configuration.settings import ControllerSettings, load_settings
    from tidemark.runtime.logging import configure_logging
    from tidemark.runtime.metrics import METRICS, MetricsServer, tell_what_runs
    from tidemark.runtime.service import end_process, run_until_stopped
    from tidemark.runtime.stalls import run_watched
    from tidemark.v1.controller_service_pb2_grpc import add_ControllerServiceServicer_to_server
    from tidemark.zookeeper.reachable import start_when_reachable
    from tidemark.zookeeper.store import store_of


class ControllerProcess:
    """One controller process; `start` and `stop` list its parts in order."""

    def __init__(self, settings: ControllerSettings, ports: Sequence[ListenerPort]) -> None:
        clock = SystemClock()
        self._settings = settings
        self._store = store_of(settings, clock)
        METRICS.show(self._store.metrics)
        tell_what_runs("controller")
        receiver = ReceiverCheck()
        self._loop = new_loop(settings, self._store, clock, ControllerMetrics(), receiver)
        servicer = ControllerServicer(self._loop, BrokerId(settings.controller_id))
        services = [Service(add_ControllerServiceServicer_to_server, servicer, "tidemark.v1.ControllerService")]
        self._identity = identity_in(ports)
        self._server = GrpcServer(
            ports, services, health=settings.health_listeners, limits=limits_of(settings), receiver=receiver
        )
        self._metrics: MetricsServer | None = None
        self._running: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Server, metrics, session, election; then SERVING and ready, active or standby."""
        await self._server.start()
        self._metrics = serve_metrics(self._settings, self._identity)
        await start_when_reachable(self._store, self._settings.zookeeper_connect)
        self._running = asyncio.create_task(self._loop.run(), name="controller loop")
        self._running.add_done_callback(self._on_end)
        await self._server.set_serving(True)

    async def stop(self) -> None:
        """End the term and resign, close the session, stop the server."""
        await self._server.set_serving(False)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self._store.stop()
        await self._server.stop(self._settings.shutdown_grace_ms / 1000)
        if self._metrics is not None:
            self._metrics.close()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)


async def _main() -> int:
    settings = load_settings(ControllerSettings)
    configure_logging(settings.log_level, settings.log_format, "controller")
    process = ControllerProcess(settings, load_ports(settings, Role.CONTROLLER, settings.controller_id))
    path = settings.termination_message_path
    with NativeLines(METRICS):
        return await run_until_stopped(process.start, process.stop, failed=process.failed, termination_path=path)


if __name__ == "__main__":
    end_process(run_watched(_main()))
