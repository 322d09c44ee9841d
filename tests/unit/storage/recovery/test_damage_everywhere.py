# SPDX-License-Identifier: Apache-2.0
"""Damage to every file of a log directory: flips, truncation at each of the last 200 bytes, deletion (rule T5).

A start opens everything before the damage, or marks the replica damaged and keeps its whole batches, or refuses with
the remedy. A start never serves a wrong byte, and never drops valid records behind damage without a mark.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tidemark.model import BrokerEpoch, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.record.envelope import ALIGNMENT_BYTES, parse_envelope
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.segment_swap import commit_swap

from tests.crash.disk import Image, read_image, write_image
from tests.unit.storage.batches import IDENTITY, PARTITION, checked, lead, memory_directory, open_one
from tests.unit.storage.log.test_cleaner import keyed

CONFIGS = {"segment.bytes": "3000", "index.interval.bytes": "600"}
EMPTY = TopicPartition("flights", 1)
EMPTY_IDENTITY = ReplicaIdentity("topic-one", "incarnation-two")
TAIL_BYTES = 200
REGIONS_OF_LOGS, REGIONS = 24, 8
LAST_OFFSET_DELTA_END = 36
MOST = 100
"""More offsets than any of the logs ever had."""


class State(NamedTuple):
    """A directory left by a process, and the content of its log: bytes by base offset, ends exclusive."""

    image: Image
    batches: dict[int, bytes]
    end: int
    recovery_point: int

    def __repr__(self) -> str:
        """Hypothesis formats its arguments for each example."""
        return f"<{len(self.image)} files, {len(self.batches)} batches up to {self.end}>"


class Found(NamedTuple):
    end: int
    damaged: str | None
    fresh: bool
    served: dict[int, bytes]
    refused: bool


def appended(log: PartitionLog, count: int, *, epoch: int) -> None:
    rng = random.Random(epoch)
    for number in range(count):
        sequence = int(log.log_end_offset) * 2
        rows = [(b"k%d" % rng.randrange(5), rng.randbytes(60)) for _ in range(2)]
        producer = {"producer_id": 4, "producer_epoch": 0, "base_sequence": sequence // 2} if number % 2 else {}
        lead(log, keyed(list(rows), **producer), epoch=epoch)


def raw(log: PartitionLog) -> dict[int, bytes]:
    data = b"".join(segment.log_path.read_bytes()[: segment.size_bytes] for segment in log.segments.all)
    return {batch.envelope.base_offset: bytes(batch.data) for batch in check_batches(data)}


def left_behind(path: Path, how: str) -> State:
    """A log of some segments and epochs, cleaned, checkpointed in its middle, truncated; and an empty replica."""
    logs = open_one(path)
    logs.confirm_registration(BrokerEpoch(1), "boot")
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    logs.open(EMPTY, EMPTY_IDENTITY, CONFIGS)
    appended(log, 12, epoch=0)
    clean_log(log, log.log_end_offset, CleanerSettings(), now_us=10_000_000, pace=lambda _: None)
    logs.checkpoint({PARTITION: Offset(20)})
    recovery_point = int(log.log_end_offset)
    if how == "swapping":
        cut_short(log)
    else:
        appended(log, 6, epoch=1)
    if how == "cut":
        log.truncate(Offset(22))
        log.flush()
        recovery_point = 22
        appended(log, 3, epoch=2)
    batches, end = raw(log), int(log.log_end_offset)
    if how == "stopped":
        recovery_point = end
        logs.close_clean(BrokerEpoch(1), {PARTITION: log.log_end_offset})
    logs.close()
    return State(read_image(path), batches, end, recovery_point)


def cut_short(log: PartitionLog) -> None:
    """A cleaning, killed as soon as its first swap is committed."""
    appended(log, 12, epoch=1)

    class Killed(BaseException):
        pass

    def killed(cleaned: Path) -> None:
        commit_swap(cleaned)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.storage.log.cleaning.commit_swap", killed)
        with pytest.raises(Killed):
            clean_log(log, log.log_end_offset, CleanerSettings(), now_us=10_000_000, pace=lambda _: None)


STATES = ("killed", "stopped", "cut")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with memory_directory() as made:
        yield made


@pytest.fixture(scope="module")
def states(directory: Path) -> dict[str, State]:
    return {how: left_behind(directory / how, how) for how in STATES}


def look(path: Path) -> Found:
    """The result of a start, and the batches it serves, which passed the checks of a reader."""
    logs = open_one(path)
    try:
        log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
        logs.open(EMPTY, EMPTY_IDENTITY, CONFIGS)
        served: dict[int, bytes] = {}
        refused = False
        offset, end = int(log.log_start_offset), int(log.log_end_offset)
        assert end <= MOST, "the log end is past every append"
        while offset < end:
            try:
                data = log.read(Offset(offset), end_offset=end, max_bytes=1)
                assert data
                (batch,) = checked(data)
            except TidemarkError as error:
                assert error.code in (ErrorCode.STORAGE_ERROR, ErrorCode.CORRUPT_BATCH, ErrorCode.INVALID_BATCH)  # noqa: PT017
                refused, offset = True, offset + 1
                continue
            served[batch.envelope.base_offset] = bytes(batch.data)
            offset = max(offset + 1, batch.envelope.next_offset)
        return Found(end, recovered.damaged, recovered.fresh, served, refused)
    finally:
        logs.close()


def tried(directory: Path, state: State, name: str, content: bytes | None) -> None:
    """Damage one file (None: delete it), start, and compare the result with the former content."""
    image = dict(state.image)
    if content is None:
        del image[name]
    else:
        image[name] = content
    place = directory / "spoiled"
    write_image(image, place)
    try:
        judged(state, name, place, b"".join(content for content in image.values() if content is not None))
    finally:
        shutil.rmtree(place)


def judged(state: State, name: str, place: Path, whole: bytes) -> None:
    refusal: TidemarkError | None = None
    try:
        found = look(place)
    except TidemarkError as error:
        refusal = error
    if refusal is not None:
        assert name == "meta.json", refusal
        assert "restore the file" in refusal.message.lower()
        return
    assert all(state.batches.get(base) == data for base, data in found.served.items()), "a wrong byte was served"
    missing = set(state.batches) - set(found.served)
    if not missing:
        return
    assert found.damaged or found.refused or torn(state, missing, whole), f"{len(missing)} batches dropped quietly"
    kept = b"".join(content for content in read_image(place).values() if content is not None)
    gone = [base for base in missing if state.batches[base] in whole and state.batches[base] not in kept]
    assert not gone, f"whole batches at {gone} were deleted"


def torn(state: State, missing: set[int], whole: bytes) -> bool:
    """Only the end of the log is lost: no checkpoint covered the end, and no complete batch of it remained."""
    tail = set(sorted(state.batches)[-len(missing) :])
    return missing == tail and min(missing) >= state.recovery_point and not any(state.batches[b] in whole for b in tail)


def small(name: str) -> bool:
    return not name.endswith((".log", ".swap"))


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0x21]) + content[position + 1 :]


def files(state: State, wanted: Callable[[str], bool]) -> list[tuple[str, bytes]]:
    return [(name, content) for name, content in state.image.items() if content is not None and wanted(name)]


@pytest.mark.parametrize("how", STATES)
def test_all_kinds_of_files_are_there_to_be_damaged(states: dict[str, State], how: str) -> None:
    names = {Path(name).name for name, _ in files(states[how], lambda name: True)}
    assert names >= {
        ".lock",
        "meta.json",
        "incarnation.json",
        "empty-replicas",
        "recovery-point-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "partition.json",
        "leader-epoch-checkpoint",
        "cleaner-offset-checkpoint",
        *({"clean-shutdown.json"} if how == "stopped" else set()),
        *({"cut-point.json"} if how == "cut" else set()),
    }
    assert {Path(name).suffix for name in names} >= {".log", ".index", ".timeindex", ".snapshot"}


@pytest.mark.parametrize("how", STATES)
def test_a_flip_in_any_region_of_any_file(directory: Path, states: dict[str, State], how: str) -> None:
    for name, content in files(states[how], lambda name: True):
        regions = REGIONS if small(name) else REGIONS_OF_LOGS
        for position in range(0, len(content), max(1, len(content) // regions)):
            tried(directory, states[how], name, flipped(content, position))


@pytest.mark.parametrize("how", STATES)
def test_truncation_at_each_of_the_last_bytes_of_any_file(directory: Path, states: dict[str, State], how: str) -> None:
    for name, content in files(states[how], lambda name: True):
        step = 7 if small(name) or how != "killed" else 1
        for length in range(max(0, len(content) - TAIL_BYTES), len(content), step):
            tried(directory, states[how], name, content[:length])
        tried(directory, states[how], name, b"")


def spoils(content: bytes) -> Iterator[bytes | None]:
    yield from (flipped(content, position) for position in range(0, len(content), max(1, len(content) // 40)))
    yield from (content[:length] for length in range(0, len(content), 40))
    yield None


def test_a_damaged_replacement_does_not_replace_its_source_segments(directory: Path) -> None:
    """A cleaning was killed after its swap was committed: a start finishes it, unless the new segment is damaged."""
    state = left_behind(directory / "swapping", "swapping")
    ((name, content),) = files(state, lambda name: name.endswith(".swap"))
    for spoiled in spoils(content):
        tried(directory, state, name, spoiled)


Spot = tuple[int, int, int]
"""Position in a log, number of bytes, and their new content: 0 zeros, 1 garbage, 2 other bytes of the same file."""


def worn(content: bytes, spots: list[Spot], length: int) -> bytes:
    spoiled = bytearray(content)
    for at, count, kind in spots:
        at %= max(1, len(content))
        if kind == 2:
            at -= at % ALIGNMENT_BYTES  # batches are aligned: a whole batch at another aligned position is valid
        count = min(count, len(content) - at)
        other = (at * 7) % max(1, len(content) - count)
        other -= other % ALIGNMENT_BYTES
        spoiled[at : at + count] = (bytes(count), random.Random(at).randbytes(count), content[other : other + count])[
            kind
        ]
    return bytes(spoiled[:length])


def one_is_in_the_place_of_another(content: bytes, spoiled: bytes, state: State) -> bool:
    """Cleaned batches differ by their headers only: a start cannot detect that one is doubled."""
    places = {data: content.find(data) for data in state.batches.values() if data in content}
    return any(spoiled.startswith(data, at) for data in places for at in places.values() if at != places[data])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    how=st.sampled_from(STATES),
    file=st.integers(0, 20),
    spots=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(1, 1500), st.integers(0, 2)), max_size=3),
    length=st.integers(0, 1 << 14) | st.just(1 << 14),
)
@example(how="stopped", file=5, spots=[(1072, 482, 2)], length=2280)  # the last header of a segment is that of another
def test_logs_with_any_wear(
    directory: Path, states: dict[str, State], how: str, file: int, spots: list[Spot], length: int
) -> None:
    logs = files(states[how], lambda name: name.endswith(".log"))
    name, content = logs[file % len(logs)]
    spoiled = worn(content, spots, length)
    assume(not one_is_in_the_place_of_another(content, spoiled, states[how]))
    tried(directory, states[how], name, spoiled)


@pytest.mark.parametrize("how", STATES)
def test_a_damaged_last_offset_delta_does_not_move_the_log_end(
    directory: Path, states: dict[str, State], how: str
) -> None:
    """The file is truncated behind the batch: below the recovery point no other batch is checked in full."""
    state = states[how]
    for name, content in files(state, lambda name: name.endswith(".log")):
        for base, data in state.batches.items():
            start = content.find(data)
            if start >= 0:
                delta = start + LAST_OFFSET_DELTA_END - 1
                spoiled = content[:delta] + b"\x7e" + content[delta + 1 : start + len(data)]
                assert parse_envelope(spoiled[start:]).base_offset == base
                assert parse_envelope(spoiled[start:]).last_offset_delta > MOST
                tried(directory, state, name, spoiled)


@pytest.mark.parametrize("how", STATES)
def test_a_start_survives_any_deleted_file(directory: Path, states: dict[str, State], how: str) -> None:
    for name, _ in files(states[how], lambda name: True):
        tried(directory, states[how], name, None)
