# SPDX-License-Identifier: Apache-2.0
"""Broker processes as clients and a controller see them, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import signal
import urllib.request

import grpc
import pytest
from tidemark.model import ErrorCode, TopicPartition
from tidemark.record.envelope import STAMP_BYTES, split_batches
from tidemark.record.payload import build_batch, from_columns, reseal
from tidemark.rpc import errors
from tidemark.rpc.channel import open_channel
from tidemark.rpc.log_dirs import describe_log_dirs
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import controller_service_pb2
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

from tests.integration.harness.hand_controller import Brokers, HandController, client_of
from tests.unit.broker.scraped import scraped
from tests.unit.record.samples import NOON_US, patched, sample, with_fields
from tests.unit.rpc.limits.http2 import Http2

RECORDS = 3
"""Records in one sample batch."""


async def test_records_in_all_in_sync_replicas_are_acknowledged_and_read_back_unchanged(
    three: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-read", replicas=[0, 1, 2], min_isr=2)
    async with client_of(three, 0) as client:
        results = await client.produce(partition, [sample()], [sample(), sample()], [sample()])
        assert [(result.base_offset, result.error.code) for result in results] == [(0, ""), (3, ""), (9, "")]
        found = await client.fetch(partition, 0)
        assert found.high_watermark == 4 * RECORDS
        batches = split_batches(found.batches)
        assert [batch.envelope.base_offset for batch in batches] == [0, 3, 6, 9]
        assert {batch.data[STAMP_BYTES:] for batch in batches} == {sample()[STAMP_BYTES:]}


async def test_nothing_acknowledged_is_lost_when_the_leader_is_killed_and_the_dead_one_comes_back(
    three: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-kill", replicas=[0, 1, 2], min_isr=2)
    async with client_of(three, 0) as client:
        before = await client.produce(partition, *[[sample()]] * 20)
        assert all(not result.error.code for result in before)
    three.processes[three.ids[0]].kill()
    await controller.elect(partition, 1, without=[0])
    async with client_of(three, 1) as client:
        after = await client.produce(partition, *[[sample()]] * 5)
        assert [result.base_offset for result in after] == [60, 63, 66, 69, 72]
        found = await client.fetch_until(partition, 25 * RECORDS)
        assert [batch.envelope.base_offset for batch in split_batches(found.batches)] == list(range(0, 75, 3))
    await three.start(0)
    await controller.tell(partition)
    await controller.wait_for_isr(partition, 0, 1, 2)
    await controller.elect(partition, 0)
    async with client_of(three, 0) as client:
        again = await client.fetch_until(partition, 25 * RECORDS)
        assert again.batches == found.batches


async def test_a_leader_suspended_past_its_session_acknowledges_nothing_and_registers_again(
    three: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-silent", replicas=[0, 1, 2], min_isr=2)
    async with client_of(three, 0) as old, client_of(three, 1) as new:
        await old.produce(partition, [sample()])
        three.processes[three.ids[0]].signal(signal.SIGSTOP)
        await controller.wait_until_gone(0)
        await controller.elect(partition, 1, without=[0])
        (taken,) = await new.produce(partition, [sample()])
        assert taken.base_offset == RECORDS
        writing = asyncio.create_task(old.produce(partition, [sample()]))
        reading = asyncio.create_task(old.fetch(partition, 0))
        three.processes[three.ids[0]].signal(signal.SIGCONT)
        assert [result.error.code for result in await writing] == [ErrorCode.NOT_LEADER]
        assert (await reading).error.code == ErrorCode.NOT_LEADER
        await controller.wait_until_registered(0, broker_epoch=1)
        await controller.tell(partition)
        await controller.wait_for_isr(partition, 0, 1, 2)
        assert (await new.fetch(partition, 0)).high_watermark == 2 * RECORDS


async def test_a_bad_batch_is_refused_with_its_code_and_the_pipeline_continues(
    one: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-bad", replicas=[0], configs={"max.message.bytes": "2048"})
    large = build_batch(from_columns([b"k"], [b"v" * 4096], [NOON_US], None))
    good = sample()
    async with client_of(one, 0) as client:
        results = await client.produce(
            partition, [good], [patched(good, 80, b"\xff")], [good[:-8]], [large], [], [good, b"short"], [good]
        )
        assert [result.error.code for result in results] == [
            "",
            ErrorCode.CORRUPT_BATCH,
            ErrorCode.INVALID_BATCH,
            ErrorCode.BATCH_TOO_LARGE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_BATCH,
            "",
        ]
        assert [results[0].base_offset, results[-1].base_offset] == [0, RECORDS]
        (odd,) = await client.produce(partition, [good], acks=7)
        assert odd.error.code == ErrorCode.INVALID_ACKS
        await controller.tell(partition)  # a broker without a controller may lack a new topic
        (unknown,) = await client.produce(TopicPartition("nowhere", 0), [good])
        assert unknown.error.code == ErrorCode.UNKNOWN_TOPIC
        (beyond,) = await client.produce(TopicPartition(partition.topic, 9), [good])
        assert beyond.error.code == ErrorCode.UNKNOWN_PARTITION


async def test_acks_0_are_answered_without_an_offset_and_acks_1_by_the_leader_alone(
    three: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-acks", replicas=[0, 1, 2], min_isr=3)
    for broker_id in three.ids[1:]:
        three.processes[broker_id].signal(signal.SIGSTOP)
    async with client_of(three, 0) as client:
        (none,) = await client.produce(partition, [sample()], acks=0)
        assert (none.base_offset, none.error.code) == (-1, "")
        (leader,) = await client.produce(partition, [sample()], acks=1)
        assert (leader.base_offset, leader.error.code) == (RECORDS, "")
        (late,) = await client.produce(partition, [sample()], timeout_ms=200)
        # If followers have been silent for replica.lag.time.max.ms by now, the leader refuses the batch before the
        # append.
        appended = {ErrorCode.REQUEST_TIMED_OUT: 3, ErrorCode.NOT_ENOUGH_REPLICAS: 2}[ErrorCode(late.error.code)]
        found = await client.fetch(partition, 0)
        assert (found.high_watermark, found.batches, found.log_end_offset) == (0, b"", appended * RECORDS)


async def test_a_retry_of_an_idempotent_producer_gets_the_offset_of_the_original(
    one: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-retry", replicas=[0])
    async with client_of(one, 0) as client:
        given = await client.stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30)
        other = await client.stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30)
        assert other.producer_id != given.producer_id
        first, second = (
            reseal(sample(), producer_id=given.producer_id, producer_epoch=0, base_sequence=sequence)
            for sequence in (0, RECORDS)
        )
        results = await client.produce(partition, [first], [second], [first], [second])
        assert [result.base_offset for result in results] == [0, 3, 0, 3]
        gap = reseal(sample(), producer_id=given.producer_id, producer_epoch=0, base_sequence=100)
        (refused,) = await client.produce(partition, [gap])
        assert refused.error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE
        assert (await client.fetch(partition, 0)).high_watermark == 2 * RECORDS


async def test_a_waiting_fetch_is_answered_by_the_next_commit_and_not_before(
    one: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-wait", replicas=[0])
    async with client_of(one, 0) as client:
        assert (await client.fetch(partition, 0, max_wait_ms=100)).batches == b""
        waiting = asyncio.create_task(client.fetch(partition, 0, max_wait_ms=15_000))
        await client.fetch(partition, 0)  # the server sees the first fetch by now, or after the commit
        await client.produce(partition, [sample()])
        async with asyncio.timeout(12):
            found = await waiting
        assert [batch.envelope.next_offset for batch in split_batches(found.batches)] == [RECORDS]


async def test_reads_are_refused_by_name(one: Brokers, controller: HandController) -> None:
    partition = await controller.create_topic("flights-refused", replicas=[0])
    async with client_of(one, 0) as client:
        await client.produce(partition, [sample()])
        assert (await client.fetch(partition, 99)).error.code == ErrorCode.LOG_TRUNCATED
        assert (await client.fetch(partition, 0, epoch=7)).error.code == ErrorCode.UNKNOWN_LEADER_EPOCH
        await controller.tell(partition)  # a broker without a controller may lack a new topic
        assert (await client.fetch(TopicPartition("nowhere", 0), 0)).error.code == ErrorCode.UNKNOWN_TOPIC
        beyond = TopicPartition(partition.topic, 9)
        assert (await client.fetch(beyond, 0)).error.code == ErrorCode.UNKNOWN_PARTITION


async def test_offsets_are_found_by_position_and_by_time(one: Brokers, controller: HandController) -> None:
    partition = await controller.create_topic("flights-offsets", replicas=[0])
    batches = [build_batch(from_columns([None], [b"v"], [NOON_US + 10 * index], None)) for index in range(5)]
    asked = [
        {"earliest": True},
        {"latest": True},
        {"timestamp_us": NOON_US + 15},
        {"timestamp_us": NOON_US + 99},
        {"max_timestamp": True},
    ]
    async with client_of(one, 0) as client:
        await client.produce(partition, batches)
        parts = [
            pb.PartitionListOffsets(topic=partition.topic, partition=0, current_leader_epoch=-1, **position)
            for position in asked
        ]
        answer = await client.stub.ListOffsets(pb.ListOffsetsRequest(partitions=parts), timeout=30)
        assert [(found.offset, found.error.code) for found in answer.partitions] == [
            (0, ""),
            (5, ""),
            (2, ""),
            (-1, ""),
            (4, ""),
        ]
        epoch = pb.PartitionEpoch(topic=partition.topic, partition=0, current_leader_epoch=-1, leader_epoch=0)
        ends = await client.stub.OffsetsForLeaderEpoch(pb.OffsetsForLeaderEpochRequest(partitions=[epoch]), timeout=30)
        assert (ends.partitions[0].leader_epoch, ends.partitions[0].end_offset) == (0, 5)


async def test_append_time_replaces_the_producers_timestamps(one: Brokers, controller: HandController) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    partition = await controller.create_topic("flights-append-time", replicas=[0], configs=configs)
    async with client_of(one, 0) as client:
        (result,) = await client.produce(partition, [sample()])
        (batch,) = split_batches((await client.fetch(partition, 0)).batches)
        assert batch.envelope.has_append_time
        assert result.log_append_time_us == batch.envelope.max_timestamp_us > NOON_US


async def test_a_retry_gets_the_append_time_that_the_leader_has_stored(
    one: Brokers, controller: HandController
) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    partition = await controller.create_topic("flights-retried", replicas=[0], configs=configs)
    async with client_of(one, 0) as client:
        first, second = (reseal(sample(), producer_id=9, producer_epoch=0, base_sequence=at) for at in (0, 3))
        (result,) = await client.produce(partition, [first])
        await client.produce(partition, [second])
        (again,) = await client.produce(partition, [first])
    assert (again.base_offset, again.log_append_time_us) == (0, result.log_append_time_us)


async def test_brokers_serve_the_controllers_metadata_and_watchers_get_changes(
    one: Brokers, controller: HandController
) -> None:
    async with open_channel(one.address(0)) as channel:
        stub = BrokerServiceStub(channel)
        watch = stub.WatchMetadata(pb.WatchMetadataRequest(), timeout=20)
        assert await watch.read() is not grpc.aio.EOF
        partition = await controller.create_topic("flights-metadata", replicas=[0])
        async with asyncio.timeout(12):
            while not (topics := (await watch.read()).metadata.topics):
                pass
        assert [topic.topic for topic in topics] == [partition.topic]
        watch.cancel()
        await controller.tell(partition)  # a broker without a controller may lack a new topic
        request = pb.GetMetadataRequest(topics=[partition.topic, "nowhere"])
        metadata = (await stub.GetMetadata(request, timeout=30)).metadata
        assert [(topic.topic, topic.error.code) for topic in metadata.topics] == [
            (partition.topic, ""),
            ("nowhere", ErrorCode.UNKNOWN_TOPIC),
        ]
        assert [(broker.broker_id, f"{broker.host}:{broker.port}") for broker in metadata.brokers] == [
            (0, one.address(0))
        ]


async def test_commands_of_an_old_controller_or_for_an_old_broker_epoch_are_refused(
    one: Brokers, controller: HandController
) -> None:
    await controller.create_topic("flights-fenced", replicas=[0])
    for header, code in (
        (controller_service_pb2.ControlHeader(controller_epoch=-1, broker_epoch=0), ErrorCode.STALE_CONTROLLER_EPOCH),
        (
            controller_service_pb2.ControlHeader(controller_epoch=1 << 30, broker_epoch=99),
            ErrorCode.STALE_BROKER_EPOCH,
        ),
    ):
        for method, request in (
            ("LeaderAndIsr", controller_service_pb2.LeaderAndIsrRequest(header=header)),
            ("StopReplica", controller_service_pb2.StopReplicaRequest(header=header)),
            ("UpdateMetadata", controller_service_pb2.UpdateMetadataRequest(header=header)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await controller.control(0, method, request)
            assert errors.from_rpc_error(refused.value, address="broker").code == code, method


async def test_a_clean_stop_leaves_its_mark_and_the_next_start_is_trusted(
    one: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-stop", replicas=[0])
    async with client_of(one, 0) as client:
        await client.produce(partition, [sample()])
    process = one.processes[one.ids[0]]
    process.signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 10.0), process.tail()
    assert process.exit_status == 0, process.tail()
    assert (one.log_directory(0) / "clean-shutdown.json").exists()
    assert not await controller.store.live_brokers()
    await one.start()
    assert not (one.log_directory(0) / "clean-shutdown.json").exists()
    epochs = await controller.store.broker_epochs()
    assert epochs[one.ids[0]].unclean_at == -1
    await controller.elect(partition, 0)
    async with client_of(one, 0) as client:
        assert (await client.fetch_until(partition, RECORDS)).high_watermark == RECORDS


async def test_metrics_count_bytes_and_records(one: Brokers, controller: HandController) -> None:
    partition = await controller.create_topic("flights-metrics", replicas=[0])
    async with client_of(one, 0) as client:
        await client.produce(partition, [sample()], [sample()])
    found = await metrics_of(one)
    assert found["tidemark_broker_produced_batches_total", ""] == 2
    assert found["tidemark_broker_produced_bytes_total", ""] == 2 * len(sample())
    assert found["tidemark_replica_leader_count", ""] == 1


async def test_produce_metrics_count_appends_and_neither_refusals_nor_duplicates(
    one: Brokers, controller: HandController
) -> None:
    partition = await controller.create_topic("flights-appended", replicas=[0])
    numbered = with_fields(sample(), producer_id=7, producer_epoch=0, base_sequence=0)
    before = await produced(one)
    async with client_of(one, 0) as client:
        refused = await client.produce(TopicPartition("flights-appended", 7), [sample()])
        damaged = await client.produce(partition, [patched(sample(), 90, b"\xff\xff")])
        assert refused[0].error.code
        assert damaged[0].error.code
        await client.produce(partition, [numbered], [numbered], [sample()])
    after = await produced(one)
    assert [int(new - old) for new, old in zip(after, before, strict=True)] == [2, 2 * RECORDS, 2 * len(sample())]


async def test_a_client_that_opens_fetch_streams_and_reads_nothing_is_cut_off(
    one: Brokers, controller: HandController
) -> None:
    """The broker keeps at most 128 MiB of answers for the client, not 90 times 3.6 MB, and serves other clients."""
    partition = await controller.create_topic("flights-unread", replicas=[0])
    batch = build_batch(from_columns(None, [bytes(900_000)], [NOON_US]))
    wanted = pb.PartitionFetch(
        topic=partition.topic, partition=0, current_leader_epoch=-1, last_fetched_epoch=-1, max_bytes=4 << 20
    )
    request = pb.FetchRequest(max_bytes=8 << 20, partitions=[wanted]).SerializeToString()
    async with client_of(one, 0) as client:
        results = await client.produce(partition, *[[batch]] * 5)
        assert not any(result.error.code for result in results)
        before = await cut_off(one)
        port = int(one.address(one.ids[0]).rpartition(":")[2])
        async with Http2(port, window=0) as hoarder:
            for stream in range(1, 180, 2):
                hoarder.call(stream, "/tidemark.v1.BrokerService/FetchStream", request)
            async with asyncio.timeout(60):
                await hoarder.closed.wait()
                while await cut_off(one) == before:  # noqa: ASYNC110 - the server counts later, without an event
                    await asyncio.sleep(0.05)
        assert await cut_off(one) == before + 1
        assert len((await client.fetch(partition, 0)).batches) > 3 << 20


async def metrics_of(brokers: Brokers) -> dict[tuple[str, str], float]:
    url = f"http://{brokers.metrics_address(0)}/metrics"
    return scraped(await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read()))


async def cut_off(brokers: Brokers) -> float:
    """The number of connections that the broker ended because of their held bytes."""
    return (await metrics_of(brokers))["tidemark_connections_ended_total", "limit=bytes_per_connection"]


async def produced(brokers: Brokers) -> list[float]:
    """The broker's counters of batches, records and bytes."""
    found = await metrics_of(brokers)
    return [found[f"tidemark_broker_produced_{what}_total", ""] for what in ("batches", "records", "bytes")]


