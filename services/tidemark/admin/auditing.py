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

_OUR_OWN_TROUBLE: Final = "INTERNAL"


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
