# SPDX-License-Identifier: Apache-2.0
"""Consecutive fetches on one stream, which costs less than a call for each (rule K1)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from tidemark.broker.clients.fetch import FETCH_QUOTAS, FetchService
from tidemark.errors import TidemarkError
from tidemark.rpc.codecs.fetch import Results
from tidemark.rpc.errors import abort_with
from tidemark.rpc.quotas.enforcement import NO_QUOTAS, CallerQuotas
from tidemark.rpc.security.access import Access


class FetchStreams:
    """Serves the fetch streams of clients to this broker, until `stop`."""

    def __init__(self, fetch: FetchService) -> None:
        self._fetch = fetch
        self._idle: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End every stream once its requests are answered."""
        self._stopped = True
        for task in self._idle:
            task.cancel()

    async def serve(self, context: Any, access: Access | None = None, quotas: CallerQuotas = NO_QUOTAS) -> None:
        """Serve one client's stream until its end; `access`: the client's rights, None: all."""
        answered = False
        while not self._stopped:
            request = await self._next(context, quotas if answered else NO_QUOTAS)
            if request is grpc.aio.EOF:
                return
            # No variable holds the answer: its batches would stay until the next answer.
            await context.write(await self._answer(request, context, access, quotas))
            del request
            answered = True

    async def _answer(self, request: Any, context: Any, access: Access | None, quotas: CallerQuotas) -> Results:
        try:
            return await self._fetch.fetch_next(request, access, quotas)
        except TidemarkError as error:
            await abort_with(context, error)

    async def _next(self, context: Any, quotas: CallerQuotas) -> Any:
        """The next request. After an answer with a wait, the stream is not read until the wait is over (rule Q2)."""
        task = asyncio.current_task()
        assert task is not None, "a call is served by a task"
        self._idle.add(task)
        try:
            await quotas.hold(*FETCH_QUOTAS)
            return await context.read()
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            return grpc.aio.EOF
        finally:
            self._idle.discard(task)
