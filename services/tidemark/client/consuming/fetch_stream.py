# SPDX-License-Identifier: Apache-2.0
"""Fetches from one broker, one at a time, on a stream that is kept for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.fetch_codec import Fetched
from tidemark.rpc.raw_methods import open_fetches
from tidemark.v1 import broker_service_pb2 as pb


class FetchStream:
    """Opened when it is first needed, and again after it was broken off or broke."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster = cluster
        self._address = address
        self._call: Any = None
        self._asking = False

    async def ask(self, request: pb.FetchRequest, *, timeout_s: float) -> list[Fetched] | None:
        """The answer, in the order of the request; None when it was broken off.

        Raises:
            TidemarkError: why there is no answer; REQUEST_TIMED_OUT after `timeout_s`.
        """
        if self._call is None or self._call.done():
            self._call = open_fetches(self._cluster.channel(self._address))
        call, self._asking, answered = self._call, True, False
        try:
            async with asyncio.timeout(timeout_s):
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
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{self._address} did not answer a fetch") from None
        except asyncio.InvalidStateError:  # it ended as it was written to
            answered = False
        finally:
            self._asking = False
            if not answered:  # what is still to come on it is no answer to the next question
                self.close()
        if not answered:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self._address} ended the stream of fetches")
        answer: list[Fetched] = response
        return answer

    def break_off(self) -> None:
        """The answer under way is not wanted any more."""
        if self._asking:
            self.close()

    def close(self) -> None:
        """Let the stream go."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
