# SPDX-License-Identifier: Apache-2.0
"""A batch that is refused for some of its records is split: these fail, the other records are sent again in order."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping

import pytest
from tidemark.client.producing.batching import BATCH_BYTES_MAX, PendingBatch, SendHandle, TableHandle
from tidemark.client.producing.partition_queue import PartitionQueue
from tidemark.client.producing.splitting import split
from tidemark.core.producer_state import ProducerStates
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.checks import ProduceLimits, check_batch, check_produced
from tidemark.record.envelope import Batch, Codec, parse_envelope, stamped
from tidemark.record.payload import from_columns, read_batch

T0 = TopicPartition("t", 0)
LOST = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the stream broke")
NOW_US = 1_800_000_000_000_000
COMPACTED = ProduceLimits(compacted=True)
BOUNDED = ProduceLimits(timestamp_before_max_us=10, timestamp_after_max_us=10)


class World:
    """One queue, and a log that a broker's own checks guard; `handles`: by the value of the record."""

    def __init__(self, limits: ProduceLimits, *, codec: Codec = Codec.NONE, idempotent: bool = True) -> None:
        self.limits = limits
        self.queue = PartitionQueue(T0, "id", max_in_flight=5, idempotent=idempotent, codec=codec)
        self.states = ProducerStates()
        self.log: list[bytes] = []
        self.handles: dict[bytes, SendHandle] = {}
        self.identities = 0
        self.requests = 0

    def put(self, records: Mapping[bytes, tuple[bytes | None, int]]) -> PendingBatch:
        """Put a batch of records; by value: key and timestamp."""
        batch = PendingBatch(T0, opened_s=0, deadline_s=10)
        for value, (key, timestamp_us) in records.items():
            self.handles[value] = batch.add(key, value, timestamp_us, None)
            batch.size_bytes += len(value)
        self.queue.put(batch)
        return batch

    def serve(self, group: list[PendingBatch], *, appends: bool = True, answers: bool = True) -> None:
        """Handle a request as a broker does: it appends all batches of a partition or none."""
        self.requests += 1
        shared = len(group) > 1
        attempts = [batch.attempt for batch in group]
        if not appends:
            for batch, attempt in zip(group, attempts, strict=True):
                self.queue.refused(batch, attempt, LOST, lost=True, shared=shared)
            return
        try:
            offsets = self._append([batch.data or b"" for batch in group])
        except TidemarkError as error:
            for batch, attempt in zip(group, attempts, strict=True):
                self.queue.refused(batch, attempt, error if answers else LOST, lost=not answers, shared=shared)
            return
        for batch, attempt, offset in zip(group, attempts, offsets, strict=True):
            if answers:
                self.queue.acknowledged(batch, attempt, base_offset=offset, append_time_us=-1)
            else:
                self.queue.refused(batch, attempt, LOST, lost=True, shared=shared)

    def _append(self, group: list[bytes]) -> list[int]:
        offsets: list[int] = []
        for data in group:
            check_produced(check_batch(data), self.limits, now_us=NOW_US)
        states = self.states.copy()
        log = list(self.log)
        for data in group:
            known = states.check(parse_envelope(data))
            offsets.append(len(log) if known is None else known.first_offset)
            if known is None:
                written = stamped(Batch(parse_envelope(data), data), base_offset=len(log), leader_epoch=0)
                states.observe(written.envelope)
                log += read_batch(Batch(parse_envelope(data), data)).column(1).to_pylist()
        self.states, self.log = states, log
        return offsets

    def settle(self) -> None:
        """Pass the outcomes to the batches, and a new producer id to the queue if requested."""
        for batch, base_offset, append_time_us, error in self.queue.take_resolved():
            batch.resolve(base_offset, append_time_us, error)
        if self.queue.identity is None and len(self.queue):
            self.identities += 1
            self.queue.identity = ProducerIdentity(self.identities, 0)

    def groups(self, *, apart: Callable[[], bool] = lambda: False) -> list[list[PendingBatch]]:
        """Take every batch that may be sent now, in groups as the sender does; `apart`: another pump sends the next."""
        groups: list[list[PendingBatch]] = []
        while self.queue.can_send:
            again = self.queue.next_goes_again
            if again or not groups or groups[-1][-1].refusal is not None or apart():
                groups.append([])
            batch = self.queue.take(object())
            if batch is not None:
                groups[-1].append(batch)
        return [group for group in groups if group]

    def run(self) -> None:
        """Send everything to a broker that always answers."""
        for _ in range(1000):
            self.settle()
            if not len(self.queue):
                return
            for group in self.groups():
                self.serve(group)
        raise AssertionError("the queue did not drain")

    def failed(self) -> dict[bytes, TidemarkError]:
        errors = {value: handle.exception() for value, handle in self.handles.items() if handle.done()}
        return {value: error for value, error in errors.items() if error is not None}

    def check_offsets(self) -> None:
        """Each acknowledged record is in the log once, at the offset that its handle states, and in order."""
        sent = list(self.handles)
        acknowledged = [value for value, handle in self.handles.items() if handle.exception() is None]
        assert [self.log[self.handles[value].result().offset] for value in acknowledged] == acknowledged
        order = [sent.index(value) for value in self.log]
        assert order == sorted(set(order))


