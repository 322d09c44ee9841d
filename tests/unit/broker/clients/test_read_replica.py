# SPDX-License-Identifier: Apache-2.0
"""ReadReplica: the contents of a broker's own replica, with all CRCs checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from tidemark.broker.clients.read_replica import ReplicaReads
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns
from tidemark.v1 import replica_reads_pb2 as pb

from tests.fakes.repairs import FakeRepairs
from tests.refusals import raises_code

FLIGHTS = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("id", "inc")


def batches(count: int) -> list[bytes]:
    data = bytes(build_batch(from_columns(None, [b"a", b"b"], [1, 2])))
    whole = Batch(parse_envelope(data), data)
    return [bytes(stamped(whole, base_offset=2 * number, leader_epoch=1).data) for number in range(count)]


class Log:
    """A log from offset 0, with two records in each batch."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self.data = list(data)

    def read(self, offset: Offset, *, end_offset: Offset, max_bytes: int) -> bytes:
        wanted = self.data[offset // 2 : end_offset // 2]
        return b"".join(wanted[: max(1, max_bytes // len(self.data[0]))])


class Broker:
    """A core and its logs: one replica with offsets 2 to 8 (exclusive)."""

    def __init__(self) -> None:
        self.view: ReplicaView | None = ReplicaView(
            FLIGHTS,
            IDENTITY,
            "follower",
            BrokerId(1),
            LeaderEpoch(4),
            Offset(2),
            Offset(8),
            Offset(6),
            (),
            (),
            1,
            0,
        )
        self.found: Log | None = Log(batches(4))
        self.repairs = FakeRepairs()

    def replica(self, partition: TopicPartition) -> ReplicaView | None:
        return self.view if partition == FLIGHTS else None

    def log(self, partition: TopicPartition) -> Log | None:
        return self.found


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def reads(broker: Broker) -> Iterator[ReplicaReads]:
    with ThreadPoolExecutor(1) as pool:
        yield ReplicaReads(cast(BrokerCore, broker), cast(LogThreads, broker), pool, broker.repairs)


def ask(**fields: Any) -> pb.ReadReplicaRequest:
    return pb.ReadReplicaRequest(**{"topic": "flights", "end_offset": 100, **fields})


async def test_the_read_returns_whole_batches_within_the_log_and_the_offsets_of_the_replica(
    reads: ReplicaReads,
) -> None:
    answer = await reads.read(ask())
    assert answer.batches == b"".join(batches(4)[1:])
    assert (answer.log_start_offset, answer.log_end_offset, answer.high_watermark) == (2, 8, 6)
    assert (answer.leader_epoch, answer.leader, answer.clean_offset) == (4, False, 0)


async def test_the_read_returns_envelopes_only_and_at_most_max_bytes_of_batches(reads: ReplicaReads) -> None:
    answer = await reads.read(ask(envelopes_only=True, start_offset=4))
    assert answer.batches == b"".join(one[:ENVELOPE_BYTES] for one in batches(4)[2:])
    assert len((await reads.read(ask(max_bytes=1))).batches) == len(batches(1)[0])
    assert (await reads.read(ask(start_offset=4, end_offset=4))).batches == b""


async def test_a_batch_damaged_on_disk_is_refused_with_its_offset(broker: Broker, reads: ReplicaReads) -> None:
    assert broker.found is not None
    damaged = bytearray(broker.found.data[2])
    damaged[-1] ^= 1
    broker.found.data[2] = bytes(damaged)
    for envelopes_only in (True, False):
        with pytest.raises(TidemarkError) as refused:
            await reads.read(ask(envelopes_only=envelopes_only))
        assert (refused.value.code, refused.value.metadata) == (ErrorCode.CORRUPT_BATCH, {"offset": "4"})
    assert len((await reads.read(ask(end_offset=4))).batches) == len(batches(1)[0])
    assert (broker.repairs.suspected, broker.repairs.asked) == ([4, 4], [])


async def test_a_damaged_batch_is_repaired_before_the_answer_if_the_request_says_so(broker: Broker) -> None:
    log = broker.found
    assert log is not None
    log.data[1], log.data[3] = log.data[1][:-1] + b"!", log.data[3][:-1] + b"!"

    def heal(offset: int) -> None:
        log.data[offset // 2] = batches(4)[offset // 2]

    repairs = FakeRepairs(heal)
    with ThreadPoolExecutor(1) as pool:
        reads = ReplicaReads(cast(BrokerCore, broker), cast(LogThreads, broker), pool, repairs)
        answer = await reads.read(ask(repair=True))

    assert answer.batches == b"".join(batches(4)[1:])
    assert (list(answer.repaired_offsets), repairs.asked) == ([2, 6], [2, 6])


async def test_damage_without_a_good_copy_is_refused_also_if_a_repair_was_requested(
    broker: Broker, reads: ReplicaReads
) -> None:
    assert broker.found is not None
    broker.found.data[1] = broker.found.data[1][:-1] + b"!"

    with pytest.raises(TidemarkError, match="offset 2 is damaged"):
        await reads.read(ask(repair=True))

    assert broker.repairs.asked == [2]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partition": 1}, ErrorCode.NOT_A_REPLICA),
        ({"topic_id": "other"}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"topic_id": "id", "incarnation": "other"}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
async def test_another_partition_or_incarnation_is_refused(
    reads: ReplicaReads, fields: dict[str, Any], code: ErrorCode
) -> None:
    with raises_code(code):
        await reads.read(ask(**fields))


async def test_a_failed_log_and_a_closed_log_give_different_errors(broker: Broker, reads: ReplicaReads) -> None:
    assert broker.view is not None
    broker.found = None
    with raises_code(ErrorCode.OFFSET_NOT_AVAILABLE):
        await reads.read(ask())
    broker.view = broker.view._replace(role="offline")
    with raises_code(ErrorCode.REPLICA_OFFLINE):
        await reads.read(ask())
