# SPDX-License-Identifier: Apache-2.0
"""Metrics of each call of the admin service, the audit log line of each change, and the lines of all services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.core.security.audit_lines import CANCELLED, DENIED, FAILED, OK, AuditFilter, ServiceAudit
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, invalid_request
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.audit import audit_from_proto, filter_to_proto
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.rpc.security.access import audited, outcome_to
from tidemark.rpc.security.audit_ring import RING, AuditRing
from tidemark.runtime.metrics import METRICS
from tidemark.v1.audit_pb2 import ListBrokerAuditLinesRequest
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.zookeeper.store import MetadataStore

_REQUESTS = METRICS.counter("admin_requests", "Calls by method and result: OK or an error code", ("method", "code"))
_SECONDS = METRICS.histogram("admin_request_seconds", "Duration of a call", ("method",))

_DEADLINE_S: Final = 3.0
"""Deadline of a call to one broker, in seconds. A broker that misses the deadline is listed with its error."""
_OUTCOMES: Final = frozenset({"", OK, DENIED, FAILED, CANCELLED, *map(str, ErrorCode)})

AskBroker = Callable[[BrokerRegistration, AuditFilter, Headers], Awaitable[ServiceAudit]]


@asynccontextmanager
async def observed(
    method: str, context: ServicerContext[Any, Any], change: dict[str, object] | None = None
) -> AsyncIterator[None]:
    """Count and time a call; write one audit log line for a change, with its outcome.

    Args:
        method: name of the RPC.
        context: context of the call; names the caller.
        change: fields of the audit log line, which the caller may add to during the call; None: the call changes
            nothing.
    """
    started_s = time.monotonic()

    def count(outcome: str) -> None:
        _REQUESTS.labels(method, outcome).inc()
        _SECONDS.labels(method).observe(time.monotonic() - started_s)

    with outcome_to(count), nullcontext() if change is None else audited(method, context, change):
        yield


@asynccontextmanager
async def changing(
    method: str, context: ServicerContext[Any, Any], request: Any, *named: str, **more: object
) -> AsyncIterator[dict[str, object]]:
    """Like `observed`, for a call that makes a change, unless its request has `validate_only`.

    Yields the fields of the audit log line, which the caller may add to: the `named` fields of the request, then
    `more`, then the request id.
    """
    facts: dict[str, object] = {name: _plain(getattr(request, name)) for name in named}
    facts |= more
    if "request_id" in request.DESCRIPTOR.fields_by_name:
        facts["request_id"] = request.request_id
    async with observed(method, context, None if request.validate_only else facts):
        yield facts


def _plain(field: Any) -> object:
    """The value of a field of a message, without the classes of protobuf."""
    if isinstance(field, Mapping):
        return dict(field)
    return list(field) if isinstance(field, Sequence) and not isinstance(field, str) else field


class AuditLines:
    """Gathers the lines that this service and the live brokers have in memory.

    Args:
        store: started.
        authorization_enabled: `authorization.enabled` of this service.
        ring: the lines of this service.
        ask: gets the lines of one broker; raises TidemarkError.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        authorization_enabled: bool,
        ring: AuditRing = RING,
        ask: AskBroker | None = None,
    ) -> None:
        self._store = store
        self._authorization_enabled = authorization_enabled
        self._ring = ring
        self._ask = ask or lines_of_broker

    async def gather(self, wanted: AuditFilter) -> list[ServiceAudit]:
        """The lines of each service; a broker that does not answer has its error.

        Raises:
            TidemarkError: INVALID_REQUEST for an unknown outcome or a negative limit, COORDINATION_UNAVAILABLE.
        """
        if wanted.outcome not in _OUTCOMES:
            raise invalid_request(f"outcome is {wanted.outcome[:40]!r}: expected OK, DENIED, FAILED or an error code")
        if wanted.limit < 0:
            raise invalid_request(f"limit is {wanted.limit}: expected 0 or more")
        own = self._ring.audit("admin", wanted, authorization_enabled=self._authorization_enabled)
        live = await self._store.live_brokers()
        return [own, *await asyncio.gather(*(self._of(live[broker], wanted) for broker in sorted(live)))]

    async def _of(self, broker: BrokerRegistration, wanted: AuditFilter) -> ServiceAudit:
        try:
            return await self._ask(broker, wanted, receiver_headers(await self._store.cluster_id(), broker.broker_id))
        except TidemarkError as error:
            return ServiceAudit(_name(broker.broker_id), error=error)


async def lines_of_broker(broker: BrokerRegistration, wanted: AuditFilter, headers: Headers) -> ServiceAudit:
    """The lines of one broker, which `headers` name; raises TidemarkError."""
    request = ListBrokerAuditLinesRequest(filter=filter_to_proto(wanted))
    async with channel_for_call(broker.address, _name(broker.broker_id)) as channel:
        stub: Any = BrokerServiceStub(channel)
        response = await stub.ListBrokerAuditLines(request, timeout=_DEADLINE_S, metadata=headers)
    return audit_from_proto(_name(broker.broker_id), response.audit)


def _name(broker: BrokerId) -> str:
    return f"broker {broker}"
