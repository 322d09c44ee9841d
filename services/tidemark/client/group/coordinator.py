# SPDX-License-Identifier: Apache-2.0
"""Calls to the coordinator of a consumer group, wherever it is at the moment (docs/groups.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import grpc

from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.group_service_pb2_grpc import GroupServiceStub

R = TypeVar("R")

_FIND_TIMEOUT_S: Final = 2.0
_CALL_TIMEOUT_S: Final = 5.0
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_NOT_HERE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
"""Retriable, but by who knows of a newer epoch."""


class Coordinator:
    """Finds the coordinator of one group, keeps to it while it answers, and looks for the next one when it does not."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._address: str | None = None
        self._named_by = ""
        self._hinted = False
        """Its address is what another one said that was asked in its place, and it has not answered yet."""
        self._misled_by: set[str] = set()
        """Who named a broker that does not answer for the group: cut off, they may know old news only."""

    async def call(
        self, method: Callable[[Any], Callable[..., Any]], request: Any, *, timeout_s: float, wait_s: float = 0.0
    ) -> Any:
        """Have the coordinator answer, trying again what may go away.

        Args:
            method: of a stub, e.g. `lambda stub: stub.GroupHeartbeat`.
            timeout_s: for all attempts together.
            wait_s: how long the coordinator may hold its answer back.

        Raises:
            TidemarkError: what it refuses with; REQUEST_TIMED_OUT, naming the last cause, when the time is over.
        """
        refusals: list[TidemarkError] = []
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask_on(method, request, time.monotonic() + timeout_s, wait_s, refusals)
        except TimeoutError:
            cause = refusals[-1] if refusals else None
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"group {self._group}: no answer within {max(0.0, timeout_s):.3g} s; the last cause: "
                f"{cause or 'silence'}",
            ) from cause

    async def _ask_on(
        self,
        method: Callable[[Any], Any],
        request: Any,
        deadline_s: float,
        wait_s: float,
        refusals: list[TidemarkError],
    ) -> Any:
        """Until somebody answers; what passes by itself is noted in `refusals`."""
        backoff = Backoff(max_s=1.0)
        while True:
            left_s = deadline_s - time.monotonic()
            address = None
            try:
                address = self._address or await self._find(left_s)
                self._cluster.used(address)
                attempt_s = max(0.05, min(left_s, _CALL_TIMEOUT_S + wait_s))
                answer = await _answer(method(group_stub(self._cluster, address))(request, timeout=attempt_s), address)
            except TidemarkError as error:
                if not error.retriable or error.code in _NOT_HERE:
                    raise
                self._note(error, address)
                refusals[:] = [error]
                await asyncio.sleep(backoff.next_s())
            else:
                self._hinted = False
                self._misled_by.clear()
                return answer

    def _note(self, error: TidemarkError, asked: str | None) -> None:
        """It may be elsewhere now; who is asked and knows where says so. Whom a hint led to leads nowhere else: brokers
        with old news would send us round."""
        if error.code not in _MOVED or asked is None or asked != self._address:
            return  # another call has looked elsewhere since
        self._misled_by.add(self._named_by)
        hint = f"{error.metadata.get('host', '')}:{error.metadata.get('port', '')}"
        if error.code is ErrorCode.NOT_COORDINATOR and "host" in error.metadata and hint != asked and not self._hinted:
            self._address, self._hinted = hint, True
        else:
            self._address, self._hinted = None, False
            self._cluster.refresh()

    async def _find(self, left_s: float) -> str:
        """Ask broker after broker; raises COORDINATOR_NOT_AVAILABLE when none knows, and what forbids the group."""
        refusal: TidemarkError | None = None
        addresses = self._cluster.addresses()
        if self._misled_by.issuperset(addresses):
            self._misled_by.clear()
        for address in sorted(addresses, key=lambda one: one in self._misled_by):
            call = group_stub(self._cluster, address).FindCoordinator(
                pb.FindCoordinatorRequest(group_ids=[self._group]), timeout=max(0.05, min(left_s, _FIND_TIMEOUT_S))
            )
            try:
                found = (await _answer(call, address)).coordinators[0]
            except TidemarkError as error:
                refusal = error
                continue
            if not found.HasField("error"):
                self._address, self._named_by, self._hinted = f"{found.host}:{found.port}", address, False
                return self._address
            refusal = errors.from_proto(found.error)
            if not refusal.retriable:
                raise refusal
        raise refusal or TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker is known")


def group_stub(cluster: Cluster, address: str) -> Any:
    """The group service of the broker at an address."""
    return cast("Any", GroupServiceStub(cluster.channel(address)))


async def _answer(call: Any, address: str) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as failure:
        raise errors.from_rpc_error(failure, address=address) from None