async def test_a_broker_describes_its_log_directories(three: Brokers, controller: HandController) -> None:
    partition = await controller.create_topic("flights-dirs", replicas=[0, 1], min_isr=2)
    other = await controller.create_topic("flights-dirs-other", replicas=[0], min_isr=1)
    async with client_of(three, 0) as client:
        await client.produce(partition, [sample()], [sample()])
    found = {}
    for index in (0, 1, 2):
        address = three.address(three.ids[index])
        (directory,) = await describe_log_dirs(address, topics=["flights-dirs"], partitions=[TopicPartition("no", 1)])
        assert directory.error is None
        assert 0 < directory.free_bytes <= directory.total_bytes
        found[index] = directory.replicas
    assert found[2] == ()
    (leader,), (follower,) = found[0], found[1]
    assert (leader.partition, leader.leader, leader.offset_lag, leader.offline) == (partition, True, 0, False)
    assert (leader.log_start_offset, leader.log_end_offset, leader.high_watermark) == (0, 2 * RECORDS, 2 * RECORDS)
    assert leader.size_bytes == follower.size_bytes == 2 * len(sample())
    assert leader.bytes_in_per_s > 0
    assert (follower.leader, follower.bytes_in_per_s, follower.identity) == (False, 0.0, leader.identity)
    (directory,) = await describe_log_dirs(three.address(three.ids[0]))
    assert {partition, other} <= {replica.partition for replica in directory.replicas}
