# SPDX-License-Identifier: Apache-2.0
"""Brokers in this process, on real sockets, whose faults are scripted; their logs are checked as a broker checks them.

All brokers of a FakeCluster share the logs: a batch that any leader appended is replicated, even if its answer is
lost. Producers' sequences are checked by the broker's own rules, so a wrong one is refused and a duplicate is reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.producer_state import ProducerStates
from tidemark.model import (
    FEATURES,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import read_batch
from tidemark.rpc import errors
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer, add_BrokerServiceServicer_to_server

TOPIC = "t"


@dataclass(frozen=True)
class Fault:
    """The result of one request: whether the request is applied, and its answer."""

    append: bool = True
    refuse: ErrorCode | None = None
    drop: bool = False
    confuse: bool = False
    hold: bool = False
    damage: bool = False


FINE = Fault()
DROP_BEFORE = Fault(append=False, drop=True)
DROP_AFTER = Fault(drop=True)
HOLD = Fault(hold=True)
CONFUSE = Fault(confuse=True)


def refuse(code: ErrorCode, *, append: bool = False) -> Fault:
    return Fault(append=append, refuse=code)


@dataclass
class FakeLog:
    """The log of one partition; everything in it is committed."""

    batches: list[Batch] = field(default_factory=list)
    states: ProducerStates = field(default_factory=ProducerStates)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].envelope.next_offset if self.batches else self.start

    def append(self, data: bytes, leader_epoch: int) -> int:
        batch = Batch(parse_envelope(data), data)
        known = self.states.check(batch.envelope)
        if known is not None:
            return known.first_offset
        written = stamped(batch, base_offset=self.end, leader_epoch=leader_epoch)
        self.states.observe(written.envelope)
        self.batches.append(written)
        return written.envelope.base_offset

    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches for value in read_batch(batch).column(1).to_pylist()]

    def read(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch in self.batches:
            if batch.envelope.next_offset > offset:
                if data and len(data) + len(batch.data) > max_bytes:
                    break
                data += batch.data
        return data


class FakeCluster:
    """`brokers` brokers and one topic; an async context manager.

    Attributes:
        produce_faults, fetch_faults: one fault for each request, from the left; then FINE.
        listed: the number of partitions in each request for offsets.
        produced: the base sequences of each produce request that arrived, by broker.
        racks: by broker; a leader names the lowest other broker in a consumer's rack, without a check of its log.
        behind: records that a broker lacks when it is read as a follower.
        follower_faults: as `fetch_faults`, of fetches from a broker that does not lead.
        unheard: number of metadata requests whose answers lack the topic.
        speaking: while clear, no broker answers, and connections stay open.
        silenced: methods of the calls that arrived while `speaking` was clear.
        late_s: seconds that each call waits before a broker handles it.
    """

    def __init__(self, brokers: int = 2, partitions: int = 1, features: Mapping[str, int] = FEATURES) -> None:
        self._features = features
        self.logs = {TopicPartition(TOPIC, index): FakeLog() for index in range(partitions)}
        self.brokers = {BrokerId(index): FakeBroker(self, BrokerId(index)) for index in range(brokers)}
        self.produce_faults: deque[Fault] = deque()
        self.fetch_faults: deque[Fault] = deque()
        self.follower_faults: deque[Fault] = deque()
        self.racks: dict[int, str] = {}
        self.behind: dict[int, int] = {}
        self.list_faults: deque[Fault] = deque()
        self.listed: list[int] = []
        self.produced: list[tuple[BrokerId, list[int]]] = []
        self.fetched: list[tuple[BrokerId, pb.FetchRequest]] = []
        self.held: list[Callable[[], Awaitable[None]]] = []
        self.watchers: dict[asyncio.Queue[ClusterView], BrokerId] = {}
        self.producer_ids = 0
        self.unheard = 0
        self.speaking = asyncio.Event()
        self.speaking.set()
        self.silenced: list[str] = []
        self.late_s = 0.0
        self._changed = asyncio.Condition()
        self._view = ClusterView()

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers.values():
            await broker.start()
        partitions = {where.partition: self._partition(where.partition, BrokerId(0), 0) for where in self.logs}
        self._view = ClusterView(
            cluster_id="fake",
            controller_id=BrokerId(100),
            controller_epoch=ControllerEpoch(1),
            brokers={
                broker.id: BrokerRegistration(broker.id, "127.0.0.1", broker.port, features=self._features)
                for broker in self._live()
            },
            topics={TOPIC: TopicView(TOPIC, "topic-id", 1, 1, partitions)},
            admin_address=self.bootstrap.split(",")[0],
            complete=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def view(self) -> ClusterView:
        return self._view

    def _live(self) -> list[FakeBroker]:
        return list(self.brokers.values())

    def _partition(self, index: int, leader: BrokerId, epoch: int, incarnation: str = "i") -> PartitionView:
        ids = tuple(self.brokers)
        return PartitionView(index, leader, LeaderEpoch(epoch), ids, ids, incarnation, partition_epoch=epoch)

    # -- calls of tests --------------------------------------------------------------------------------------------

    async def move(self, to: int, *, partition: int = 0, tell: bool = True) -> None:
        """Elect another leader, in the next epoch."""
        topic = self._view.topics[TOPIC]
        before = topic.partitions[partition]
        moved = replace(
            before,
            leader=BrokerId(to),
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            partition_epoch=before.partition_epoch + 1,
        )
        await self.change(replace(topic, partitions={**topic.partitions, partition: moved}), tell=tell)

    async def change(self, topic: TopicView, *, tell: bool = True) -> None:
        self._view = replace(self._view, topics={TOPIC: topic})
        if tell:
            for queue in self.watchers:
                queue.put_nowait(self._view)
        await self.notify()

    async def stop_broker(self, broker: int) -> None:
        """Break the connections of a broker; the metadata still names it until `move`."""
        await self.brokers[BrokerId(broker)].stop()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something of this cluster."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def release(self, *, backwards: bool = False) -> None:
        """Answer the held requests."""
        held, self.held = self.held, []
        for answer in reversed(held) if backwards else held:
            await answer()

    async def notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def values(self, partition: int = 0) -> list[bytes | None]:
        return self.logs[TopicPartition(TOPIC, partition)].values()

    # -- calls of brokers ------------------------------------------------------------------------------------------

    def leader(self, broker: BrokerId, part: Any) -> tuple[FakeLog, int]:
        """The log, if that broker leads it and the caller knows the epoch."""
        where = TopicPartition(part.topic, part.partition)
        topic = self._view.topics[TOPIC]
        if part.topic != TOPIC or part.partition not in topic.partitions:
            raise TidemarkError(ErrorCode.UNKNOWN_TOPIC, f"there is no {where}")
        if part.topic_id and part.topic_id != topic.topic_id:
            raise TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, "another topic")
        view = topic.partitions[part.partition]
        told = {"leader": str(view.leader), "leader_epoch": str(view.leader_epoch)}
        if view.leader != broker:
            raise TidemarkError(ErrorCode.NOT_LEADER, f"{broker} does not lead {where}", told)
        if part.current_leader_epoch != view.leader_epoch:
            raise TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "another epoch", told)
        return self.logs[where], view.leader_epoch

    def follower(self, broker: BrokerId, part: Any) -> FakeLog:
        """The log, if that broker follows, and the caller means this partition in this epoch."""
        topic = self._view.topics[TOPIC]
        view = topic.partitions[part.partition]
        assert (part.topic_id, part.incarnation) == (topic.topic_id, view.incarnation), (
            "a request to a follower names the partition's ids"
        )
        if view.leader == broker:
            raise TidemarkError(ErrorCode.NOT_LEADER, f"{broker} leads", {"leader": str(broker)})
        if part.current_leader_epoch != view.leader_epoch:
            raise TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "another epoch")
        return self.logs[TopicPartition(part.topic, part.partition)]

    def nearest(self, leader: BrokerId, rack: str) -> BrokerId | None:
        """The replica that a leader names to a consumer in a rack."""
        if not rack or self.racks.get(leader) == rack:
            return None
        return min((BrokerId(broker) for broker, one in self.racks.items() if one == rack), default=None)

    def asked(self, *, of: int) -> list[pb.PartitionFetch]:
        """Requests to one broker, by partition."""
        return [part for broker, request in self.fetched if broker == of for part in request.partitions]


class FakeBroker(BrokerServiceServicer):
    def __init__(self, cluster: FakeCluster, broker_id: BrokerId) -> None:
        self.id = broker_id
        self.port = 0
        self._cluster = cluster
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(interceptors=[_Silence(self._cluster)])
        add_BrokerServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def GetMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        view = self._cluster.view
        if self._cluster.unheard:
            self._cluster.unheard -= 1
            view = replace(view, topics={})
        topics: dict[str, TopicView] = {}
        for name in request.topics:
            unknown = TidemarkError(ErrorCode.UNKNOWN_TOPIC, f"there is no topic {name!r}")
            topics[name] = view.topics.get(name) or TopicView(name, "", error=unknown)
        return pb.GetMetadataResponse(metadata=view_to_proto(replace(view, topics=topics, complete=False)))

    async def WatchMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        queue: asyncio.Queue[ClusterView] = asyncio.Queue()
        if not self._cluster.unheard:
            queue.put_nowait(self._cluster.view)
        self._cluster.watchers[queue] = self.id
        try:
            await self._cluster.notify()
            while True:
                yield pb.WatchMetadataResponse(metadata=view_to_proto(await queue.get()))
        finally:
            del self._cluster.watchers[queue]

    async def InitProducerId(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._cluster.producer_ids += 1
        return pb.InitProducerIdResponse(producer_id=self._cluster.producer_ids, producer_epoch=0)

    async def Produce(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        cluster = self._cluster
        async for request in request_iterator:
            fault = cluster.produce_faults.popleft() if cluster.produce_faults else FINE
            response = pb.ProduceResponse(correlation_id=request.correlation_id + 1000 * fault.confuse)
            sequences = []
            for part in request.partitions:
                sequences += [parse_envelope(data).base_sequence for data in part.batches]
                response.partitions.append(self._produce(part, fault, acks=request.acks))
            cluster.produced.append((self.id, sequences))
            if fault.hold:
                cluster.held.append(_writing(context, response))
            elif not fault.drop:
                await context.write(response)
            await cluster.notify()
            if fault.drop:
                await _drop(context)

    def _produce(self, part: Any, fault: Fault, *, acks: int) -> Any:
        result = pb.PartitionProduceResult(
            topic=part.topic, partition=part.partition, base_offset=-1, log_append_time_us=-1
        )
        try:
            if fault.append:
                log, epoch = self._cluster.leader(self.id, part)
                offsets = [log.append(data, epoch) for data in part.batches]
                result.base_offset = offsets[0] if acks else -1
            if fault.refuse is not None:
                raise TidemarkError(fault.refuse, "as the test wants it")
        except TidemarkError as error:
            result.base_offset = -1
            result.error.CopyFrom(errors.to_proto(error))
        return result

    async def FetchStream(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(await self.Fetch(request, context))

    async def Fetch(self, request: Any, context: Any) -> Any:  # noqa: N802
        cluster = self._cluster
        cluster.fetched.append((self.id, request))
        as_follower = any(part.read_from == pb.READ_FROM_FOLLOWER for part in request.partitions)
        faults = cluster.follower_faults if as_follower else cluster.fetch_faults
        fault = faults.popleft() if faults else FINE
        await cluster.notify()
        if fault.drop:
            await _drop(context)
        if fault.hold:
            await asyncio.Event().wait()  # until the client cancels the call
        response = self._read(request, fault)
        waited = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while not any(_is_settled(part) for part in response.partitions):
            left_s = waited - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, 0.01))
            response = self._read(request, fault)
        return response

    def _read(self, request: Any, fault: Fault) -> Any:
        response = pb.FetchResponse()
        for part in request.partitions:
            result = response.partitions.add(topic=part.topic, partition=part.partition, high_watermark=-1)
            try:
                if fault.refuse is not None:
                    raise TidemarkError(fault.refuse, "as the test wants it")
                if part.read_from == pb.READ_FROM_FOLLOWER:
                    self._read_as_follower(part, result, fault)
                    continue
                log, _ = self._cluster.leader(self.id, part)
                if part.fetch_offset < log.start:
                    raise TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, "deleted")
                if part.fetch_offset > log.end:
                    raise TidemarkError(ErrorCode.LOG_TRUNCATED, "beyond the end")
                result.high_watermark = result.log_end_offset = log.end
                named = self._cluster.nearest(self.id, request.rack)
                if part.read_from == pb.READ_FROM_NEAREST and named is not None:
                    result.preferred_read_replica = named
                    continue
                data = log.read(part.fetch_offset, part.max_bytes)
                result.batches = data[:-1] + bytes([data[-1] ^ 1]) if fault.damage and data else data
            except TidemarkError as error:
                result.error.CopyFrom(errors.to_proto(error))
        return response

    def _read_as_follower(self, part: Any, result: Any, fault: Fault) -> None:
        log = self._cluster.follower(self.id, part)
        end = log.end - self._cluster.behind.get(self.id, 0)
        if part.fetch_offset > end:
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, "ask the leader")
        result.heard_high_watermark = result.log_end_offset = end
        data = b""
        for batch in log.batches:
            if part.fetch_offset < batch.envelope.next_offset <= end:
                data += batch.data if not data or len(data) + len(batch.data) <= part.max_bytes else b""
        result.batches = data[:-1] + bytes([data[-1] ^ 1]) if fault.damage and data else data

    async def ListOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        cluster = self._cluster
        cluster.listed.append(len(request.partitions))
        fault = cluster.list_faults.popleft() if cluster.list_faults else FINE
        response = pb.ListOffsetsResponse()
        for part in request.partitions:
            result = response.partitions.add(topic=part.topic, partition=part.partition, offset=-1, timestamp_us=-1)
            try:
                if fault.refuse is not None:
                    raise TidemarkError(fault.refuse, "as the test wants it")
                log, _ = cluster.leader(self.id, part)
                position = part.WhichOneof("position")
                if position in ("earliest", "latest"):
                    result.offset = log.start if position == "earliest" else log.end
                else:
                    young = (item for item in log.batches if item.envelope.max_timestamp_us >= part.timestamp_us)
                    first = next(young, None)
                    result.offset = -1 if first is None else first.envelope.base_offset
            except TidemarkError as error:
                result.error.CopyFrom(errors.to_proto(error))
        return response


def _is_settled(part: Any) -> bool:
    return bool(part.batches) or part.HasField("error") or part.HasField("preferred_read_replica")


class _Silence(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if not self._cluster.speaking.is_set():
            self._cluster.silenced.append(details.method)
            await self._cluster.notify()
            await self._cluster.speaking.wait()
        await asyncio.sleep(self._cluster.late_s)
        return await continuation(details)


async def _drop(context: Any) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped")
    raise AssertionError("abort raises")


def _writing(context: Any, response: Any) -> Callable[[], Awaitable[None]]:
    async def write() -> None:
        await context.write(response)

    return write