def keyed(*values: bytes) -> dict[bytes, tuple[bytes | None, int]]:
    """Records; those that start with "bad" have no key."""
    return {value: (None if value.startswith(b"bad") else b"k", NOW_US) for value in values}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_record_without_a_key_fails_alone_and_its_error_names_it(codec: Codec) -> None:
    world = World(COMPACTED, codec=codec)
    world.put(keyed(b"0", b"1", b"bad", b"3"))
    world.run()
    assert world.log == [b"0", b"1", b"3"]
    (error,) = world.failed().values()
    assert error.code is ErrorCode.NULL_KEY
    assert "record 2 of a batch of 4" in error.message
    assert (error.metadata["records"], error.metadata["in_doubt"]) == ("2", "False")
    assert [world.handles[value].result().offset for value in (b"0", b"1", b"3")] == [0, 1, 2]
    assert world.requests == 2


def test_batches_behind_a_refused_one_keep_their_order_and_the_producer_id() -> None:
    world = World(COMPACTED)
    for number in range(5):
        world.put(keyed(b"%d" % number, b"bad%d" % number))
    world.settle()
    for batch in [batch for group in world.groups() for batch in group]:
        world.serve([batch])
    world.run()
    assert world.log == [b"0", b"1", b"2", b"3", b"4"]
    assert set(world.failed()) == {b"bad%d" % number for number in range(5)}
    assert world.identities == 1


def test_a_batch_behind_whose_attempt_was_lost_is_sent_again_under_another_producer_id() -> None:
    """The lost attempt may arrive late: under the same producer id, the log could have the records twice."""
    world = World(COMPACTED)
    world.put(keyed(b"0", b"bad", b"1"))
    world.put(keyed(b"2"))
    world.settle()
    first, second = [batch for group in world.groups() for batch in group]
    late = second.data or b""
    world.serve([first])
    world.serve([second], appends=False)
    world.settle()
    assert world.identities == 2
    for group in world.groups():
        world.serve(group)
        with pytest.raises(TidemarkError):
            world._append([late])
    world.run()
    assert world.log == [b"0", b"1", b"2"]


