# SPDX-License-Identifier: Apache-2.0
"""Replicas can repair all faults of disks: flipped bits in sealed segments, and cuts of unflushed writes."""

from __future__ import annotations

import random
from pathlib import Path

from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.checkpoint_files import CheckpointOffsets, Checkpoints

from tests.chaos.arena.cut_tails import CUT_BYTES_MAX, cut
from tests.chaos.arena.disks import _LONG_BYTES, sealed_segments


def test_bits_flip_in_sealed_segments_only(tmp_path: Path) -> None:
    for log, offsets in {"a-0": (0, 10, 20), "b-0": (0,), "c-0.123-stray": (0, 10)}.items():
        (tmp_path / log).mkdir()
        for offset in offsets:
            (tmp_path / log / f"{offset:020}.log").write_bytes(bytes(_LONG_BYTES))
    (tmp_path / "a-0" / f"{10:020}.log").write_bytes(b"short")
    assert sealed_segments(tmp_path) == [tmp_path / "a-0" / f"{0:020}.log"]


def five_records() -> bytes:
    """Two batches: three records, and two."""
    built = [build_batch(from_columns(None, [b"x"] * count, [1] * count)) for count in (3, 2)]
    batches = [Batch(parse_envelope(data), data) for data in built]
    return b"".join(
        bytes(stamped(batch, base_offset=at, leader_epoch=0).data) for batch, at in zip(batches, (0, 3), strict=True)
    )


def test_flushed_batches_keep_their_ends(tmp_path: Path) -> None:
    segments = {}
    checkpoints = Checkpoints()
    for partition, flushed in enumerate((0, 4, 5)):
        log = tmp_path / f"events-{partition}"
        log.mkdir()
        segments[partition] = log / f"{0:020}.log"
        segments[partition].write_bytes(five_records())
        checkpoints.put((TopicPartition("events", partition), "i1"), CheckpointOffsets(0, flushed, 0))
    for temporary, final in checkpoints.write_temporaries(tmp_path, {}):
        temporary.rename(final)
    whole = len(five_records())
    assert cut(tmp_path, random.Random(1)) == 2
    sizes = [one.stat().st_size for one in segments.values()]
    assert all(whole - CUT_BYTES_MAX <= size < whole for size in sizes[:2])
    assert sizes[2] == whole
