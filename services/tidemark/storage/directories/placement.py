# SPDX-License-Identifier: Apache-2.0
"""Chooses the log directory of a new replica (rule C8): the one with the fewest replicas, or the most free bytes.

Empty replicas take no space yet, so many new replicas would all be placed in the directory with the most free bytes.
The free bytes of a directory are therefore divided among its empty replicas; the new replica goes where this share is
largest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.storage.directories.log_directory import FoundReplica, LogDirectory

FEWEST_REPLICAS: Final = "fewest-replicas"
MOST_FREE_BYTES: Final = "most-free-bytes"

Places = Mapping[TopicPartition, Sequence[tuple[LogDirectory, FoundReplica]]]
"""The directories of each replica."""


class Placement:
    """Chooses the log directories of new replicas; not thread-safe.

    A choice takes constant time while no replica is removed or moved.
    """

    def __init__(self, directories: Sequence[LogDirectory], places: Places, choice: str) -> None:
        assert choice in (FEWEST_REPLICAS, MOST_FREE_BYTES), choice
        self._directories = directories
        self._places = places
        self._choice = choice
        self._counts: list[int] | None = None
        """Replicas of each directory, by index; None where they must be counted."""

    def choose(self) -> LogDirectory:
        """Choose an online directory for a new replica.

        Raises:
            TidemarkError: STORAGE_ERROR if no directory is online.
        """
        online = [index for index, directory in enumerate(self._directories) if directory.failed is None]
        if not online:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, "no log directory is online")
        if len(online) == 1:
            return self._directories[online[0]]
        counts = self._counted()
        if self._choice == FEWEST_REPLICAS:
            return self._directories[min(online, key=counts.__getitem__)]
        return self._directories[
            max(online, key=lambda index: (_share_bytes(self._directories[index]), -counts[index]))
        ]

    def added(self, directory: LogDirectory) -> None:
        """Count a new replica of this directory."""
        if self._counts is not None:
            self._counts[self._directories.index(directory)] += 1

    def changed(self) -> None:
        """Replicas were removed or moved: count them again before the next choice."""
        self._counts = None

    def _counted(self) -> list[int]:
        if self._counts is None:
            numbers = {id(directory): index for index, directory in enumerate(self._directories)}
            self._counts = [0] * len(numbers)
            for places in self._places.values():
                for directory, _ in places:
                    self._counts[numbers[id(directory)]] += 1
        return self._counts


def _share_bytes(directory: LogDirectory) -> float:
    """Free bytes of the file system divided by the empty replicas and the new one; -1 if statvfs fails."""
    try:
        found = os.statvfs(directory.path)
    except OSError:
        return -1.0  # the next write takes the directory offline
    return found.f_bavail * found.f_frsize / (1 + len(directory.roster))
