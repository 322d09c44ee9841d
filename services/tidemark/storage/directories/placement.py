# SPDX-License-Identifier: Apache-2.0
"""Which log directory a new replica goes to (rule C8): that with the fewest replicas, or that with the most free bytes.

A new replica holds nothing, so the free bytes do not say where the last thousand went: those of a directory are shared
out among the replicas that have nothing there yet, and the new one goes where its share is the largest.
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
"""Where each replica lies."""


class Placement:
    """Chooses; not safe for threads. Costs the same however many replicas there are, until some have gone or moved."""

    def __init__(self, directories: Sequence[LogDirectory], places: Places, choice: str) -> None:
        assert choice in (FEWEST_REPLICAS, MOST_FREE_BYTES), choice
        self._directories = directories
        self._places = places
        self._choice = choice
        self._counts: list[int] | None = None
        """Replicas of each directory, by index; None: to be counted."""

    def choose(self) -> LogDirectory:
        """Of those that are online.

        Raises:
            TidemarkError: STORAGE_ERROR where there is none.
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
        """A replica was made there."""
        if self._counts is not None:
            self._counts[self._directories.index(directory)] += 1

    def changed(self) -> None:
        """Replicas have gone, or lie elsewhere: they are counted anew when it matters."""
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
    """Free bytes of its file system for each replica that has nothing yet and this one; -1 where it does not say."""
    try:
        found = os.statvfs(directory.path)
    except OSError:
        return -1.0  # it goes offline with what is written to it
    return found.f_bavail * found.f_frsize / (1 + len(directory.roster))
