# SPDX-License-Identifier: Apache-2.0
"""What every call of the admin service goes through: a bound on its time, metrics, and the audit line of a change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.model import TidemarkError
from tidemark.runtime.metrics import METRICS

_audit = logging.getLogger("tidemark.audit")

_REQUESTS = METRICS.counter("admin_requests", "Calls by method and result: OK or an error code", ("method", "code"))
_SECONDS = METRICS.histogram("admin_request_seconds", "Duration of a call", ("method",))

_MARGIN_S: Final = 0.25
"""Our answer that says what is missing must arrive before the caller's deadline does."""

_OUR_OWN_TROUBLE: Final = "INTERNAL"


class AuditedCalls:
    """Base of the groups of RPCs of the admin service: `AdminServicer` inherits from each of them.

    A group names the attributes it works with; `AdminServicer.__init__` sets them.

    Args:
        request_timeout_ms: admin.request.timeout.ms; the caller's deadline counts where it is shorter.
    """

    def __init__(self, *, request_timeout_ms: int) -> None:
        self._request_timeout_s = request_timeout_ms / 1000

    def _timeout_s(self, context: ServicerContext[Any, Any]) -> float:
        """What is left for the work of a call, in seconds: less than the caller waits."""
        remaining_s = context.time_remaining()
        if remaining_s is None:
            return self._request_timeout_s
        return min(self._request_timeout_s, max(remaining_s - _MARGIN_S, remaining_s / 2))


@asynccontextmanager
async def observed(
    method: str, context: ServicerContext[Any, Any], change: dict[str, object] | None = None
) -> AsyncIterator[None]:
    """Counts the call and its time; a change gets one line in the audit log, whatever became of it.

    Args:
        method: the RPC's name.
        context: the call's; names the peer.
        change: what is changed, by name; the caller may add to it while it works. None: nothing is.
    """
    started_s = time.monotonic()
    # Asked now: when a stream's caller has left, gRPC has freed the call, and asking ends the process.
    peer = context.peer()
    outcome = _OUR_OWN_TROUBLE
    try:
        yield
        outcome = "OK"
    except TidemarkError as error:
        outcome = str(error.code)
        raise
    except (asyncio.CancelledError, GeneratorExit):  # the latter: of a stream that its caller has left
        outcome = "CANCELLED"
        raise
    finally:
        _REQUESTS.labels(method, outcome).inc()
        _SECONDS.labels(method).observe(time.monotonic() - started_s)
        if change is not None:
            _audit.info("%s", method, extra={"peer": peer, "outcome": outcome, **change})
