# SPDX-License-Identifier: Apache-2.0
"""A log, damage to its files, and the result of a start with them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from tidemark.core.replication.events import RecoveredLog
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.ports import Log
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch

from tests.unit.storage.batches import IDENTITY, PARTITION, checked, lead, make_batch, open_one, read_all

CONFIGS = {"segment.bytes": "4000", "index.interval.bytes": "600"}
BATCHES = 16
CHECKPOINTED = 18


def replica(path: Path) -> Path:
    return path / str(PARTITION)


def segments(path: Path) -> list[Path]:
    return sorted(replica(path).glob("*.log"))


def start(path: Path) -> tuple[RecoveredLog, bytes]:
    """Open, read everything, append, and get killed."""
    logs = open_one(path)
    try:
        log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
        content = read_all(log)
        lead(log, make_batch(["after"]), epoch=99)
        assert read_all(log)[: len(content)] == content
        return recovered, content
    finally:
        logs.close()


def in_copy(path: Path, spoil: Callable[[Path], object]) -> tuple[RecoveredLog, bytes] | TidemarkError:
    """The result of a start with a damaged copy of the files."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    try:
        spoil(copy)
        return start(copy)
    except TidemarkError as error:
        return error
    finally:
        shutil.rmtree(copy)


def cut_file(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x21
    path.write_bytes(content)


def read_one(log: Log, offset: int) -> Batch | ErrorCode:
    """The batch with the offset as a checking reader gets it, or the refusal."""
    try:
        data = log.read(Offset(offset), end_offset=log.log_end_offset, max_bytes=1)
        assert data
        return checked(data)[0]
    except TidemarkError as error:
        return error.code


def ends(whole: bytes) -> dict[int, int]:
    """Bytes of the log below each batch end, by next offset."""
    lengths = [batch.envelope.batch_length for batch in check_batches(whole)]
    return {2 * (number + 1): size for number, size in enumerate(itertools.accumulate(lengths))}
