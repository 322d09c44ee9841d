# SPDX-License-Identifier: Apache-2.0
"""DeleteRecords, sent to the leader of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import grpc

from tidemark.client.aio.admin.results import DeletedRecords
from tidemark.client.metadata.cluster import Leader
from tidemark.model import BrokerId, Offset, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.channel import close_channels, open_channel
from tidemark.v1 import delete_records_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

if TYPE_CHECKING:
    from tidemark.rpc.security.files import TlsIdentity
    from tidemark.v1.broker_service_pb2_grpc import BrokerServiceAsyncStub


async def delete_records_at(
    leader: Leader,
    named: Leader,
    partition: TopicPartition,
    before_offset: int,
    timeout_s: float,
    identity: TlsIdentity | None,
) -> DeletedRecords:
    """Ask a leader to delete the records below an offset; raises TidemarkError.

    Args:
        leader: receives the request.
        named: has the topic id and incarnation that the leader must have.
        partition: the partition.
        before_offset: the first offset to keep; -1: the high watermark.
        timeout_s: timeout of the call; the leader waits for its followers for half of it.
        identity: the TLS files of the client.
    """
    request = pb.DeleteRecordsRequest(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=named.topic_id,
        incarnation=named.incarnation,
        current_leader_epoch=-1,
        before_offset=before_offset,
        timeout_ms=int(timeout_s * 500),
    )
    channel = open_channel(leader.address, identity)
    try:
        stub = cast("BrokerServiceAsyncStub", BrokerServiceStub(channel))
        response = await stub.DeleteRecords(request, timeout=timeout_s, wait_for_ready=False)
    except grpc.aio.AioRpcError as error:
        raise errors.from_rpc_error(error, address=leader.address) from None
    finally:
        await close_channels([channel])
    return DeletedRecords(
        Offset(response.low_watermark),
        Offset(response.log_start_offset),
        tuple(BrokerId(broker) for broker in response.behind),
    )