def test_a_batch_in_doubt_is_not_split() -> None:
    """The batch may be in the log, so its records must not be sent under other sequences."""
    world = World(COMPACTED)
    world.put(keyed(b"0", b"bad"))
    world.settle()
    world.serve(world.groups()[0], appends=False)
    world.run()
    assert world.log == []
    assert [error.metadata["in_doubt"] for error in world.failed().values()] == ["True", "True"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_too_far_ahead_fails_alone(codec: Codec) -> None:
    world = World(BOUNDED, codec=codec)
    world.put({b"0": (None, NOW_US), b"bad": (None, NOW_US + 11), b"1": (None, NOW_US + 10)})
    world.run()
    assert world.log == [b"0", b"1"]
    assert {value: error.code for value, error in world.failed().items()} == {b"bad": ErrorCode.INVALID_TIMESTAMP}


def test_a_batch_whose_records_are_all_too_old_fails_after_one_request() -> None:
    world = World(BOUNDED)
    world.put({b"%d" % number: (None, NOW_US - 11 - number) for number in range(1000)})
    world.run()
    assert len(world.failed()) == 1000
    assert world.requests == 1
    assert "records 0 to 999 of a batch of 1000" in world.failed()[b"7"].message


def test_a_record_too_large_fails_alone_and_a_large_batch_becomes_smaller_ones() -> None:
    world = World(ProduceLimits(max_message_bytes=2000))
    world.put({b"%d" % number * (5000 if number == 5 else 100): (None, NOW_US) for number in range(9)})
    world.run()
    (error,) = world.failed().values()
    assert error.code is ErrorCode.BATCH_TOO_LARGE
    assert "record 5 of a batch of 9" in error.message
    assert "max.message.bytes is 2000" in error.message
    assert len(world.log) == 8
    world.check_offsets()


def test_a_batch_above_every_limit_of_a_topic_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message above the limit of gRPC would end the connection, each time that the producer sends the batch again."""
    world = World(ProduceLimits(max_message_bytes=BATCH_BYTES_MAX))
    rows = from_columns([None] * 3, [b"0", b"1" * BATCH_BYTES_MAX, b"2"], [NOW_US] * 3)
    world.queue.put(batch := PendingBatch(T0, opened_s=0, deadline_s=10, rows=rows))
    sent: list[int] = []
    serve = world.serve
    monkeypatch.setattr(
        world, "serve", lambda group: (sent.extend(len(one.data or b"") for one in group), serve(group))
    )
    world.run()
    _, refused = TableHandle([batch]).outcomes()
    assert [(count, error.code) for count, error in refused] == [(1, ErrorCode.BATCH_TOO_LARGE)]
    assert "record 1 of a batch of 3" in refused[0][1].message
    assert world.log == [b"0", b"2"]
    assert max(sent) < BATCH_BYTES_MAX


def test_any_error_that_names_records_fails_these_only() -> None:
    world = World(ProduceLimits())
    world.put(keyed(b"0", b"1", b"2", b"3", b"4"))
    world.settle()
    ((batch,),) = world.groups()
    named = TidemarkError(ErrorCode.INVALID_PAYLOAD, "of a later version", {"records": "1-2,4"})
    world.queue.refused(batch, batch.attempt, named)
    world.run()
    assert world.log == [b"0", b"3"]
    assert {value: error.metadata["records"] for value, error in world.failed().items()} == {
        b"1": "1-2",
        b"2": "1-2",
        b"4": "4",
    }


@pytest.mark.parametrize("named", ["", "x", "5", "3-1", "-1", "0-9999999999", "1,"])
def test_an_error_that_names_no_record_of_the_batch_fails_the_batch(named: str) -> None:
    world = World(ProduceLimits())
    world.put(keyed(b"0", b"1"))
    world.put(keyed(b"2"))
    world.settle()
    for group in world.groups():
        for batch in group:
            error = TidemarkError(ErrorCode.INVALID_PAYLOAD, "odd", {"records": named})
            after = TidemarkError(ErrorCode.OUT_OF_ORDER_SEQUENCE, "gap")
            world.queue.refused(batch, batch.attempt, error if batch.count == 2 else after)
    world.run()
    assert (set(world.failed()), world.log) == ({b"0", b"1"}, [b"2"])


def test_a_batch_that_cannot_be_built_for_one_record_is_split() -> None:
    world = World(ProduceLimits())
    batch = world.put(keyed(b"0", b"1", b"2"))
    batch.headers = [None, [("name", 7)], None]  # type: ignore[list-item]  # changed after send
    world.run()
    assert (set(world.failed()), world.log) == ({b"1"}, [b"0", b"2"])
    assert "record 1 of a batch of 3" in world.failed()[b"1"].message


def test_a_table_states_each_piece_of_a_split_batch() -> None:
    world = World(COMPACTED)
    rows = from_columns([b"k", None, None, b"k"], [b"0", b"1", b"2", b"3"], [NOW_US] * 4)
    batch = PendingBatch(T0, opened_s=0, deadline_s=10, rows=rows)
    size_bytes = batch.size_bytes
    world.queue.put(batch)
    released = 0
    for _ in range(10):
        released += sum(resolved.batch.size_bytes for resolved in world.queue._resolved)
        world.settle()
        for group in world.groups():
            world.serve(group)
    acknowledged, refused = TableHandle([batch]).outcomes()
    assert [(one.base_offset, one.record_count) for one in acknowledged] == [(0, 1), (1, 1)]
    assert [(count, error.code) for count, error in refused] == [(2, ErrorCode.NULL_KEY)]
    assert released == size_bytes


def test_without_idempotence_pieces_and_later_batches_are_sent_as_well() -> None:
    world = World(COMPACTED, idempotent=False)
    world.put(keyed(b"0", b"bad", b"1"))
    world.put(keyed(b"2"))
    world.run()
    assert sorted(world.log) == [b"0", b"1", b"2"]
    assert set(world.failed()) == {b"bad"}


SMALL = ProduceLimits(max_message_bytes=900)


def live(seed: int, limits: ProduceLimits) -> None:
    """Send good and bad records to a broker that loses attempts and answers; lost attempts may arrive late."""
    world = World(limits)
    draw = random.Random(seed)
    for start in range(0, 150, 6):
        names = [b"%d" % number for number in range(start, start + draw.randint(1, 3))]
        bad = [name for name in names if draw.random() < 0.2]
        padding = b"" if limits.compacted else b"." * 1000
        world.put(keyed(*(b"bad" + name + padding if name in bad else name for name in names)))
    late: list[bytes] = []
    for _ in range(2000):
        world.settle()
        if not len(world.queue):
            break
        for group in world.groups(apart=lambda: draw.random() < 0.7):
            fate = draw.random()
            if fate < 0.2:
                late += [batch.data or b"" for batch in group]
            world.serve(group, appends=fate >= 0.2, answers=fate < 0.9)
            while late and draw.random() < 0.3:
                with contextlib.suppress(TidemarkError):
                    world._append([late.pop()])
    assert all(handle.done() for handle in world.handles.values())
    world.check_offsets()
    for value, error in world.failed().items():
        assert value.startswith(b"bad") or error.metadata["in_doubt"] == "True", (value, error)


@pytest.mark.parametrize("limits", [COMPACTED, SMALL], ids=["keys", "sizes"])
@pytest.mark.parametrize("seed", range(40))
def test_good_records_are_in_the_log_once_and_in_order_after_any_loss(seed: int, limits: ProduceLimits) -> None:
    live(seed, limits)


def _keeps_the_producer_id(queue: PartitionQueue, refused: PendingBatch) -> None:
    queue._next_sequence = refused.base_sequence
    queue._window.clear()
    queue._forget_attempts()


def _puts_pieces_behind(queue: PartitionQueue, batch: PendingBatch, error: TidemarkError) -> None:
    for part, refusal in split(batch, error):
        if refusal is None:
            queue.put(part)
        else:
            queue._resolve(part, queue._error(part, refusal.code, refusal.message, refusal.metadata))


@pytest.mark.parametrize(
    ("method", "defect"),
    [
        ("_take_sequences_back", _keeps_the_producer_id),
        ("_replace", _puts_pieces_behind),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_lost_and_late_attempts_show_a_defect_in_the_split(
    monkeypatch: pytest.MonkeyPatch, method: str, defect: Callable[..., None]
) -> None:
    monkeypatch.setattr(PartitionQueue, method, defect)
    with pytest.raises(AssertionError):
        _live_all()


def _live_all() -> None:
    for seed in range(40):
        live(seed, COMPACTED)
