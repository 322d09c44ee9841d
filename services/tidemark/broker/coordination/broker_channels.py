# SPDX-License-Identifier: Apache-2.0
"""Channels to other brokers, opened at the first call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.model import BrokerId, ErrorCode, TidemarkError
from tidemark.rpc.channel import AddressChannels
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.receiver import Headers, receiver_headers


class BrokerChannels:
    """Channels to brokers, one for each address, opened at the first call."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._channels = AddressChannels()

    @contextlib.contextmanager
    def to(self, broker_id: BrokerId) -> Iterator[grpc.aio.Channel]:
        """The channel of a broker, for one call; an RpcError becomes a TidemarkError with the broker's address.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE if the broker is not registered; the errors of the call.
        """
        broker = self._metadata.view.brokers.get(broker_id)
        if broker is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered now; retry")
        address = broker.address
        self._channels.note(address, broker.broker_epoch)
        try:
            yield self._channels.get(address)
        except grpc.RpcError as error:
            raise from_rpc_error(error, address=address) from error

    def headers(self, broker_id: BrokerId) -> Headers:
        """The metadata of a call to a broker: another broker, or one of another cluster, refuses the call."""
        return receiver_headers(self._metadata.view.cluster_id, broker_id)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()
