# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/formats.md parse log directories with rolls, truncation, compaction, moves and damage, in full."""

from __future__ import annotations

import errno
import random
import shutil
import uuid
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import RememberedBatch
from tidemark.model import (
    REMEMBERED_BATCHES,
    BrokerEpoch,
    EpochEntry,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.envelope import Envelope, unpack_envelope, with_append_time
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.directories.scrub_position import ScrubPosition, write_scrub_position
from tidemark.storage.log import cleaning
from tidemark.storage.log.log_state import LogState
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.segment_swap import Swap

from tests.unit.storage.batches import (
    BROKER,
    CLUSTER,
    latest_epoch,
    lead,
    make_batch,
    make_marker,
    make_pending,
    memory_directory,
)
from tests.unit.storage.directories.moving import copy_all, open_two
from tests.unit.storage.format_tables import (
    ABORTED,
    BLOCK,
    DIRECTORY_FILES,
    END_MARK,
    ENVELOPE,
    INDEX_ENTRY,
    PRODUCER,
    REMEMBERED,
    REPLICA_FILES,
    ROSTER,
    TIME_INDEX_ENTRY,
    DirectoryReader,
    FormatError,
    Item,
    ReadDirectory,
    ReplicaFiles,
    Tables,
    mutants,
    read_tables,
)
from tests.unit.storage.log.test_cleaner import clean, fill

TABLES = read_tables((Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8"))
OF_MEMBERS_AND_WORDS = [one for one, rows in TABLES.items() if rows and not {"word", "member"}.isdisjoint(rows[0])]
STARTS = (ABORTED, BLOCK, DIRECTORY_FILES, END_MARK, ENVELOPE, INDEX_ENTRY, PRODUCER, REMEMBERED, REPLICA_FILES, ROSTER)
ONLY_AFTER_A_CRASH = {
    "<base>-<end>.cleaned",
    "<base>-<end>.swap",
    "<base>-<end>.swap.damaged",
    "<name>.tmp",
    "<topic>-<partition>.<uuid>-delete",
}
"""Files between two steps of an operation: the directories here were left between operations."""

INTERVAL_BYTES = 700
CONFIGS = {
    "segment.bytes": "4096",
    "index.interval.bytes": str(INTERVAL_BYTES),
    "file.delete.delay.ms": "3600000",
}
FLIGHTS, AIRPORTS, CARRIERS, PLANES, TOWERS, GATES, QUOTES, WEATHER = (
    TopicPartition(topic, number)
    for number, topic in enumerate(
        ("flights", "airports", "carriers", "planes", "towers", "gates", "quotes", "weather"), start=3
    )
)
SERVED = (FLIGHTS, AIRPORTS, CARRIERS, PLANES, TOWERS, QUOTES, WEATHER)
NO_TIMESTAMP_US = -(1 << 63)
FORMATS = "Every file of a log directory has one of these formats:"
CHECKPOINTS = ("replication-offset-checkpoint", "recovery-point-checkpoint", "log-start-offset-checkpoint")

Key = tuple[str, int, str]


class Left(NamedTuple):
    """A log directory as a broker left it, and the facts that its files must state.

    Attributes:
        points: high watermark, recovery point and log start of each replica in the last checkpoint.
        states: by the name of the replica's directory.
        documents: content of JSON files and cleaner's points, by path; None: the file must be absent.
    """

    path: Path
    directory_id: str
    is_stopped: bool
    points: Mapping[Key, tuple[int, int, int]]
    states: Mapping[str, LogState]
    documents: Mapping[str, Any]


def identity_of(partition: TopicPartition) -> ReplicaIdentity:
    return ReplicaIdentity(
        uuid.uuid5(uuid.NAMESPACE_OID, partition.topic).hex, uuid.uuid5(uuid.NAMESPACE_URL, partition.topic).hex
    )


SCRUBBED = ScrubPosition(began_ms=1_700_000_000_000, partition=str(FLIGHTS), offset=40)


def key_of(partition: TopicPartition) -> Key:
    return partition.topic, partition.partition, identity_of(partition).incarnation


def open_log(logs: LogManager, partition: TopicPartition) -> PartitionLog:
    logs.prefer(partition, 0)
    return logs.open(partition, identity_of(partition), CONFIGS)[0]


def high_watermarks(logs: LogManager) -> dict[TopicPartition, Offset]:
    return {
        partition: Offset(max(log.log_end_offset - 3, log.log_start_offset))
        for directory in (0, 1)
        for partition, log in logs.logs_in(directory)
    }


def first_life(root: Path, rng: random.Random) -> int:
    """Appends, rolls, a compaction, a move; then a kill. Returns the log end of the log that will be damaged."""
    logs = open_two(root)
    logs.confirm_registration(BrokerEpoch(7), "boot-one")
    opened = {partition: open_log(logs, partition) for partition in (*SERVED, GATES)}
    transact(opened[FLIGHTS], 60)
    lead(opened[FLIGHTS], make_marker(producer_id=62))
    for partition, batches in {FLIGHTS: 24, AIRPORTS: 24, CARRIERS: 6, PLANES: 12, TOWERS: 12, GATES: 2}.items():
        fill(opened[partition], rng, batches, keys=5)
    clean(opened[AIRPORTS])
    opened[QUOTES].save_epochs([EpochEntry(LeaderEpoch(4), Offset(0)), EpochEntry(LeaderEpoch(6), Offset(0))])
    future = logs.mover.begin(PLANES, 1, CONFIGS)
    copy_all(future)
    logs.mover.finish(future, opened[PLANES].log_end_offset)
    logs.set_aside(GATES, "stray")
    logs.checkpoint(high_watermarks(logs))
    end = opened[TOWERS].log_end_offset
    logs.close()
    return end


def damage(replica: Path) -> None:
    """Change a byte of the last batch below the recovery point."""
    segment = max(replica.glob("*.log"))
    content = bytearray(segment.read_bytes())
    position = 0
    while position + unpack_envelope(content, position).batch_length < len(content):
        position += unpack_envelope(content, position).batch_length
    content[position + 2] ^= 1
    segment.write_bytes(content)


def second_life(root: Path, rng: random.Random, damaged_end: int) -> tuple[Left, Left]:
    """A start after damage, a trim, an unfinished copy, a checkpoint, then a truncation and a reset; then a kill."""
    logs = open_two(root)
    logs.confirm_registration(BrokerEpoch(8), "boot-two")
    opened = {one: logs.open(one, identity_of(one), CONFIGS) for one in SERVED}
    fill(opened[WEATHER][0], rng, 8)
    logs.mover.begin(WEATHER, 1, CONFIGS).copy(1000)
    flights, carriers = opened[FLIGHTS][0], opened[CARRIERS][0]
    flights.trim(Offset(flights.log_end_offset // 2))
    marks = high_watermarks(logs)
    logs.checkpoint(marks)
    points = [points_in(logs, directory, marks) for directory in (0, 1)]
    flights.truncate(Offset(flights.log_end_offset - 20))
    carriers_end, epoch_below = carriers.log_end_offset, latest_epoch(carriers)
    carriers.reset(Offset(900), LeaderEpoch(epoch_below))
    write_scrub_position(root / "a", SCRUBBED)
    documents = {
        f"a/{FLIGHTS}/cut-point.json": {
            "end_offset": flights.log_end_offset,
            "log_start": flights.log_start_offset,
            "resetting": False,
            "epoch_below": -1,
        },
        f"a/{CARRIERS}/cut-point.json": {
            "end_offset": carriers_end,
            "log_start": 900,
            "resetting": False,
            "epoch_below": epoch_below,
        },
        f"a/{TOWERS}/damage.json": {"reason": opened[TOWERS][1].damaged, "until": damaged_end, "cut": False},
        f"a/{AIRPORTS}/cleaner-offset-checkpoint": opened[AIRPORTS][0].cleaning.point,
        "a/scrub.json": SCRUBBED._asdict(),
        "a/clean-shutdown.json": None,
        "b/clean-shutdown.json": None,
    }
    first, second = (left(logs, directory, points[directory], documents, False) for directory in (0, 1))
    logs.close()
    return first, second


def third_life(root: Path, rng: random.Random, damaged: Mapping[str, Any]) -> tuple[Left, Left]:
    """A start after a kill, more records, and a clean shutdown."""
    logs = open_two(root)
    opened = {one: logs.open(one, identity_of(one), CONFIGS)[0] for one in SERVED}
    for partition in (FLIGHTS, CARRIERS):
        fill(opened[partition], rng, 8)
        transact(opened[partition], 50)
    timed = make_batch(["timed"], producer_id=70, producer_epoch=0, sequence=0)
    lead(opened[FLIGHTS], with_append_time(timed, timestamp_us=1 << 50), epoch=latest_epoch(opened[FLIGHTS]))
    documents = {
        f"a/{FLIGHTS}/cut-point.json": None,
        f"a/{CARRIERS}/cut-point.json": None,
        f"a/{TOWERS}/damage.json": damaged,
        f"a/{AIRPORTS}/cleaner-offset-checkpoint": opened[AIRPORTS].cleaning.point,
        "a/clean-shutdown.json": {"broker_epoch": 9},
        "b/clean-shutdown.json": {"broker_epoch": 9},
    }
    marks = high_watermarks(logs)
    logs.checkpoint(marks)  # a high watermark past a truncation counts from the second checkpoint on
    first, second = (left(logs, one, points_in(logs, one, marks), documents, True) for one in (0, 1))
    logs.close_clean(BrokerEpoch(9), marks)
    return first, second


def transact(log: PartitionLog, first: int) -> None:
    """Among the producers from `first` on, one commits, the next one aborts, and one has an open transaction
    meanwhile.
    """
    epoch = latest_epoch(log)
    lead(log, *(make_pending(["pending"], producer_id=first + number) for number in range(3)), epoch=epoch)
    ends = [make_marker(producer_id=first + number, commit=number == 0, coordinator_epoch=6) for number in range(2)]
    lead(log, *ends, epoch=epoch)


def points_in(
    logs: LogManager, directory: int, marks: Mapping[TopicPartition, Offset]
) -> dict[Key, tuple[int, int, int]]:
    return {
        key_of(partition): (marks[partition], log.log_end_offset, log.log_start_offset)
        for partition, log in logs.logs_in(directory)
        if log.has_directory
    }


def left(
    logs: LogManager,
    directory: int,
    points: Mapping[Key, tuple[int, int, int]],
    documents: Mapping[str, Any],
    is_stopped: bool,
) -> Left:
    found = logs.directories()[directory]
    states = {log.path.name: log.state() for _, log in logs.logs_in(directory) if log.has_directory}
    prefix = f"{found.path.name}/"
    own = {path.removeprefix(prefix): content for path, content in documents.items() if path.startswith(prefix)}
    return Left(found.path, found.directory_id, is_stopped, points, states, own)


@pytest.fixture(scope="module")
def directories() -> Iterator[list[Left]]:
    """Two log directories after a kill, and the same two after a clean shutdown."""
    with memory_directory() as root:
        rng = random.Random(20)
        end = first_life(root, rng)
        damage(root / "a" / str(TOWERS))
        killed = second_life(root, rng, end)
        copies = [
            one._replace(path=Path(shutil.copytree(one.path, root / f"killed-{one.path.name}"))) for one in killed
        ]
        stopped = third_life(root, rng, killed[0].documents[f"{TOWERS}/damage.json"])
        yield [*copies, *stopped]


# -- comparison with the facts


def read_all(tables: Tables, directories: list[Left]) -> set[str]:
    """Parse the directories and compare the values with the facts; returns the names of files that occurred."""
    seen: set[str] = set()
    for one in directories:
        found = DirectoryReader(tables).read(one.path)
        seen |= found.seen
        check_directory(found, one)
        assert one.states.keys() <= found.replicas.keys()
        for name, files in found.replicas.items():
            check_segments(files, one.path / name)
            if name in one.states:
                check_replica(files, one, name)
    return seen


def check_directory(found: ReadDirectory, facts: Left) -> None:
    assert found.files["meta.json"] == {
        "cluster_id": CLUSTER,
        "broker_id": BROKER,
        "directory_id": facts.directory_id,
        "format_version": 1,
    }
    assert found.files["incarnation.json"] == {"boot_id": "boot-two", "broker_epoch": 8}
    for place, name in enumerate(CHECKPOINTS):
        lines = {(one["topic"], one["partition"], one["incarnation"]): one["offset"] for one in found.files[name]}
        copied = lines.keys() - facts.points.keys()
        assert {key: lines[key] for key in lines.keys() - copied} == {
            key: at[place] for key, at in facts.points.items()
        }
        assert copied <= {key_of(WEATHER)}
    check_roster(found.files["empty-replicas"], is_first=FLIGHTS.topic in {key[0] for key in facts.points})
    for path, content in facts.documents.items():
        name, _, file = path.rpartition("/")
        files = found.replicas[name].others if name else found.files
        if file == "cleaner-offset-checkpoint":
            assert files[file] == [{"clean_point": content.offset, "horizon_s": content.horizon_s}]
        else:
            assert files.get(file) == content, path


def check_roster(lines: list[Item], *, is_first: bool) -> None:
    added: dict[tuple[str, str], tuple[str, str, str]] = {}
    aside = set()
    for line in lines:
        partition = line["topic"], line["partition"]
        if line["sign"] == "+":
            added[partition] = line["topic_id"], line["incarnation"], line["epochs"]
        elif line["sign"] == "-":
            del added[partition]
        else:
            aside.add((*partition, line["incarnation"]))
    expected = {(QUOTES.topic, str(QUOTES.partition)): (*identity_of(QUOTES), "4:0,6:0")}
    assert added == (expected if is_first else {})
    assert {one[0] for one in aside} == ({GATES.topic, PLANES.topic} if is_first else set())
    assert all(one[2] == identity_of(TopicPartition(one[0], int(one[1]))).incarnation for one in aside)


def check_segments(files: ReplicaFiles, directory: Path) -> None:
    """Every field of every batch, and each index against the batches."""
    suffixed = {name.removesuffix(".deleted").removesuffix(".log"): name for name in files.segments}
    for stem, name in suffixed.items():
        batches, content = files.segments[name], (directory / name).read_bytes()
        for batch in batches:
            envelope = unpack_envelope(content, batch["position"])
            assert {field: batch[field] for field in Envelope._fields} == envelope._asdict()
        following = min((int(other) for other in suffixed if other > stem), default=None)
        ending = ".deleted" if name.endswith(".deleted") else ""
        by_offset, by_time = (files.blocks.get(f"{stem}{kind}{ending}", []) for kind in (".index", ".timeindex"))
        check_indexes(batches, by_offset, by_time, size_bytes=len(content), following=following)
    assert suffixed


def check_indexes(
    batches: list[Item], by_offset: list[Item], by_time: list[Item], *, size_bytes: int, following: int | None
) -> None:
    expected: list[tuple[int, int, int]] = []
    newest_us, unindexed_bytes = NO_TIMESTAMP_US, 0
    for batch in batches:
        if not expected or unindexed_bytes >= INTERVAL_BYTES:
            expected.append((batch["base_offset"], batch["position"], newest_us))
            unindexed_bytes = 0
        unindexed_bytes += batch["batch_length"]
        newest_us = max(newest_us, batch["max_timestamp_us"])
    offsets = [one for block in by_offset for one in block["items"]]
    times = [one for block in by_time if block["kind"] == 1 for one in block["items"]]
    pairs = list(zip(offsets, times, strict=True))
    assert [(one["batch_offset"], one["position"]) for one in offsets] == [one[:2] for one in expected[: len(pairs)]]
    assert [(one["batch_offset"], one["timestamp_before_us"]) for one in times] == [
        (offset, before_us) for offset, _, before_us in expected[: len(pairs)]
    ]
    has_mark = bool(by_time) and by_time[-1]["kind"] == 2
    if following is None:
        if not has_mark or not batches:
            return
        following = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1
    assert has_mark, "a closed segment has an end mark"
    (mark,) = by_time[-1]["items"]
    fields = ("next_offset", "size_bytes", "max_timestamp_us", "entries")
    assert tuple(mark[field] for field in fields) == (following, size_bytes, newest_us, len(expected))
    assert len(pairs) == len(expected)


def check_replica(files: ReplicaFiles, facts: Left, name: str) -> None:
    state = facts.states[name]
    stems = sorted(name for name in files.segments if name.endswith(".log"))
    batches = [batch for stem in stems for batch in files.segments[stem]]
    if batches:
        assert batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1 == state.log_end_offset
    check_identity(files, name)
    check_epochs(files, state, batches)
    check_aborted(files, batches)
    snapshots = {path: one for path, one in files.others.items() if path.endswith(".snapshot")}
    for path, snapshot in snapshots.items():
        assert int(path.removesuffix(".snapshot")) == snapshot["offset"]
        check_snapshot(snapshot, batches)
    if facts.is_stopped:
        newest = snapshots[f"{state.log_end_offset:020d}.snapshot"]
        assert {
            one["producer_id"]: (
                one["producer_epoch"],
                tuple(RememberedBatch(**batch) for batch in one["batches"]),
                one["last_timestamp_us"],
                one.get("open_offset", -1),
                one.get("coordinator_epoch", -1),
            )
            for one in newest["producers"]
        } == dict(state.producers.entries)


def check_aborted(files: ReplicaFiles, batches: list[Item]) -> None:
    """Each row against the batches; see `transact`."""
    by_offset = {batch["base_offset"]: batch for batch in batches}
    named = {name: rows for name, rows in files.others.items() if ".txnindex" in name}
    markers = [batch for batch in batches if batch["attributes"] == 9]
    assert bool(markers) <= bool(named)
    for name, (*rows, last) in named.items():
        assert (last["kind"], last["producer_id"]) == (2, len(rows))
        for row in rows:
            first, marker = by_offset.get(row["first_offset"]), by_offset.get(row["last_offset"])
            if first is None or marker is None:
                assert name.endswith(".deleted")
                continue
            assert row["kind"] == 1
            assert row["producer_id"] == first["producer_id"] == marker["producer_id"]
            assert row["producer_id"] in (51, 61)
            assert (first["attributes"], marker["attributes"]) == (8, 9)
            opened = [batch["base_offset"] for batch in batches if batch["producer_id"] == row["producer_id"] + 1]
            assert row["stable_offset"] == max(offset for offset in opened if offset < row["last_offset"])


def check_identity(files: ReplicaFiles, name: str) -> None:
    topic, _, index = name.rpartition("-")
    partition = TopicPartition(topic, int(index))
    topic_id, incarnation = identity_of(partition)
    moved = {"topic": topic, "partition": int(index), "future": False, "clean_point": 0}
    expected = {"topic_id": topic_id, "incarnation": incarnation, "generation": 0}
    assert files.others["partition.json"] == (
        {**expected, **moved, "generation": 1} if partition == PLANES else expected
    )


def check_epochs(files: ReplicaFiles, state: LogState, batches: list[Item]) -> None:
    lines = [(one["leader_epoch"], one["start_offset"]) for one in files.others["leader-epoch-checkpoint"]]
    for (epoch, start), (next_epoch, next_start) in pairwise(lines):
        assert (epoch, start) < (next_epoch, next_start)
    epochs = LeaderEpochs(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in lines)
    for batch in batches:
        if batch["base_offset"] >= state.log_start_offset:
            assert epochs.epoch_at(Offset(batch["base_offset"])) == batch["leader_epoch"]
    epochs.truncate_from_start(state.log_start_offset)
    assert epochs.entries == state.epochs


def check_snapshot(snapshot: Item, batches: list[Item]) -> None:
    stored = {batch["base_offset"]: batch for batch in batches}
    for producer in snapshot["producers"]:
        has_marker = producer.get("coordinator_epoch", -1) >= 0
        assert (0 if has_marker else 1) <= len(producer["batches"]) <= REMEMBERED_BATCHES
        for one in producer["batches"]:
            batch = stored.get(one["first_offset"])
            if batch is not None:
                assert producer["producer_id"] == batch["producer_id"]
                assert producer["producer_epoch"] == batch["producer_epoch"]
                assert one["first_sequence"] == batch["base_sequence"]
                assert one["last_sequence"] == batch["base_sequence"] + batch["last_offset_delta"]
                assert one["last_offset"] == batch["base_offset"] + batch["last_offset_delta"]
                assert one.get("append_time_us", batch["max_timestamp_us"]) == batch["max_timestamp_us"]
        assert producer["producer_id"] >= 0


# -- tests


def test_the_tables_parse_every_byte_of_log_directories(directories: list[Left]) -> None:
    seen = read_all(TABLES, directories)
    listed = {row["path"] for rows in TABLES.values() for row in rows if {"path", "format"} <= row.keys()}
    assert listed - seen == ONLY_AFTER_A_CRASH
    formats = {row["format"].strip("[").partition("]")[0] for row in TABLES[FORMATS]}
    used = {row["format"] for rows in TABLES.values() for row in rows if {"path", "format"} <= row.keys()}
    assert used == {*formats, "directory"}


def test_the_tables_parse_a_compacted_segment_that_is_not_in_its_place_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(swap: Swap) -> None:
        raise OSError(errno.EIO, f"{swap.path.name} cannot be renamed")

    with memory_directory() as root:
        logs = open_two(root)
        log = open_log(logs, AIRPORTS)
        fill(log, random.Random(21), 24, keys=5)
        monkeypatch.setattr(cleaning, "finish_swap", fail)
        with pytest.raises(TidemarkError, match="replace segments"):
            clean(log)
        logs.close()
        files = DirectoryReader(TABLES).read(root / "a").replicas[str(AIRPORTS)]
        (swap,) = (name for name in files.segments if name.endswith(".swap"))
        content = (root / "a" / str(AIRPORTS) / swap).read_bytes()
    for batch in files.segments[swap]:
        assert [batch[field] for field in Envelope._fields] == list(unpack_envelope(content, batch["position"]))
    assert len(files.segments[swap]) > 1


def test_a_file_without_a_row_is_found(directories: list[Left]) -> None:
    stopped = directories[-1].path
    (stopped / "more.json").write_text("{}")
    try:
        with pytest.raises(FormatError, match=r"more\.json: is not in the table"):
            DirectoryReader(TABLES).read(stopped)
    finally:
        (stopped / "more.json").unlink()


@pytest.mark.parametrize("start", [*STARTS, TIME_INDEX_ENTRY, *OF_MEMBERS_AND_WORDS])
def test_each_wrong_row_of_a_table_is_found(directories: list[Left], start: str) -> None:
    missed = []
    tried = 0
    for mutant, tables in mutants(TABLES, start, skipped=ONLY_AFTER_A_CRASH):
        tried += 1
        try:
            read_all(tables, directories)
        except (AssertionError, FormatError, KeyError, TypeError, ValueError):
            continue
        missed.append(mutant)
    assert not missed, missed
    assert tried > 1
