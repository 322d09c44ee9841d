# SPDX-License-Identifier: Apache-2.0
"""Bounded, stateless reads for batch engines: blocking, each with a deadline (rules K1, K3).

A task that is retried on another machine reads the same rows, because no position is kept between calls. The reader
needs no event loop, so it works in a worker process that an engine has forked.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import grpc
import pyarrow as pa

from tidemark.client.consuming.fetch_ahead import FetchAhead
from tidemark.client.consuming.isolation import aborted_in, check_level, level_of
from tidemark.client.consuming.preferred_replica import PreferredReplicas
from tidemark.client.metadata.blocking_cluster import CALL_S, BlockingCluster
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import REPLACED_LEADER_S, Leader
from tidemark.client.metadata.tls import Credentials
from tidemark.client.settings import checked_client_id
from tidemark.client.typed.blocking_schemas import schemas_of
from tidemark.core.cluster_view import TopicView
from tidemark.core.schemas.model import TopicSchema
from tidemark.errors import LogTruncatedError
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch
from tidemark.record.transactions import has_records
from tidemark.rpc import errors
from tidemark.rpc.codecs.fetch import Fetched, Results
from tidemark.rpc.quotas.told import told_wait_s
from tidemark.rpc.raw_methods import fetch_method
from tidemark.rpc.request_limits import in_requests
from tidemark.rpc.security.paths import TlsFiles
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

if TYPE_CHECKING:
    from tidemark.client.typed.batch_rows import BatchRows

_FETCH_BYTES: Final = 4 << 20
"""Soft limit of a response: each has a fixed cost of a millisecond of CPU time at brokers and clients."""
_WAIT_MS: Final = 500


class Bounds(NamedTuple):
    """The offsets of a partition: `earliest` inclusive, `latest` (as in ListOffsetsRequest) exclusive.

    `latest_epoch`: upper bound of the leader epochs of the records before `latest`; -1: unknown.
    """

    earliest: int
    latest: int
    latest_epoch: int = NO_EPOCH


class StatedOffset(NamedTuple):
    """An offset and the leader epoch of its answer: records before the offset have no later epoch."""

    offset: int
    leader_epoch: int


class RangeStart(NamedTuple):
    """The start of a range; the fields are arguments of `RangeReader.read`."""

    topic: str
    partition: int
    start: int
    topic_id: str = ""
    incarnation: str = ""
    last_epoch: int = NO_EPOCH


Position = Literal["earliest", "latest"] | int
"""A position: the log start, the high watermark, or a time in microseconds since 1970."""


class RangeReader:
    """A blocking client for reads between known offsets; safe for several threads.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        deadline_s: seconds after which a lookup or a fetch raises REQUEST_TIMED_OUT, with the last refusal. Each call
            has its own deadline, so a long read may continue while it makes progress.
        connect_timeout_s: seconds after which a lookup raises BROKER_NOT_AVAILABLE if no broker ever answered.
        rack: rack of this reader: rows come from an in-sync replica in this rack, if there is one; "": from leaders.
        tls: the TLS files, and a token if any; None: files and token of the environment, or plain text.
        client_id: a name of this client, for quotas and metrics of brokers.
        isolation_level: "read_committed": ends are last stable offsets, and rows of aborted transactions are omitted.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        *,
        deadline_s: float,
        connect_timeout_s: float = math.inf,
        rack: str = "",
        tls: Credentials | TlsFiles | None = None,
        client_id: str = "",
        isolation_level: str = "read_uncommitted",
    ) -> None:
        self._isolation_level = level_of(isolation_level)
        self._free_at_s: dict[str, float] = {}
        """Time by address before which no fetch is sent there, because of a quota (rule Q2)."""
        self._cluster = BlockingCluster(
            bootstrap,
            deadline_s=deadline_s,
            connect_timeout_s=connect_timeout_s,
            tls=tls,
            client_id=checked_client_id(client_id),
        )
        self._deadline_s = deadline_s
        self._closing = threading.Event()
        self._nearest = PreferredReplicas(rack, lambda: self._cluster.view)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls of other threads end with CLIENT_CLOSED."""
        self._cluster.close()
        self._closing.set()

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered; "" before the first call."""
        return self._cluster.view.cluster_id

    def ask_another(self) -> None:
        """Ask another broker for the next metadata, since one broker's metadata may be stale."""
        self._cluster.ask_another()

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicView]:
        """Return topics with all their partitions (None: all topics, some possibly in part).

        Raises:
            TidemarkError: UNKNOWN_TOPIC, INVALID_TOPIC_NAME; BROKER_NOT_AVAILABLE after `connect_timeout_s`;
                REQUEST_TIMED_OUT at the deadline, with the last refusal.
        """
        return self._cluster.topics(names)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        """Return the log start and the high watermark of each partition."""
        wanted = [TopicPartition(topic, index) for index in partitions]
        earliest = self.offsets(dict.fromkeys(wanted, "earliest"))
        latest = self.offsets(dict.fromkeys(wanted, "latest"))
        return {where.partition: Bounds(earliest[where].offset, *latest[where]) for where in wanted}

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, in microseconds since 1970; None without such a record."""
        where = TopicPartition(topic, partition)
        found = self.offsets({where: timestamp_us})[where].offset
        return None if found < 0 else found

    def offsets(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, StatedOffset]:
        """Return the offset at each position, from all leaders at the same time; -1 without a record after the time.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, UNKNOWN_TOPIC_ID; REQUEST_TIMED_OUT at the deadline.
        """
        found: dict[TopicPartition, StatedOffset] = {}

        def ask() -> dict[TopicPartition, StatedOffset]:
            refusals = self._ask_leaders({where: at for where, at in positions.items() if where not in found}, found)
            if refusals:
                raise next((error for error in refusals if not error.retriable), refusals[0])
            return found

        return self._cluster.retrying(ask)

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
        fetch_bytes: int = _FETCH_BYTES,
        first: Fetched | None = None,
        typed: BatchRows | None = None,
        passed: Callable[[int], None] = lambda offset: None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of [start, end) in record.schema.OFFSET_SCHEMA, in order, each once.

        The next fetch is in flight while rows are processed; a caller that stops early does not wait for the fetch. A
        compacted log may have fewer rows than offsets.

        Args:
            topic: name of the topic.
            partition: index of the partition.
            start: first offset, inclusive.
            end: end offset, exclusive; at most `latest` of `bounds`.
            topic_id: id that the topic must have; "": any.
            incarnation: incarnation that the partition must have; "": any.
            last_epoch: upper bound of the leader epochs of the records before `start`; -1: unknown (rule E4).
            fetch_bytes: soft limit of one response.
            first: result of `fetch_together` for this range, if any.
            typed: makes the rows of a topic with a schema, and names the columns that brokers send.
            passed: called with the end offset of yielded rows, once the caller requests further rows.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE if rows were deleted. UNKNOWN_TOPIC_ID if the topic or partition was
                recreated. LOG_TRUNCATED after an unclean election. REQUEST_TIMED_OUT at the deadline. CORRUPT_BATCH if
                no replica has a valid copy of a batch.
        """

        def fetch(offset: int, epoch: int, *, check: bool = False) -> Fetched:
            begin = RangeStart(topic, partition, offset, topic_id, incarnation, epoch)
            return self._fetch(begin, fetch_bytes, typed, check=check)

        # A late import: Spark's driver only plans reads, and does not need the modules that compute on columns.
        from tidemark.client.consuming.rows_between import reading_bytes
        from tidemark.client.consuming.unreadable import placed
        from tidemark.record.checks import split_until_damage

        rows_of = reading_bytes() if typed is None else partial(self._typed_between, typed, topic, partition)
        position, checked_from = start, -1
        with FetchAhead() as ahead:
            while position < end:
                fetched = first or ahead.result() or self._begun(fetch, position, last_epoch)
                first = None
                batches, damage = split_until_damage(fetched.batches)
                aborted = aborted_in(fetched.facts)
                following = batches[-1].envelope.next_offset if batches else position
                if following < end and damage is None:
                    ahead.submit(fetch, following, batches[-1].envelope.leader_epoch)
                for batch in batches:
                    try:
                        rows = rows_of(batch, position, end) if has_records(batch.envelope, aborted) else None
                    except TidemarkError as error:
                        damage = error
                        break
                    if rows is not None and rows.num_rows:
                        yield rows
                        passed(min(batch.envelope.next_offset, end))
                    position, last_epoch = max(position, batch.envelope.next_offset), batch.envelope.leader_epoch
                if damage is not None and position < end:
                    if position == checked_from:
                        bad = next((one.envelope for one in batches if one.envelope.next_offset > position), position)
                        raise placed(damage, TopicPartition(topic, partition), bad)
                    checked_from = position
                    ahead.submit(partial(fetch, check=True), position, last_epoch)

    @staticmethod
    def _begun(fetch: Callable[[int, int], Fetched], offset: int, epoch: int) -> Fetched:
        """The first fetch; `epoch` may be an upper bound, as leaders without a record have epochs that no log knows."""
        try:
            return fetch(offset, epoch)
        except LogTruncatedError as error:
            end_offset = int(error.metadata.get("diverging_end_offset", -1))
            if end_offset < offset:
                raise
            return fetch(offset, int(error.metadata["diverging_epoch"]))

    def fetch_together(
        self, ranges: Sequence[RangeStart], *, fetch_bytes: int = _FETCH_BYTES, column_ids: Sequence[int] = ()
    ) -> list[Fetched | None]:
        """Return the first batches of each range, with one fetch to each leader and without retries.

        None marks a range that `read` must fetch itself. None is given after a refusal, if the response has no
        room for the range, and for a reader with a rack. `fetch_bytes` is the soft limit of a response, `column_ids`
        those of `BatchRows`.
        """
        found: list[Fetched | None] = [None] * len(ranges)
        if self._nearest.rack:
            return found
        self._cluster.begin(min(CALL_S, self._deadline_s))
        for address, (indexes, parts) in self._parts_by_leader(ranges, fetch_bytes).items():
            for part in parts:
                part.column_ids.extend(column_ids)
            request = pb.FetchRequest(max_bytes=fetch_bytes, partitions=parts, isolation_level=self._isolation_level)
            try:
                results = self._throttled(address, request)
            except TidemarkError:
                continue  # `read` gets the same error, and retries or reports it
            for index, fetched in zip(indexes, results, strict=True):
                if fetched.batches and not fetched.facts.HasField("error"):
                    found[index] = fetched
        return found

    def _typed_between(
        self, typed: BatchRows, topic: str, partition: int, batch: Batch, start: int, end: int
    ) -> pa.RecordBatch:
        """The rows of a batch; learns its version first if that is not known.

        If brokers then have to send other columns, a batch without these columns counts as damaged and is fetched
        again.
        """
        from tidemark.client.typed.batch_rows import UnknownVersionError

        try:
            return typed.rows(batch, partition, start, end)
        except UnknownVersionError as unknown:
            typed.learn(self.schemas(topic, range(1, unknown.version + 1)))
        return typed.rows(batch, partition, start, end)

    def schemas(self, topic: str, versions: Sequence[int] = ()) -> dict[int, TopicSchema]:
        """Return versions of a topic's schema, as `schemas_of`."""
        return schemas_of(self._cluster, topic, versions)

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _fetch(self, begin: RangeStart, fetch_bytes: int, typed: BatchRows | None, *, check: bool) -> Fetched:
        """Fetch once. With `check`, the broker first checks and repairs the batches; CORRUPT_BATCH is then final."""
        where = TopicPartition(begin.topic, begin.partition)
        replaced_until_s = time.monotonic() + min(REPLACED_LEADER_S, self._deadline_s / 2)

        def ask() -> Fetched:
            leader = self._cluster.leader(*where)
            self._nearest.revalidate(where, leader, time.monotonic())
            part = _partition_fetch(begin, leader, fetch_bytes, check=check)
            if typed is not None:
                _ask_for(part, typed)
            try:
                return self._fetch_nearest(where, leader, part)
            except LogTruncatedError as error:  # a leader that was replaced lacks the records of its successor
                if begin.last_epoch <= leader.leader_epoch or time.monotonic() >= replaced_until_s:
                    raise
                raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from error

        return self._cluster.retrying(ask)

    def _parts_by_leader(
        self, ranges: Sequence[RangeStart], fetch_bytes: int
    ) -> dict[str, tuple[list[int], list[pb.PartitionFetch]]]:
        """Indexes and requests of the ranges by address of the leader, without the ranges that have none."""
        unknown = {one.topic for one in ranges} - set(self._cluster.view.topics)
        found: dict[str, tuple[list[int], list[pb.PartitionFetch]]] = defaultdict(lambda: ([], []))
        try:
            if unknown:
                self._cluster.refresh(sorted(unknown))
        except TidemarkError:
            return found
        part_bytes = max(1, fetch_bytes // len(ranges))
        for index, one in enumerate(ranges):
            try:
                leader = self._cluster.leader(one.topic, one.partition)
            except TidemarkError:
                continue
            indexes, parts = found[leader.address]
            indexes.append(index)
            parts.append(_partition_fetch(one, leader, part_bytes))
        return found

    def _fetch_nearest(self, where: TopicPartition, leader: Leader, part: pb.PartitionFetch) -> Fetched:
        """Fetch from the replica that the leader names, if any; after its refusal, from the leader."""
        for _ in range(3):
            now_s = time.monotonic()
            identified = part.topic_id and part.incarnation  # a follower refuses fetches without both ids
            part.read_from = self._nearest.read_from(where, now_s) if identified else pb.READ_FROM_LEADER
            try:
                fetched = self._fetch_once(self._nearest.address(where, leader), part)
            except TidemarkError:
                if part.read_from != pb.READ_FROM_FOLLOWER:
                    raise
                self._nearest.leave(where, now_s)
                continue
            if fetched.facts.HasField("preferred_read_replica"):
                replica = fetched.facts.preferred_read_replica
                self._nearest.prefer(where, leader, replica, has_more=True, now_s=now_s)
            elif fetched.batches:
                self._nearest.returned_records(where)
                return fetched
            elif part.read_from == pb.READ_FROM_FOLLOWER:
                self._nearest.leave(where, now_s)
            else:
                break
        raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{where}: offset {part.fetch_offset} is not committed yet")

    def _fetch_once(self, address: str, part: pb.PartitionFetch) -> Fetched:
        request = pb.FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=part.max_bytes,
            partitions=[part],
            rack=self._nearest.rack,
            isolation_level=self._isolation_level,
        )
        fetched = self._throttled(address, request)[0]
        errors.raise_error_in(fetched.facts)
        return fetched

    def _throttled(self, address: str, request: pb.FetchRequest) -> Results:
        """Fetch as soon as the broker's quotas allow it; the wait prolongs the call's deadline."""
        while (wait_s := self._free_at_s.get(address, 0.0) - time.monotonic()) > 0:
            self._closing.wait(wait_s)
            if self._cluster.is_closed:
                break
            self._cluster.prolong(wait_s)
        results: Results = self._cluster.call(address, fetch_method, request)
        if results.throttle_time_ms > 0:
            self._free_at_s[address] = time.monotonic() + told_wait_s(results.throttle_time_ms)
        for fetched in results:
            check_level(request.isolation_level, fetched, address)
        return results

    def _ask_leaders(
        self, positions: Mapping[TopicPartition, Position], found: dict[TopicPartition, StatedOffset]
    ) -> list[TidemarkError]:
        """Ask all leaders at the same time; results go into `found`, refusals are returned."""
        refusals = []
        parts: dict[str, list[pb.PartitionListOffsets]] = defaultdict(list)
        for where, position in positions.items():
            try:
                leader = self._cluster.leader(*where)
            except TidemarkError as error:
                refusals.append(error)
                continue
            part = pb.PartitionListOffsets(
                topic=where.topic,
                partition=where.partition,
                current_leader_epoch=leader.leader_epoch,
                topic_id=self._cluster.known(where.topic).topic_id,
            )
            parts[leader.address].append(part)
            if isinstance(position, int):
                part.timestamp_us = position
            else:
                setattr(part, position, True)
        timeout_s, headers = self._cluster.left_s(), self._cluster.headers
        calls = []
        with ExitStack() as lent:
            for address, led in parts.items():
                stub = BrokerServiceStub(lent.enter_context(self._cluster.channel(address)))
                for some in in_requests(led):
                    request = pb.ListOffsetsRequest(partitions=some, isolation_level=self._isolation_level)
                    calls.append((address, stub.ListOffsets.future(request, timeout=timeout_s, metadata=headers)))
            for address, call in calls:
                try:
                    results = call.result().partitions
                except grpc.RpcError as error:
                    refusals.append(errors.from_rpc_error(error, address=address))
                    continue
                for result in results:
                    if (refusal := errors.error_in(result)) is not None:
                        refusals.append(refusal)
                    else:
                        where = TopicPartition(result.topic, result.partition)
                        found[where] = StatedOffset(result.offset, result.leader_epoch)
        return refusals


def _partition_fetch(begin: RangeStart, leader: Leader, max_bytes: int, *, check: bool = False) -> pb.PartitionFetch:
    return pb.PartitionFetch(
        topic=begin.topic,
        partition=begin.partition,
        current_leader_epoch=leader.leader_epoch,
        fetch_offset=begin.start,
        last_fetched_epoch=begin.last_epoch,
        max_bytes=max_bytes,
        topic_id=begin.topic_id,
        incarnation=begin.incarnation,
        check_batches=check,
    )


def _ask_for(part: pb.PartitionFetch, typed: BatchRows) -> None:
    """Name the columns and the timestamps that the broker has to send."""
    part.column_ids.extend(typed.column_ids)
    if typed.times.from_us is not None:
        part.timestamp_from_us = typed.times.from_us
    if typed.times.until_us is not None:
        part.timestamp_until_us = typed.times.until_us
