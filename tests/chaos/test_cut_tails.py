# SPDX-License-Identifier: Apache-2.0
"""Tails are cut only where a disk could have lost its last writes."""

from __future__ import annotations

import random
from pathlib import Path

from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.checkpoint_files import Checkpoints

from tests.chaos.cut_tails import CUT_BYTES_MAX, cut


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
        checkpoints.put((TopicPartition("events", partition), "i1"), 0, flushed, 0)
    for temporary, final in checkpoints.write_temporaries(tmp_path):
        temporary.rename(final)
    whole = len(five_records())
    assert cut(tmp_path, random.Random(1)) == 2
    sizes = [one.stat().st_size for one in segments.values()]
    assert all(whole - CUT_BYTES_MAX <= size < whole for size in sizes[:2])
    assert sizes[2] == whole
