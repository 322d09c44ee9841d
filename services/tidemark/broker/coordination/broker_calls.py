# SPDX-License-Identifier: Apache-2.0
"""One call of brokers to one another; channels are opened at the first call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import grpc

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError
from tidemark.rpc.channel import AddressChannels
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.receiver import receiver_headers

Request = TypeVar("Request")
Response = TypeVar("Response")


class BrokerCalls(Generic[Request, Response]):
    """Makes the call to any broker, this one among them, with one channel for each address.

    Args:
        broker_id: id of this broker.
        own: the call to this broker.
        method: the call over a channel, such as `lambda channel: BrokerServiceStub(channel).ListOffsets`.
        deadline_s: time limit of a call to another broker.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        own: Callable[[Request], Awaitable[Response]],
        method: Callable[[grpc.aio.Channel], Any],
        deadline_s: float,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._own = own
        self._method = method
        self._deadline_s = deadline_s
        self._channels = AddressChannels()
        self._noted: Mapping[BrokerId, BrokerRegistration] | None = None

    async def call(self, broker_id: BrokerId, request: Request) -> Response:
        """Return the answer of a broker; another broker, or one of another cluster, refuses the call.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE if the broker is not registered; the errors of the call.
        """
        if broker_id == self._broker_id:
            return await self._own(request)
        view = self._metadata.view
        broker = view.brokers.get(broker_id)
        if broker is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered now; retry")
        if view.brokers is not self._noted:
            self._noted = view.brokers
            self._channels.note(view.cluster_id, view.brokers.values())
        method, headers = self._method(self._channels.get(broker.address)), receiver_headers(view.cluster_id, broker_id)
        try:
            answer: Response = await method(request, timeout=self._deadline_s, metadata=headers)
        except grpc.RpcError as error:
            raise from_rpc_error(error, address=broker.address) from error
        return answer

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()
