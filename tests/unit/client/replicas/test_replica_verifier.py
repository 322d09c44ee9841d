# SPDX-License-Identifier: Apache-2.0
"""Comparison of replicas: equal, different, and permitted differences (LOG-MATCH, rule L1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from tidemark.client.replicas.comparison import Piece, difference, pieces_of
from tidemark.client.replicas.reader import READ_BYTES, BrokerAddress, Stretch
from tidemark.client.replicas.verifier import PartitionVerifier, Verified
from tidemark.core.cluster_view import PartitionView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Batch, Codec, parse_envelope, seal, stamped
from tidemark.record.payload import COMPACTED_SCHEMA, build_batch, encode_rows, from_columns
from tidemark.record.typed.batch import build_typed_batch, encode_stored, read_stored

from tests.unit.record.typed.samples import flights, three_flights

FLIGHTS = TopicPartition("flights", 0)


def batch(base: int, *keys: str, value: str = "v", epoch: int = 1) -> Batch:
    """Make a batch as a leader stamps it, with a record for each key."""
    rows = from_columns([key.encode() for key in keys], [value.encode()] * len(keys), list(range(len(keys))))
    data = bytes(build_batch(rows))
    return stamped(Batch(parse_envelope(data), data), base_offset=base, leader_epoch=epoch)


def cleaned(whole: Batch, *deltas: int) -> Batch:
    """Clean a batch: keep the records at these places."""
    rows = pa.ipc.read_record_batch(pa.py_buffer(whole.data).slice(ENVELOPE_BYTES), from_columns([], [], []).schema)
    kept = rows.take(pa.array(list(deltas), pa.int64()))
    columns = [*kept.columns, pa.array(list(deltas), pa.uint32())]
    payload = encode_rows(pa.RecordBatch.from_arrays(columns, schema=COMPACTED_SCHEMA), whole.envelope.codec)  # type: ignore[arg-type]
    envelope = whole.envelope._replace(attributes=Attributes.COMPACTED, record_count=len(deltas))
    data = seal(envelope, payload)
    return Batch(parse_envelope(data), data)


@dataclass
class Replica:
    """One replica, as its broker returns it."""

    batches: list[Batch]
    leader: bool = False
    high_watermark: int = -1
    clean_offset: int = 0
    log_start: int = 0
    epoch: int = 1
    damaged_at: int | None = None
    on_read: Callable[[Replica, int], None] | None = None
    asked: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].envelope.next_offset if self.batches else self.log_start


class Brokers:
    """A fake ReplicaReader, with at most two batches in a response."""

    def __init__(self, replicas: dict[str, Replica]) -> None:
        self.replicas = replicas

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
        assert (partition, identity) == (FLIGHTS, ReplicaIdentity("id", "inc"))
        replica = self.replicas.get(broker.address)
        if replica is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{broker.address} does not answer")
        if replica.on_read is not None:
            replica.on_read(replica, start)
        replica.asked.append((start, envelopes_only))
        found = [
            one
            for one in replica.batches
            if one.envelope.next_offset > max(start, replica.log_start) and one.envelope.next_offset <= end
        ][: 1 if max_bytes == 1 else 2]
        for one in found:
            if one.envelope.base_offset == replica.damaged_at:
                offset = one.envelope.base_offset
                raise TidemarkError(ErrorCode.CORRUPT_BATCH, "damaged on disk", {"offset": str(offset)})
        data = b"".join(one.data[:ENVELOPE_BYTES] if envelopes_only else one.data for one in found)
        pieces = tuple(pieces_of(data, envelopes_only=envelopes_only))
        high_watermark = replica.end if replica.high_watermark < 0 else replica.high_watermark
        return Stretch(
            replica.log_start, replica.end, high_watermark, replica.clean_offset, replica.epoch, replica.leader, pieces
        )


LOG = [batch(0, "a", "b"), batch(2, "a"), batch(3, "c", "a"), batch(5, "b"), batch(6, "d", "d")]


def verify(
    *replicas: Replica | None, isr: Sequence[int] | None = None, whole: bool = False, compacted: bool = False
) -> Verified:
    """Verify replicas of brokers 0, 1, ...; None: the broker is offline."""
    brokers = {f"host:{number}": replica for number, replica in enumerate(replicas) if replica is not None}
    ids = tuple(map(BrokerId, range(len(replicas))))
    view = PartitionView(0, BrokerId(0), LeaderEpoch(1), ids, tuple(map(BrokerId, isr)) if isr else ids, "inc")
    addresses = {int(number): BrokerAddress(f"host:{number}", ()) for number in ids}
    reads = Brokers(brokers)
    return PartitionVerifier(reads, FLIGHTS, "id", view, addresses, compacted=compacted, whole_bytes=whole).run()


def changed(log: list[Batch], number: int, other: Batch) -> list[Batch]:
    return [*log[:number], other, *log[number + 1 :]]


def test_equal_replicas_are_recognised_by_their_envelopes() -> None:
    leader, one, two = Replica(LOG, leader=True), Replica(LOG), Replica(LOG)
    found = verify(leader, one, two)
    assert (found.differences, found.away, found.behind) == ([], {}, {})
    assert (found.start, found.end, found.batches, found.compared) == (0, 8, 5, [0, 1, 2])
    assert all(envelopes_only for replica in (leader, one, two) for _, envelopes_only in replica.asked)
    assert found.read_bytes == 3 * sum(len(one.data) for one in LOG)


def test_differing_record_with_a_valid_crc_is_found() -> None:
    other = batch(3, "c", "a", value="w")
    found = verify(Replica(LOG, leader=True), Replica(LOG), Replica(changed(LOG, 2, other)))
    (difference,) = found.differences
    assert difference[:3] == (3, 2, 0)
    assert "crc" in difference.sentence


def test_differing_bytes_with_equal_crcs_are_found_with_whole_bytes() -> None:
    forged = bytearray(LOG[2].data)
    forged[-1] ^= 1
    other = Batch(LOG[2].envelope, bytes(forged))
    assert verify(Replica(LOG, leader=True), Replica(changed(LOG, 2, other))).differences == []
    (difference,) = verify(Replica(LOG, leader=True), Replica(changed(LOG, 2, other)), whole=True).differences
    assert "bytes differ" in difference.sentence


def test_batch_of_another_epoch_is_a_difference() -> None:
    (difference,) = verify(Replica(LOG, leader=True), Replica(changed(LOG, 1, batch(2, "a", epoch=0)))).differences
    assert (difference.offset, difference.broker) == (2, 1)
    assert "leader_epoch" in difference.sentence


def test_missing_batch_is_a_difference_on_either_side() -> None:
    short = [*LOG[:2], *LOG[3:]]
    (of_follower,) = verify(Replica(LOG, leader=True), Replica(short)).differences
    (of_leader,) = verify(Replica(short, leader=True), Replica(LOG)).differences
    assert (of_follower.offset, of_leader.offset) == (3, 3)
    assert "broker 1 has no batch" in of_follower.sentence
    assert "broker 0 has no batch" in of_leader.sentence


def test_records_above_the_high_watermark_are_not_compared() -> None:
    leader = Replica([*LOG, batch(8, "x")], leader=True, high_watermark=8)
    assert verify(leader, Replica([*LOG, batch(8, "y")])).differences == []


def test_out_of_sync_follower_is_compared_up_to_its_high_watermark() -> None:
    stray = Replica([*LOG[:3], batch(5, "other")], high_watermark=5)
    found = verify(Replica(LOG, leader=True), stray, isr=[0])
    assert (found.differences, found.behind) == ([], {1: 5})
    (difference,) = verify(Replica(LOG, leader=True), stray).differences
    assert difference.offset == 5


def test_offline_replica_is_reported_and_others_are_compared() -> None:
    found = verify(Replica(LOG, leader=True), None, Replica(changed(LOG, 0, batch(0, "z", "b"))))
    assert (list(found.away), found.compared) == ([1], [0, 2])
    assert [one.broker for one in found.differences] == [2]


def test_replicas_are_compared_without_the_leader() -> None:
    found = verify(None, Replica(LOG), Replica(changed(LOG, 4, batch(6, "d", "e")), high_watermark=7))
    assert (list(found.away), found.compared) == ([0], [1, 2])
    assert found.behind == {2: 7}
    assert found.differences == []


def test_disk_damage_is_a_difference_of_that_broker() -> None:
    found = verify(Replica(LOG, leader=True, damaged_at=5), Replica(LOG), Replica(LOG))
    assert [one[:3] for one in found.differences] == [(5, 0, -1)]
    assert found.compared == [1, 2]


def test_records_are_compared_below_a_clean_offset() -> None:
    compacted = [cleaned(LOG[0], 1), cleaned(LOG[2], 0), *LOG[3:]]
    leader = Replica(LOG, leader=True)
    assert verify(leader, Replica(compacted, clean_offset=5)).differences == []
    assert verify(Replica(compacted, leader=True, clean_offset=5), Replica(LOG)).differences == []
    other = [cleaned(batch(0, "a", "b", value="w"), 1), *compacted[1:]]
    (difference,) = verify(leader, Replica(other, clean_offset=5)).differences
    assert difference.offset == 0
    assert "the records at offset 1 differ in value" in difference.sentence


def test_compacted_batch_is_recognised_without_a_clean_offset() -> None:
    compacted = [cleaned(LOG[0], 1), *LOG[1:]]
    assert verify(Replica(LOG, leader=True), Replica(compacted)).differences == []


def test_hole_above_the_clean_offsets_is_a_difference() -> None:
    compacted = [cleaned(LOG[0], 1), *LOG[2:3], *LOG[4:]]
    (difference,) = verify(Replica(LOG, leader=True), Replica(compacted, clean_offset=5)).differences
    assert difference.offset == 5


def test_hole_of_a_running_cleaner_is_reported_without_a_difference() -> None:
    half_way = [cleaned(LOG[0], 1), *LOG[2:]]
    found = verify(Replica(LOG, leader=True), Replica(half_way), compacted=True)
    assert (found.differences, found.holes) == ([], {1: [2]})
    other = [*half_way[:-1], batch(6, "d", "e")]
    (difference,) = verify(Replica(LOG, leader=True), Replica(other), compacted=True).differences
    assert difference.offset == 6


def test_cleaning_between_two_reads_is_no_difference() -> None:
    def clean(replica: Replica, start: int) -> None:
        if start >= 3:
            replica.clean_offset = 6

    follower = Replica([*LOG[:3], *LOG[4:]], on_read=clean)
    assert verify(Replica(LOG, leader=True), follower).differences == []


def test_deletion_between_two_reads_is_no_difference() -> None:
    def delete(replica: Replica, start: int) -> None:
        if start:
            replica.log_start = 6

    leader = Replica(LOG, leader=True)
    found = verify(leader, Replica(LOG, on_read=delete))
    assert (found.differences, found.batches) == ([], 5)


def test_replica_truncated_between_two_reads_is_behind() -> None:
    def cut(replica: Replica, start: int) -> None:
        if start:
            replica.batches = LOG[:3]

    found = verify(Replica(LOG, leader=True), Replica(LOG, on_read=cut))
    assert (found.differences, found.behind) == ([], {1: 5})


def test_single_replica_has_no_differences() -> None:
    found = verify(Replica(LOG, leader=True))
    assert (found.compared, found.batches, found.differences) == ([0], 0, [])


def cleaned_flights(*deltas: int, delay: int = 5, codec: Codec = Codec.NONE) -> Piece:
    """A typed batch, cleaned so that the rows at these places remain; the first row has that delay."""
    rows = three_flights()
    delays = pa.array([delay, *rows.column("delay").to_pylist()[1:]], pa.int32())
    rows = rows.set_column(2, rows.schema.field(2), delays)
    whole = build_typed_batch(
        rows, flights(), flags=0, timestamp_us=0, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1
    )
    batch = Batch(parse_envelope(whole), whole)
    stays = pa.array([number in deltas for number in range(3)])
    payload = encode_stored(read_stored(batch, flights()), pa.array(range(3), pa.uint32()), stays, codec)
    attributes = batch.envelope.attributes | Attributes.COMPACTED
    data = seal(batch.envelope._replace(attributes=attributes, record_count=len(deltas)), payload)
    return Piece(parse_envelope(data), data)


def test_cleaned_batches_of_a_typed_topic_are_compared_row_by_row() -> None:
    first, second = cleaned_flights(0, 1), cleaned_flights(0, 2, codec=Codec.LZ4)
    layouts = {1: flights()}
    for known in (layouts, {}):
        assert difference(first, second, cleaned=True, layouts=known) == ""
    other = cleaned_flights(0, 2, delay=6)
    assert difference(first, other, cleaned=True, layouts=layouts) == "the records at offset 0 differ in column delay"
    assert difference(first, other, cleaned=True) == "", "without the schema only offsets and times are compared"
