# SPDX-License-Identifier: Apache-2.0
"""The leader-epoch-checkpoint: lines of (epoch, start offset), written after the appends (rule E1, docs/formats.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import EpochEntry, LeaderEpoch, Offset
from tidemark.storage.files import BadFile, pack_lines, read_lines, replace_file

_log = logging.getLogger(__name__)

EPOCH_FILE: Final = "leader-epoch-checkpoint"


def write_epochs(directory: Path, entries: Iterable[EpochEntry]) -> None:
    """Replace the file; durable with the next syncfs, as the envelopes hold the epochs too."""
    replace_file(directory / EPOCH_FILE, pack_lines([f"{entry[0]} {entry[1]}" for entry in entries]))


def read_epochs(directory: Path) -> LeaderEpochs | None:
    """The epochs of the file; None if the file is missing or damaged, so that the envelopes must be read."""
    try:
        return _read(directory / EPOCH_FILE)
    except BadFile as bad:
        _log.error(
            "damaged leader-epoch-checkpoint ignored: epochs are read from the batches",
            extra={"why": str(bad), "log": directory.name},
        )
        return None


def _read(path: Path) -> LeaderEpochs | None:
    lines = read_lines(path)
    if lines is None:
        return None
    try:
        numbers = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
    except ValueError:
        raise BadFile(f"{path.name} has lines that do not parse as epochs") from None
    return LeaderEpochs(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in numbers)
