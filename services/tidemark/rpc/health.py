# SPDX-License-Identifier: Apache-2.0
"""The gRPC health service. The servicer of grpc_health writes to a watcher while its lock is held. So a watcher that
does not read blocks each change of the state, and thus the shutdown.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

WATCHES_MAX: Final = 1_000
"""Watches of a server at a time, over all its ports."""


class Health(health_pb2_grpc.HealthServicer):
    """The state of each name. Each watcher is sent the latest state, and may miss states between."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._watches = 0

    def set(self, name: str, state: Any) -> None:
        """Change the state; waits for no watcher."""
        self._states[name] = state
        for changed in self._watchers.get(name, ()):
            changed.set()

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        """The state of a name; NOT_FOUND for an unknown name."""
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this server has no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=state)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The states of all names."""
        states = {name: health_pb2.HealthCheckResponse(status=state) for name, state in self._states.items()}
        messages: Any = health_pb2  # its type stubs are older than List
        return messages.HealthListResponse(statuses=states)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        """The state of a name, then each change; SERVICE_UNKNOWN while the name is unknown.

        RESOURCE_EXHAUSTED beyond `WATCHES_MAX`.
        """
        if self._watches >= WATCHES_MAX:
            sentence = f"this server answers at most {WATCHES_MAX} health watches at a time; use Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
        name, changed = request.service, asyncio.Event()
        self._watches += 1
        self._watchers.setdefault(name, set()).add(changed)
        try:
            await self._report(name, changed, context)
        finally:
            self._watches -= 1
            self._watchers[name].discard(changed)
            if not self._watchers[name]:
                del self._watchers[name]

    async def _report(self, name: str, changed: asyncio.Event, context: Any) -> None:
        sent = None
        while True:
            changed.clear()
            state = self._states.get(name, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if state != sent:
                await context.write(health_pb2.HealthCheckResponse(status=state))
                sent = state
            await changed.wait()
