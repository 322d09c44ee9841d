# SPDX-License-Identifier: Apache-2.0
"""Bounded, stateless reads for batch engines: blocking, each with a deadline (rules K1, K3).

Nothing is kept between calls, so a task that is retried elsewhere reads the same rows; and nothing here needs an
event loop, so it works in a worker process that an engine has forked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeVar

import grpc
import pyarrow as pa

from tidemark.client.consuming.preferred_replica import NearestReplicas
from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import (
    ON_ITS_WAY,
    TOPIC_PATIENCE_S,
    Leader,
    none_answers,
    parse_bootstrap,
    unknown_partition,
)
from tidemark.core.cluster_view import ClusterView, TopicView, apply
from tidemark.model import NO_EPOCH, NO_LEADER, ErrorCode, TidemarkError, TopicPartition, unknown_topic
from tidemark.record.envelope import split_batches
from tidemark.record.payload import with_offsets
from tidemark.rpc import errors
from tidemark.rpc.channel import CHANNEL_OPTIONS
from tidemark.rpc.fetch_codec import Fetched
from tidemark.rpc.metadata_codec import view_from_proto
from tidemark.rpc.raw_methods import fetch_method
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

T = TypeVar("T")

FETCH_BYTES: Final = 1 << 20
"""Larger answers wait for HTTP/2's flow-control window."""
_CALL_S: Final = 5.0
_METADATA_S: Final = 2.0
"""Any broker answers it at once: one that does not is passed over soon."""
_WAIT_MS: Final = 500


class Bounds(NamedTuple):
    """What a partition holds: `earliest` inclusive, `latest` (the high watermark) exclusive."""

    earliest: int
    latest: int


class StatedOffset(NamedTuple):
    """An offset, and the epoch of the leader that stated it: what lies before the offset is of no later epoch."""

    offset: int
    leader_epoch: int


Position = Literal["earliest", "latest"] | int
"""Of an offset: the log start, the high watermark, or a time in microseconds since 1970."""


