# SPDX-License-Identifier: Apache-2.0
"""Metrics of logs and log directories, read on the thread of the scrape, never on the event loop."""

from __future__ import annotations

import os
from typing import NamedTuple

from tidemark.model import TopicPartition
from tidemark.runtime.metrics_text import family, labels
from tidemark.storage.directories.log_manager import DirectoryState, LogManager
from tidemark.storage.log.partition_log import PartitionLog


class DiskFigures(NamedTuple):
    """The open logs, their sizes in bytes, and the text of the directories' metric families."""

    logs: dict[TopicPartition, PartitionLog]
    sizes: dict[TopicPartition, int]
    text: str


def read_disks(logs: LogManager) -> DiskFigures:
    """The current figures. A failed directory has no free space."""
    found: dict[TopicPartition, PartitionLog] = {}
    sizes: dict[TopicPartition, int] = {}
    offline, used, free, total = {}, {}, {}, {}
    for index, state in enumerate(logs.directories()):
        label = labels(directory=str(state.path))
        inside = dict(logs.logs_in(index))
        here = {partition: log.size_bytes() for partition, log in inside.items()}
        found.update(inside)
        sizes.update(here)
        offline[label] = int(state.failed is not None)
        used[label] = sum(here.values())
        space = _space(state)
        if space is not None:
            free[label], total[label] = space
    text = (
        family("tidemark_log_directory_offline", "gauge", "1 if the log directory has failed", offline)
        + family("tidemark_log_directory_used_bytes", "gauge", "Size of the logs in the directory", used)
        + family("tidemark_log_directory_free_bytes", "gauge", "Free on its file system", free)
        + family("tidemark_log_directory_total_bytes", "gauge", "Size of its file system", total)
    )
    return DiskFigures(found, sizes, text)


def _space(state: DirectoryState) -> tuple[int, int] | None:
    """Free and total bytes of the file system of a directory."""
    if state.failed is not None:
        return None
    try:
        found = os.statvfs(state.path)
    except OSError:
        return None  # the next write to this directory takes the directory offline
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
