# SPDX-License-Identifier: Apache-2.0
"""The output of `consume` in one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import BinaryIO

from tidemark.client.records import PartitionBatch


class Sink(ABC):
    """Writes records to a file in one format."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @abstractmethod
    def show(self, batch: PartitionBatch) -> None:
        """Write, or buffer, the rows of one partition; raises INVALID_REQUEST for text that is not UTF-8."""

    def flush(self) -> None:
        """Make written rows visible to readers, as far as the format allows."""
        self._file.flush()

    def close(self) -> None:
        """Complete the output."""
        self._file.flush()
