# SPDX-License-Identifier: Apache-2.0
"""A stream of fetches to one broker, with at most one fetch in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.fetch import Results
from tidemark.rpc.raw_methods import open_fetches
from tidemark.runtime.clock import timeout
from tidemark.v1 import broker_service_pb2 as pb


class FetchStream:
    """Opens the stream with the first fetch, and again after it was cancelled or broke."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster = cluster
        self._address = address
        self._call: Any = None
        self._asking = False
        self._deadline: asyncio.Timeout | None = None
        self._broken_off = False

    async def ask(self, request: pb.FetchRequest, *, timeout_s: float) -> Results | None:
        """Send a fetch and return its results in the order of the request; None if `break_off` cancelled it.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE; REQUEST_TIMED_OUT after `timeout_s`.
        """
        if self._call is None or self._call.done():
            self._call = open_fetches(self._cluster.channel(self._address), self._cluster.headers)
        call, self._asking, answered = self._call, True, False
        self._broken_off = False
        try:
            async with timeout(timeout_s) as self._deadline:
                await call.write(request)
                response = await call.read()
            answered = response is not grpc.aio.EOF
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None
        except grpc.aio.AioRpcError as failure:
            raise errors.from_rpc_error(failure, address=self._address) from None
        except TimeoutError:
            if self._broken_off:
                return None
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{self._address} did not answer a fetch") from None
        except asyncio.InvalidStateError:  # the stream ended during the write
            answered = False
        finally:
            self._asking = False
            if not answered:  # a late response must not count as the response of the next fetch
                self.close()
        if not answered:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self._address} ended the stream of fetches")
        answer: Results = response
        return answer

    def break_off(self) -> None:
        """Cancel the fetch in flight, if any."""
        if self._asking and not self._broken_off:
            self._broken_off = True
            self.close()
            if self._deadline is not None and not self._deadline.expired():
                # A write to a stream that is not open yet would not end by the cancellation.
                self._deadline.reschedule(0)

    def close(self) -> None:
        """Cancel the stream and its fetch in flight."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
