# SPDX-License-Identifier: Apache-2.0
"""The connection of an admin client to the admin service, with a timeout for each call and each streamed response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

import grpc

from tidemark.client.argument_types import seconds
from tidemark.client.metadata.bootstrap import Bootstrap, parse_bootstrap
from tidemark.client.metadata.closed_calls import is_cancelled, unary_calls
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.tls import Credentials, client_identity
from tidemark.client.settings import checked_client_id
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.channel import close_channels, open_channel
from tidemark.rpc.quotas.client_id import headers_with
from tidemark.rpc.quotas.told import refused_wait_s
from tidemark.rpc.receiver import receiver_headers
from tidemark.rpc.security.paths import TlsFiles
from tidemark.runtime.clock import timeout
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub

if TYPE_CHECKING:
    from tidemark.v1.admin_service_pb2_grpc import AdminServiceAsyncStub

TIMEOUT_S: Final = 30.0

Request = TypeVar("Request")
Response = TypeVar("Response")


class AdminConnection:
    """One channel to the admin service; gRPC errors become TidemarkError.

    Args:
        bootstrap: addresses of any brokers, which know the admin service, or of the admin service itself; None:
            TIDEMARK_BOOTSTRAP.
        address: host:port of the admin service; None: `open` finds it with `bootstrap`.
        timeout_s: timeout of each unary call, and of the wait for each streamed response.
        tls: the TLS files, and a token if any; None: files and token of the environment, or plain text.
        client_id: the name that the client states; "": no name.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        address: str | None,
        timeout_s: float,
        tls: Credentials | TlsFiles | None = None,
        client_id: str = "",
    ) -> None:
        self._headers = headers_with(checked_client_id(client_id))
        self.identity = client_identity(tls)
        self.timeout_s = seconds("timeout_s", timeout_s)
        self._address = None if address is None else parse_bootstrap(address, name="admin")[0]
        self._cluster = None if address is not None else Cluster(bootstrap, timeout_s=self.timeout_s, tls=tls)
        self._channel: grpc.aio.Channel | None = None

    async def open(self) -> None:
        """Find the admin service and open the channel.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE: no broker answers, or the brokers have no address of an admin service.
        """
        if self._channel is not None:
            return
        if self._address is None:
            self._address = await self._find()
        self._channel = open_channel(self._address, self.identity)

    async def _find(self) -> str:
        cluster = self._cluster
        assert cluster is not None, "without an address there are brokers to ask"
        try:
            await cluster.start()
            address = cluster.view.admin_address
            self._headers += receiver_headers(cluster.view.cluster_id)
        except TidemarkError:
            if not cluster.other_services:
                raise
            address = min(
                cluster.other_services
            )  # the first call shows whether the address is that of the admin service
        finally:
            await cluster.close()
        if not address:
            raise TidemarkError(
                ErrorCode.BROKER_NOT_AVAILABLE, "the brokers know no admin service: name it (admin='host:port')"
            )
        return address

    async def close(self) -> None:
        """Close the channel; repeated calls have no effect."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await close_channels([channel])

    async def call(
        self,
        method: Callable[[AdminServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
    ) -> Response:
        """Make a unary call; raises TidemarkError. A call beyond a quota is repeated after its wait (rule Q3)."""
        until_s = time.monotonic() + self.timeout_s
        while True:
            rpc = method(self._stub())
            try:
                return await rpc(request, timeout=self.timeout_s, wait_for_ready=False, metadata=self._headers)
            except grpc.RpcError as failure:
                error = self._error_of(failure)
            wait_s = refused_wait_s(error.metadata.get("throttle_time_ms", ""))
            if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED or time.monotonic() + wait_s > until_s:
                raise error
            await asyncio.sleep(wait_s)

    async def stream(
        self,
        method: Callable[[AdminServiceAsyncStub], grpc.aio.UnaryStreamMultiCallable[Request, Response]],
        request: Request,
        *,
        interval_ms: int = 0,
    ) -> AsyncGenerator[Response, None]:
        """Make a call with a streamed response; raises TidemarkError. Closing the generator cancels the call.

        Args:
            method: method of the stub.
            request: the one request.
            interval_ms: pause of the service between two responses, added to the timeout of each.
        """
        silence_s = self.timeout_s + interval_ms / 1000
        rpc = method(self._stub())
        call = rpc(request, wait_for_ready=False, metadata=self._headers)
        try:
            while True:
                async with timeout(silence_s):
                    response = await call.read()
                if response is grpc.aio.EOF:
                    return
                yield cast(Response, response)
        except TimeoutError:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT, f"admin service {self._address}: silent for {silence_s:g} s"
            ) from None
        except grpc.RpcError as error:
            raise self._error_of(error) from None
        except asyncio.CancelledError:
            if self._channel is None and not is_cancelled():
                raise _closed() from None
            raise
        finally:
            call.cancel()

    def _stub(self) -> AdminServiceAsyncStub:
        if self._channel is None:
            raise _closed()
        return cast("AdminServiceAsyncStub", AdminServiceStub(unary_calls(self._channel)))

    def _error_of(self, error: grpc.RpcError) -> TidemarkError:
        if self._channel is None:
            return _closed()
        return errors.from_rpc_error(error, address=f"admin service {self._address}")


def _closed() -> TidemarkError:
    return TidemarkError(ErrorCode.CLIENT_CLOSED, "the admin client is not started, or closed")
