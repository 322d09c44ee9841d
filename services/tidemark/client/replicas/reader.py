# SPDX-License-Identifier: Apache-2.0
"""Reads of single replicas from the brokers that hold them (`ReadReplica`); blocking, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import grpc

from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.replicas.comparison import Piece, pieces_of
from tidemark.core.cluster_view import ClusterView
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.v1 import replica_reads_pb2
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

READ_BYTES: Final = 4 << 20
_CALL_S: Final = 10.0
_PATIENCE_S: Final = 5.0
"""Time to retry while a broker opens the replica, or has no metadata yet."""
_TOPIC_PATIENCE_S: Final = 0.5
"""Time to ask other brokers for a topic that some do not know."""


class BrokerAddress(NamedTuple):
    """host:port of a broker, and the metadata of calls that only this broker accepts."""

    address: str
    headers: Headers


class Stretch(NamedTuple):
    """Batches of a replica, and the offsets of the replica.

    Attributes:
        log_start_offset: first offset of the replica, inclusive.
        log_end_offset: end of the replica, exclusive.
        high_watermark: high watermark that the replica knows, exclusive.
        clean_offset: the log below this offset has been compacted.
        leader_epoch: leader epoch that the replica knows.
        leader: whether the replica is the leader.
        pieces: the batches.
        repaired_offsets: offsets at which the broker repaired damaged batches for this read.
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    clean_offset: int
    leader_epoch: int
    leader: bool
    pieces: tuple[Piece, ...] = ()
    repaired_offsets: tuple[int, ...] = ()


class ReplicaReader:
    """A blocking client of all brokers; thread-safe. A context manager.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        repair: have brokers fetch damaged batches from other replicas before they answer (rule T6).
    """

    def __init__(self, bootstrap: Bootstrap | None, *, repair: bool = False) -> None:
        self._repair = repair
        self._cluster = BlockingCluster(bootstrap, deadline_s=_PATIENCE_S, connect_timeout_s=_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def view(self, topics: Sequence[str] = ()) -> ClusterView:
        """Return the cluster with these topics (empty: all); raises BROKER_NOT_AVAILABLE, UNKNOWN_TOPIC."""

        def ask() -> ClusterView:
            self._cluster.refresh(topics or None)
            for topic in topics:
                self._cluster.whole(topic)
            return self._cluster.view

        return self._cluster.retrying(ask, patience_s=_TOPIC_PATIENCE_S)

    def read(
        self,
        broker: BrokerAddress,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        *,
        start: int = 0,
        end: int = 0,
        envelopes_only: bool = True,
        max_bytes: int = READ_BYTES,
    ) -> Stretch:
        """Read [start, end) of the replica of a broker; the first batch may begin below `start`.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE, REQUEST_TIMED_OUT, NOT_A_REPLICA, UNKNOWN_TOPIC_ID, REPLICA_OFFLINE,
                OFFSET_NOT_AVAILABLE; CORRUPT_BATCH or STORAGE_ERROR if its disk has no valid batch.
        """
        request = replica_reads_pb2.ReadReplicaRequest(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=identity.topic_id,
            incarnation=identity.incarnation,
            start_offset=start,
            end_offset=end,
            max_bytes=max_bytes,
            envelopes_only=envelopes_only,
            repair=self._repair,
        )
        until_s = time.monotonic() + _PATIENCE_S
        backoff = Backoff()
        while True:
            try:
                answer = self._read(broker, request)
            except TidemarkError as error:
                if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE or time.monotonic() >= until_s:
                    raise
                time.sleep(backoff.next_s())
                continue
            return Stretch(
                answer.log_start_offset,
                answer.log_end_offset,
                answer.high_watermark,
                answer.clean_offset,
                answer.leader_epoch,
                answer.leader,
                tuple(pieces_of(answer.batches, envelopes_only=envelopes_only)),
                tuple(answer.repaired_offsets),
            )

    def _read(self, broker: BrokerAddress, request: replica_reads_pb2.ReadReplicaRequest) -> Any:
        try:
            with self._cluster.channel(broker.address) as channel:
                return BrokerServiceStub(channel).ReadReplica(request, timeout=_CALL_S, metadata=broker.headers)
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address=broker.address) from None


def addresses(view: ClusterView) -> Mapping[int, BrokerAddress]:
    """Return the address of each live broker."""
    return {
        broker_id: BrokerAddress(broker.address, receiver_headers(view.cluster_id, broker_id))
        for broker_id, broker in view.brokers.items()
    }