class RangeReader:
    """A blocking client for reads between known offsets.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        deadline_s: seconds after which a lookup or a fetch raises REQUEST_TIMED_OUT, with the last refusal. Each has
            its own: a long read takes as long as it makes progress.
        rack: where this reader is: rows come from a replica in sync there, if there is one; "" for leaders always.
    """

    def __init__(self, bootstrap: str | None, *, deadline_s: float, rack: str = "") -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._deadline_s = deadline_s
        self._until_s = 0.0
        self._view = ClusterView()
        self._channels: dict[str, grpc.Channel] = {}
        self._nearest = NearestReplicas(rack, lambda: self._view)
        self._turn = 0

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    @property
    def cluster_id(self) -> str:
        """Of the cluster that answered; empty before anything was asked."""
        return self._view.cluster_id

    def ask_another(self) -> None:
        """Ask another broker for metadata the next time: what one says may be old."""
        self._turn += 1

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicView]:
        """Topics with their partitions (None: all there are); raises UNKNOWN_TOPIC."""

        def ask() -> Mapping[str, TopicView]:
            self._refresh(names)
            wanted = sorted(self._view.topics) if names is None else list(names)
            return {name: self._known(name) for name in wanted}

        return self._retrying(ask)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        """First and end offset of each partition now."""
        wanted = [TopicPartition(topic, index) for index in partitions]
        earliest = self.offsets(dict.fromkeys(wanted, "earliest"))
        latest = self.offsets(dict.fromkeys(wanted, "latest"))
        return {where.partition: Bounds(earliest[where].offset, latest[where].offset) for where in wanted}

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        """First offset at or after a time, microseconds since 1970; None when no record is so young."""
        where = TopicPartition(topic, partition)
        found = self.offsets({where: timestamp_us})[where].offset
        return None if found < 0 else found

    def offsets(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, StatedOffset]:
        """The offset at each position, with one request to each leader; -1 where no record is so young.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, UNKNOWN_TOPIC_ID; REQUEST_TIMED_OUT at the deadline.
        """
        found: dict[TopicPartition, StatedOffset] = {}

        def ask() -> dict[TopicPartition, StatedOffset]:
            refusals = self._ask_leaders({where: at for where, at in positions.items() if where not in found}, found)
            if refusals:
                raise next((error for error in refusals if not error.retriable), refusals[0])
            return found

        return self._retrying(ask)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: str = "",
        incarnation: str = "",
        last_epoch: int = NO_EPOCH,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end) in record.schema.OFFSET_SCHEMA, in order, exactly once.

        The next fetch is under way while rows are handed out. A compacted log may have fewer rows than offsets.

        Args:
            topic: its name.
            partition: its index.
            start: first offset, inclusive.
            end: exclusive; at most the high watermark.
            topic_id: what is meant by the name; empty: whatever has it now.
            incarnation: likewise of the partition.
            last_epoch: leader epoch that what lies before `start` is not younger than; -1: not known (rule E4).
            fetch_bytes: soft limit of one answer.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE when rows were deleted, UNKNOWN_TOPIC_ID when the topic or partition
                was recreated, LOG_TRUNCATED after an unclean election; REQUEST_TIMED_OUT at the deadline.
        """

        def fetch(offset: int, epoch: int) -> Future[bytes | memoryview]:
            return ahead.submit(self._fetch, topic, partition, offset, epoch, topic_id, incarnation, fetch_bytes)

        position = start
        with ThreadPoolExecutor(1, "fetch-ahead") as ahead:
            if position < end:
                coming = fetch(position, last_epoch)
            while position < end:
                data = coming.result()
                batches = split_batches(data)
                following = batches[-1].envelope.next_offset if batches else position
                if following < end:
                    coming = fetch(following, batches[-1].envelope.leader_epoch if batches else last_epoch)
                for batch in batches:
                    if batch.envelope.is_control:
                        continue
                    rows = _between(with_offsets(batch), position, end)
                    if rows.num_rows:
                        yield rows
                position = max(position, following)

    # -- one try -------------------------------------------------------------------------------------------------------

    def _fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        last_epoch: int,
        topic_id: str,
        incarnation: str,
        fetch_bytes: int,
    ) -> bytes | memoryview:
        where = TopicPartition(topic, partition)

        def ask() -> bytes | memoryview:
            leader = self._leader(topic, partition)
            self._nearest.look(where, leader, time.monotonic())
            part = pb.PartitionFetch(
                topic=topic,
                partition=partition,
                current_leader_epoch=leader.leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                max_bytes=fetch_bytes,
                topic_id=topic_id,
                incarnation=incarnation,
            )
            return self._fetch_nearest(where, leader, part)

        return self._retrying(ask)

    def _fetch_nearest(self, where: TopicPartition, leader: Leader, part: pb.PartitionFetch) -> bytes | memoryview:
        """From whom the leader names, if it names somebody; whatever that one refuses, the leader is asked again."""
        for _ in range(3):
            now_s = time.monotonic()
            meant = part.topic_id and part.incarnation  # a follower gives nothing to who does not say what it means
            part.read_from = self._nearest.read_from(where, now_s) if meant else pb.READ_FROM_LEADER
            try:
                facts, batches = self._fetch_once(self._nearest.address(where, leader), part)
            except TidemarkError:
                if part.read_from != pb.READ_FROM_FOLLOWER:
                    raise
                self._nearest.leave(where, now_s)
                continue
            if facts.HasField("preferred_read_replica"):
                self._nearest.told(where, leader, facts.preferred_read_replica, has_more=True, now_s=now_s)
            elif batches:
                self._nearest.gave(where)
                return batches
            elif part.read_from == pb.READ_FROM_FOLLOWER:
                self._nearest.leave(where, now_s)
            else:
                break
        raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{where}: offset {part.fetch_offset} is not committed yet")

    def _fetch_once(self, address: str, part: pb.PartitionFetch) -> Fetched:
        request = pb.FetchRequest(
            max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=part.max_bytes, partitions=[part], rack=self._nearest.rack
        )
        fetched: Fetched = self._call(address, fetch_method, request)[0]
        _raise_refusal(fetched.facts)
        return fetched

    def _ask_leaders(
        self, positions: Mapping[TopicPartition, Position], found: dict[TopicPartition, StatedOffset]
    ) -> list[TidemarkError]:
        """Ask every leader at the same time; what was found goes into `found`, the refusals are given back."""
        refusals = []
        requests: dict[str, pb.ListOffsetsRequest] = defaultdict(pb.ListOffsetsRequest)
        for where, position in positions.items():
            try:
                leader = self._leader(*where)
            except TidemarkError as error:
                refusals.append(error)
                continue
            part = requests[leader.address].partitions.add(
                topic=where.topic,
                partition=where.partition,
                current_leader_epoch=leader.leader_epoch,
                topic_id=self._known(where.topic).topic_id,
            )
            if isinstance(position, int):
                part.timestamp_us = position
            else:
                setattr(part, position, True)
        timeout_s = self._call_s()
        calls = {
            address: BrokerServiceStub(self._channel(address)).ListOffsets.future(request, timeout=timeout_s)
            for address, request in requests.items()
        }
        for address, call in calls.items():
            try:
                results = call.result().partitions
            except grpc.RpcError as error:
                refusals.append(errors.from_rpc_error(error, address=address))
                continue
            for result in results:
                if result.HasField("error"):
                    refusals.append(errors.from_proto(result.error))
                else:
                    where = TopicPartition(result.topic, result.partition)
                    found[where] = StatedOffset(result.offset, result.leader_epoch)
        return refusals

    def _leader(self, topic: str, partition: int) -> Leader:
        if topic not in self._view.topics:
            self._refresh([topic])
        found = self._known(topic)
        known = found.partitions.get(partition)
        if known is None:
            raise unknown_partition(TopicPartition(topic, partition), len(self._known(topic).partitions))
        broker = self._view.brokers.get(known.leader)
        if known.leader == NO_LEADER or broker is None:
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        address = f"{broker.host}:{broker.port}"
        return Leader(known.leader, address, known.leader_epoch, found.topic_id, known.incarnation)

    def _known(self, topic: str) -> TopicView:
        found = self._view.topics.get(topic)
        if found is None:
            raise unknown_topic(topic)
        if found.error is not None:
            raise found.error
        return found

    def _refresh(self, names: Sequence[str] | None) -> None:
        request = pb.GetMetadataRequest(topics=names or (), all_topics=names is None)
        live = [f"{broker.host}:{broker.port}" for broker in self._view.brokers.values()]
        causes: dict[str, str] = {}
        addresses = list(dict.fromkeys([*live, *self._bootstrap]))
        first = self._turn % len(addresses)
        for address in addresses[first:] + addresses[:first]:
            try:
                update = view_from_proto(self._call(address, _metadata_method, request, _METADATA_S).metadata)
            except TidemarkError as error:
                causes[address] = error.message
                continue
            if update.brokers:
                self._view = apply(self._view, update)
                return
            causes[address] = "it has just started and knows no brokers yet"
        raise none_answers(causes)

    def _call(
        self, address: str, method: Callable[[grpc.Channel], Any], request: Any, at_most_s: float = _CALL_S
    ) -> Any:
        try:
            return method(self._channel(address))(request, timeout=min(at_most_s, self._call_s()))
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address=address) from None

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        return channel

    def _call_s(self) -> float:
        return min(_CALL_S, max(self._until_s - time.monotonic(), 0.01))

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Ask until it succeeds, is refused for good, or the deadline is over."""
        backoff = Backoff()
        started_s = time.monotonic()
        self._until_s = started_s + self._deadline_s
        missing: TidemarkError | None = None
        while True:
            try:
                return ask()
            except TidemarkError as error:
                pause_s = backoff.next_s()
                again_s = time.monotonic() + pause_s
                in_time = again_s < self._until_s
                if not error.retriable:
                    if error.code not in ON_ITS_WAY or again_s >= started_s + TOPIC_PATIENCE_S or not in_time:
                        raise
                    missing = error
                    self.ask_another()
                elif in_time:
                    missing = None
                    if error.code is ErrorCode.LEADER_NOT_AVAILABLE:  # as who was told of no topic yet says of all
                        self.ask_another()
                elif missing is not None:  # so late nobody had the time to say it once more
                    raise missing from None
                else:
                    raise TidemarkError(
                        ErrorCode.REQUEST_TIMED_OUT, f"not done before its deadline; the last refusal: {error}"
                    ) from error
                time.sleep(pause_s)
                self._refresh_quietly()

    def _refresh_quietly(self) -> None:
        try:
            self._refresh(list(self._view.topics) or None)
        except TidemarkError:
            return  # the next try says the same, and the deadline ends it


def _metadata_method(channel: grpc.Channel) -> Any:
    return BrokerServiceStub(channel).GetMetadata


def _between(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows whose offset lies in [start, end); offsets rise along the rows."""
    offsets: pa.Array[Any] = rows.column(4)
    count = rows.num_rows
    if count == 0:
        return rows
    first: int = offsets[0].as_py()
    last: int = offsets[count - 1].as_py()
    if first >= start and last < end:
        return rows
    if last - first == count - 1:
        begin = max(0, start - first)
        return rows.slice(begin, max(0, min(count, end - first) - begin))
    values: list[Any] = offsets.to_pylist()
    keep = [index for index, offset in enumerate(values) if start <= offset < end]
    return rows.slice(keep[0], len(keep)) if keep else rows.slice(0, 0)


def _raise_refusal(result: Any) -> None:
    if result.HasField("error"):
        raise errors.from_proto(result.error)
