# SPDX-License-Identifier: Apache-2.0
"""For any bytes of a small file, its reader gives a documented result: content, nothing, or a finding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.directories.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, read_checkpoints
from tidemark.storage.directories.log_directory import (
    CLEAN_SHUTDOWN_FILE,
    INCARNATION_FILE,
    META_FILE,
    LogDirectory,
    write_identity,
)
from tidemark.storage.directories.roster import ROSTER_FILE, Roster, RosterEntry
from tidemark.storage.files import PARTITION_FILE, checksum, pack_json, pack_lines
from tidemark.storage.inspect import documents
from tidemark.storage.recovery.cleaner_point import CLEANER_FILE, read_clean_point
from tidemark.storage.recovery.damage import CUT_FILE, DAMAGE_FILE, CutPoint, KnownDamage, read_cut_point, read_damage
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, read_epochs
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, read_snapshot, snapshot_path
from tidemark.storage.segments.index import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    EndMark,
    SegmentIndex,
    load_index,
    read_end_mark,
    write_end_mark,
)

from tests.unit.storage.batches import BROKER, CLUSTER, IDENTITY, PARTITION, memory_directory, open_one

FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHECKPOINT = pack_lines(["flights 0 incarnation-one 12", "flights 1 other 0"])
SNAPSHOT = pack_json(
    {"version": 2, "offset": 12, "producers": [[4, 0, 77, [[0, 3, 5, 8], [4, 4, 9, 9]]], [5, 1, 78, [], 3, 9]]}
)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with memory_directory() as made:
        yield made


def mutated(good: bytes) -> st.SearchStrategy[bytes]:
    """Valid bytes with one to three places overwritten, removed or inserted."""
    spot = st.tuples(st.integers(0, len(good)), st.integers(0, 9), st.binary(max_size=9))

    def spoiled(spots: list[tuple[int, int, bytes]]) -> bytes:
        content = good
        for at, length, replacement in spots:
            content = content[:at] + replacement + content[at + length :]
        return content

    return st.lists(spot, min_size=1, max_size=3).map(spoiled)


def resealed_lines(good: bytes) -> st.SearchStrategy[bytes]:
    """Bytes changed before the checksum, as another program or a later version may write them."""
    body = good[: good.rfind(b"crc ")]
    return mutated(body).map(lambda content: content + f"crc {checksum(content):08x}\n".encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 65) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def resealed_json(good: bytes) -> st.SearchStrategy[bytes]:
    """Documents with other members, or members of other types, under a valid checksum."""
    document = json.loads(good)
    del document["crc"]

    def members(chosen: dict[str, Any]) -> bytes:
        return pack_json({name: value for name, value in {**document, **chosen}.items() if value != "absent"})

    return st.dictionaries(st.sampled_from(sorted(document)), JSON | st.just("absent"), min_size=1).map(members)


def any_lines(good: bytes) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=120) | mutated(good) | resealed_lines(good)


def any_json(good: bytes) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=120) | mutated(good) | resealed_json(good)


@FEW
@given(content=any_lines(CHECKPOINT))
@example(content=b"crc 00000000\n")
@example(content=pack_lines(["flights"]))
@example(content=pack_lines(["flights x incarnation 3"]))
def test_a_checkpoint_gives_offsets_or_is_lost(directory: Path, content: bytes) -> None:
    known = (PARTITION, IDENTITY.incarnation)
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS):
        (directory / name).write_bytes(content)
    points = read_checkpoints(directory, [known])
    for offsets in (points.high_watermarks, points.recovery_points, points.log_starts):
        assert all(isinstance(offset, int) for offset in offsets.values())
        assert all(isinstance(one, TopicPartition) and isinstance(incarnation, str) for one, incarnation in offsets)


@FEW
@given(content=any_lines(pack_lines(["0 0", "1 12", "7 90"])))
@example(content=pack_lines(["a b"]))
def test_an_epoch_file_gives_epochs_or_nothing(directory: Path, content: bytes) -> None:
    (directory / EPOCH_FILE).write_bytes(content)
    found = read_epochs(directory)
    assert found is None or isinstance(found, LeaderEpochs)


@FEW
@given(content=any_lines(pack_lines(["33 1800000000"])))
@example(content=pack_lines(["many"]))
@example(content=pack_lines(["33"]))
@example(content=pack_lines([]))
def test_a_cleaners_point_is_a_number(directory: Path, content: bytes) -> None:
    (directory / CLEANER_FILE).write_bytes(content)
    assert all(isinstance(number, int) for number in read_clean_point(directory))


@FEW
@given(content=any_json(SNAPSHOT))
@example(content=b"[" * 100_000)
@example(content=pack_json({}))
def test_a_snapshot_gives_producers_or_nothing(directory: Path, content: bytes) -> None:
    snapshot_path(directory, 12).write_bytes(content)
    found = read_snapshot(directory, 12)
    assert found is None or isinstance(found, ProducerStates)


@FEW
@given(content=any_json(pack_json(CutPoint(4, 2)._asdict())))
@example(content=pack_json({"end_offset": "4", "log_start": None}))
@example(content=pack_json({"end_offset": 4, "log_start": 2}))
@example(content=pack_json({"end_offset": 4, "log_start": 2, "resetting": 7, "epoch_below": "x"}))
def test_a_cut_point_is_two_offsets_which_may_be_unknown(directory: Path, content: bytes) -> None:
    (directory / CUT_FILE).write_bytes(content)
    found = read_cut_point(directory)
    assert found is not None
    assert [type(member) for member in found] == [int, int, bool, int]


@FEW
@given(content=any_json(pack_json(KnownDamage("gone", 12)._asdict())))
def test_a_record_of_damage_is_never_read_as_none(directory: Path, content: bytes) -> None:
    (directory / DAMAGE_FILE).write_bytes(content)
    found = read_damage(directory)
    assert found is not None
    assert isinstance(found.reason, str)
    assert isinstance(found.until, int)


def roster_of(content: bytes, directory: Path) -> Roster:
    (directory / ROSTER_FILE).write_bytes(content)
    return Roster(directory)


def sealed(body: bytes) -> bytes:
    return body + f" {checksum(body):08x}\n".encode()


@FEW
@given(
    content=st.binary(max_size=120)
    | mutated(b"1\n" + sealed(b"+ flights 0 topic-one incarnation-one 0:0,1:0"))
    | mutated(b"+ flights 0 topic-one incarnation-one 0:0,1:0").map(lambda body: b"1\n" + sealed(body))
)
@example(content=b"1\n" + sealed(b""))
@example(content=b"1\n" + sealed(b"x flights 0"))
@example(content=b"1\n" + sealed(b"+ flights many a b -"))
def test_a_roster_gives_entries_and_can_be_written_to(directory: Path, content: bytes) -> None:
    roster = roster_of(content, directory)
    assert all(isinstance(entry, RosterEntry) for entry in roster.entries.values())
    other = TopicPartition("other", 3)
    roster.put(other, RosterEntry(ReplicaIdentity("a", "b")))
    assert Roster(directory).entries == {**roster.entries, other: RosterEntry(ReplicaIdentity("a", "b"))}


@FEW
@given(first=st.binary(max_size=200), second=st.binary(max_size=200), spoil=st.integers(0, 400))
def test_indexes_give_rising_entries_or_none(directory: Path, first: bytes, second: bytes, spoil: int) -> None:
    stem = directory / f"{0:020d}"
    index = SegmentIndex()
    for number in range(4):
        index.add(10 * number, 100 * number, number)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        stem.with_name(stem.name + suffix).unlink(missing_ok=True)
    index.persist(stem)
    write_end_mark(stem, EndMark(40, 400, 9, 4))
    for suffix, tail in ((INDEX_SUFFIX, first), (TIME_INDEX_SUFFIX, second)):
        path = stem.with_name(stem.name + suffix)
        content = path.read_bytes()
        path.write_bytes(content[: spoil % (len(content) + 1)] + tail)
    found = load_index(stem)
    assert len(found.offsets) == len(found.positions) == len(found.timestamps)
    assert list(found.positions) == [100 * number for number in range(len(found))]
    mark = read_end_mark(stem)
    assert mark in (None, EndMark(40, 400, 9, 4))


@FEW
@given(content=any_json(pack_json({"topic_id": "topic-one", "incarnation": "incarnation-one", "generation": 0})))
@example(content=pack_json({"topic_id": 4}))
def test_the_identity_of_a_replica_is_read_or_unknown(directory: Path, content: bytes) -> None:
    home = directory / "home"
    open_one(home).close()
    (home / str(PARTITION)).mkdir(exist_ok=True)
    write_identity(home / str(PARTITION), IDENTITY, generation=0)
    (home / str(PARTITION) / PARTITION_FILE).write_bytes(content)
    logs = open_one(home)
    assert all(isinstance(name, str) for identity in logs.replicas().values() for name in identity)
    logs.close()


@FEW
@given(content=any_json(pack_json({"boot_id": "boot", "broker_epoch": 3})))
@example(content=pack_json({"broker_epoch": "3"}))
def test_how_a_directory_was_left_is_read_or_unknown(directory: Path, content: bytes) -> None:
    home = directory / "left"
    home.mkdir(exist_ok=True)
    for name in (CLEAN_SHUTDOWN_FILE, INCARNATION_FILE):
        (home / name).write_bytes(content)
    logs = open_one(home)
    (previous,) = logs.previous
    assert previous.clean_broker_epoch is None or isinstance(previous.clean_broker_epoch, int)
    assert previous.incarnation is None or [type(one) for one in previous.incarnation] == [str, int]
    logs.close()


META = {"cluster_id": CLUSTER, "broker_id": BROKER, "directory_id": "d" * 32, "format_version": 1}


@FEW
@given(content=any_json(pack_json(META)))
@example(content=pack_json({}))
@example(content=pack_json({"format_version": 2}))
def test_a_directory_is_opened_or_refused_with_the_remedy(directory: Path, content: bytes) -> None:
    home = directory / "meta"
    home.mkdir(exist_ok=True)
    (home / META_FILE).write_bytes(content)
    refusal: TidemarkError | None = None
    try:
        LogDirectory.open(home, cluster_id=CLUSTER, broker_id=BROKER).release()
    except TidemarkError as error:
        refusal = error
    assert refusal is None or refusal.code in (ErrorCode.STORAGE_ERROR, ErrorCode.INVALID_CONFIG)
    assert refusal is None or any(advice in refusal.message for advice in ("Restore", "correct", "use a newer one"))


GOOD: dict[str, bytes] = {
    HIGH_WATERMARKS: CHECKPOINT,
    EPOCH_FILE: pack_lines(["0 0", "1 12"]),
    CLEANER_FILE: pack_lines(["33 1800000000"]),
    f"{12:020d}{SNAPSHOT_SUFFIX}": SNAPSHOT,
    CUT_FILE: pack_json(CutPoint(4, 2)._asdict()),
    ROSTER_FILE: b"1\n" + sealed(b"+ flights 0 topic-one incarnation-one -"),
}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_inspecting_a_small_file_shows_its_valid_part_and_its_damage(directory: Path, name: str) -> None:
    strategy: Callable[[bytes], st.SearchStrategy[bytes]] = any_json if GOOD[name].startswith(b"{") else any_lines

    @FEW
    @given(content=strategy(GOOD[name]))
    def look(content: bytes) -> None:
        (directory / name).write_bytes(content)
        document = documents.read_document(directory / name)
        assert document is not None
        assert all(len(row) == len(document.columns) for row in document.rows)

    look()


def test_a_name_that_only_looks_like_a_number_is_no_segment(directory: Path) -> None:
    logs = open_one(directory / "names")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    log.reset(log.log_end_offset)
    logs.close()
    (directory / "names" / str(PARTITION) / f"{'0' * 19}².log").write_bytes(b"x")
    (directory / "names" / "flights-²").mkdir()
    logs = open_one(directory / "names")
    assert set(logs.replicas()) == {PARTITION}
    _, found = logs.open(PARTITION, IDENTITY, {})
    assert found.damaged is None
    logs.close()
