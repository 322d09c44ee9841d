# SPDX-License-Identifier: Apache-2.0
"""Metrics of each call of the admin service, and the audit log line of each change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.model import TidemarkError
from tidemark.rpc.security.access import audit_facts
from tidemark.rpc.security.audit import AUDIT
from tidemark.runtime.metrics import METRICS

_REQUESTS = METRICS.counter("admin_requests", "Calls by method and result: OK or an error code", ("method", "code"))
_SECONDS = METRICS.histogram("admin_request_seconds", "Duration of a call", ("method",))

_INTERNAL: Final = "INTERNAL"


@asynccontextmanager
async def observed(
    method: str, context: ServicerContext[Any, Any], change: dict[str, object] | None = None
) -> AsyncIterator[None]:
    """Count and time a call; write one audit log line for a change, with its outcome.

    Args:
        method: name of the RPC.
        context: of the call; names the caller.
        change: fields of the audit log line, which the caller may add to during the call; None: the call changes
            nothing.
    """
    started_s = time.monotonic()
    caller = None if change is None else audit_facts(context)
    outcome = _INTERNAL
    try:
        yield
        outcome = "OK"
    except TidemarkError as error:
        outcome = str(error.code)
        raise
    except (asyncio.CancelledError, GeneratorExit):  # GeneratorExit: the caller cancelled a stream
        outcome = "CANCELLED"
        raise
    finally:
        _REQUESTS.labels(method, outcome).inc()
        _SECONDS.labels(method).observe(time.monotonic() - started_s)
        if change is not None and caller is not None:
            AUDIT.info("%s", method, extra={**caller, "outcome": outcome, **change})
