# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""BrokerService: translates the requests of clients, and calls the parts that serve them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.broker.clients.describe_log_dirs import LogDirs
from tidemark.broker.clients.fetch import HOLD_S, FetchService
from tidemark.broker.clients.fetch_streams import FetchStreams
from tidemark.broker.clients.produce import ProduceService
from tidemark.broker.clients.producer_ids import ProducerIds
from tidemark.broker.clients.read_replica import ReplicaReads
from tidemark.broker.clients.topic_schemas import SchemaReads
from tidemark.broker.clients.visibility import visible_to
from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.metrics.streams import OpenStreams
from tidemark.broker.node.dynamic_config import DynamicConfig
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.security.listeners import ListenerViews
from tidemark.errors import TidemarkError
from tidemark.rpc.codecs.alter_log_dirs import alterations_from_proto, results_to_proto
from tidemark.rpc.codecs.audit import audit_to_proto, filter_from_proto
from tidemark.rpc.codecs.config import entry_to_proto
from tidemark.rpc.codecs.fetch import Results
from tidemark.rpc.codecs.metadata import ViewWriter
from tidemark.rpc.errors import abort_with
from tidemark.rpc.log_dirs import contents_to_proto, wanted_from_proto
from tidemark.rpc.quotas.enforcement import NO_QUOTAS, CallerQuotas, ClientQuotas
from tidemark.rpc.request_limits import check_named
from tidemark.rpc.security.access import Access, Accesses, audited
from tidemark.rpc.security.audit_ring import RING
from tidemark.rpc.security.callers import caller_of, listener_of_call
from tidemark.v1 import (
    admin_configs_pb2,
    alter_log_dirs_pb2,
    audit_pb2,
    delete_records_pb2,
    replica_reads_pb2,
    topic_schemas_pb2,
)
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer


class BrokerService(BrokerServiceServicer):
    """The RPCs of clients; the server's interceptor maps the errors of unary calls.

    Args:
        quotas: the quotas of callers.
        accesses: the rights of callers; None: authorization is off.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        produce: ProduceService,
        fetch: FetchService,
        fetch_streams: FetchStreams,
        producer_ids: ProducerIds,
        log_dirs: LogDirs,
        configs: DynamicConfig,
        delete_records: DeleteRecords,
        dir_moves: DirMoves,
        replica_reads: ReplicaReads,
        schemas: SchemaReads,
        streams: OpenStreams,
        views: ListenerViews,
        quotas: ClientQuotas,
        accesses: Accesses | None = None,
    ) -> None:
        self._accesses = accesses
        self._quotas = quotas
        self._metadata = metadata
        self._views = views
        self._writer = ViewWriter()
        self._produce = produce
        self._fetch = fetch
        self._fetch_streams = fetch_streams
        self._producer_ids = producer_ids
        self._log_dirs = log_dirs
        self._configs = configs
        self._delete_records = delete_records
        self._dir_moves = dir_moves
        self._replica_reads = replica_reads
        self._schemas = schemas
        self._streams = streams

    async def GetMetadata(self, request: pb.GetMetadataRequest, context: Any) -> pb.GetMetadataResponse:
        """This broker's copy of the cluster metadata, of the topics that the caller may see."""
        check_named(request.topics, "topics")
        access = self._access_of(context)
        if request.all_topics:
            view = self._metadata.describe((), all_topics=True)
        else:
            view = await self._metadata.describe_in_slices(request.topics)
        if access is not None:
            view = await visible_to(access, view, named=not request.all_topics)
        return await self._writer.answer(pb.GetMetadataResponse, self._views.of(view, listener_of_call()))

    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: Any
    ) -> AsyncIterator[pb.WatchMetadataResponse]:
        """The current metadata, then each change."""
        check_named(request.topics, "topics")
        access, listener = self._access_of(context), listener_of_call()
        with self._streams.open("metadata", context):
            async for view in self._metadata.watch(request.topics):
                if access is not None:
                    named = bool(request.topics) and view.complete
                    view = await visible_to(access, view, named=named)
                yield await self._writer.answer(pb.WatchMetadataResponse, self._views.of(view, listener))
                del view  # it may be large, and the next may come late

    async def Produce(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Serve a stream of produce requests, within the caller's rights and quotas."""
        with self._streams.open("produce", context):
            await self._produce.serve(context, self._access_of(context), await self._quotas_of(context))

    async def Fetch(  # type: ignore[override]  # written by fetch_codec
        self, request: pb.FetchRequest, context: Any
    ) -> Results:
        """Committed batches."""
        return await self._fetch.fetch_once(request, self._access_of(context), self._quotas.of(context))

    async def FetchStream(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Answer the fetch requests of a stream, until the client or the service ends the stream."""
        with self._streams.open("fetch", context):
            await self._fetch_streams.serve(context, self._access_of(context), await self._quotas_of(context))

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        """Offsets by position or timestamp."""
        # Brokers make this call, too. On a plain-text port brokers look like clients, so no call is counted there.
        quotas = NO_QUOTAS if caller_of(context) is None else self._quotas.of(context)
        async with quotas.timed(HOLD_S):
            return await self._fetch.list_offsets(request)

    async def OffsetsForLeaderEpoch(
        self, request: pb.OffsetsForLeaderEpochRequest, context: Any
    ) -> pb.OffsetsForLeaderEpochResponse:
        """Return the end offset of a leader epoch for each partition."""
        async with self._quotas.of(context).timed(HOLD_S):
            return await self._fetch.epoch_ends(request)

    async def InitProducerId(self, request: pb.InitProducerIdRequest, context: Any) -> pb.InitProducerIdResponse:
        """Return a new producer id with producer epoch 0."""
        return pb.InitProducerIdResponse(producer_id=await self._producer_ids.next(), producer_epoch=0)

    async def DescribeLogDirs(
        self, request: pb.DescribeLogDirsRequest, context: Any
    ) -> AsyncIterator[pb.DescribeLogDirsResponse]:
        """The replicas in the log directories."""
        contents = await self._log_dirs.describe(wanted_from_proto(request))
        for response in await asyncio.to_thread(lambda: tuple(contents_to_proto(contents))):
            yield response

    async def AlterReplicaLogDirs(
        self, request: alter_log_dirs_pb2.AlterReplicaLogDirsRequest, context: Any
    ) -> alter_log_dirs_pb2.AlterReplicaLogDirsResponse:
        """Move replicas to other log directories."""
        facts = {"replicas_count": len(request.replicas), "throttle_bytes_per_s": request.throttle_bytes_per_s}
        with nullcontext() if request.validate_only else audited("AlterReplicaLogDirs", context, facts):
            return results_to_proto(await self._dir_moves.alter(alterations_from_proto(request)))

    async def DeleteRecords(
        self, request: delete_records_pb2.DeleteRecordsRequest, context: Any
    ) -> delete_records_pb2.DeleteRecordsResponse:
        """Delete records at the front of a partition."""
        facts = {"topic": request.topic, "partition": request.partition, "before_offset": request.before_offset}
        with audited("DeleteRecords", context, facts):
            return await self._delete_records.delete(request)

    async def ReadReplica(
        self, request: replica_reads_pb2.ReadReplicaRequest, context: Any
    ) -> replica_reads_pb2.ReadReplicaResponse:
        """The contents of this broker's own replica."""
        return await self._replica_reads.read(request)

    async def GetTopicSchemas(
        self, request: topic_schemas_pb2.GetTopicSchemasRequest, context: Any
    ) -> topic_schemas_pb2.GetTopicSchemasResponse:
        """Versions of a topic's schema."""
        check_named(request.versions, "versions")
        async with self._quotas.of(context).timed(HOLD_S):
            return await self._schemas.get(request)

    async def DescribeBrokerConfigs(
        self, request: admin_configs_pb2.DescribeBrokerConfigsRequest, context: Any
    ) -> admin_configs_pb2.DescribeBrokerConfigsResponse:
        """The settings in effect on this broker."""
        entries = [entry_to_proto(entry) for entry in self._configs.entries()]
        return admin_configs_pb2.DescribeBrokerConfigsResponse(entries=entries)

    async def ListBrokerAuditLines(
        self, request: audit_pb2.ListBrokerAuditLinesRequest, context: Any
    ) -> audit_pb2.ListBrokerAuditLinesResponse:
        """Lines of the audit log that this broker has in memory."""
        wanted = filter_from_proto(request.filter)
        found = RING.audit("", wanted, authorization_enabled=self._accesses is not None)
        return audit_pb2.ListBrokerAuditLinesResponse(audit=audit_to_proto(found))

    def _access_of(self, context: Any) -> Access | None:
        return None if self._accesses is None else self._accesses.of(context)

    async def _quotas_of(self, context: Any) -> CallerQuotas:
        """The quotas of a stream's caller; an invalid client id ends the stream."""
        try:
            return self._quotas.of(context)
        except TidemarkError as error:
            await abort_with(context, error)
