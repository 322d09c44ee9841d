# SPDX-License-Identifier: Apache-2.0
"""The state that the parts of a log share: directory, settings, locks, and whether the log is broken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tidemark.model import EpochEntry, ErrorCode, TidemarkError
from tidemark.storage.files import is_broken
from tidemark.storage.settings import StorageSettings


class Home(Protocol):
    """The log directory of a log, as far as the log needs it."""

    @property
    def failed(self) -> str | None:
        """Why the directory is offline; None while it is online."""

    def fail(self, reason: str) -> None:
        """Take the directory offline: a failed sync is never retried."""

    def delete_later(self, paths: list[Path], delay_ms: int) -> None:
        """Remove these files after the delay; readers may still have them open."""


class Unmade(Protocol):
    """Replaces the directory of a replica that never held a record."""

    def make(self) -> None:
        """Make the directory, with an empty segment at offset 0. Raises OSError."""

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Keep the leader epochs that began without a record. Raises OSError."""


class LogContext:
    """The path, settings and locks of a log, shared by its parts.

    Lock order: `files_lock` before `memory_lock`. `files_lock` (reentrant) is held by every operation that creates,
    renames or removes files of the log: roll, truncation, reset, segment replacement, checkpoint, close. `memory_lock`
    guards the fields of all parts. `memory_lock` is never held across a write; across a read only while an index is
    loaded.

    Attributes:
        path: directory of the replica; changed under both locks.
        settings: replaced as a whole.
        broken: why every call is refused (a failed write, or the log is closed), None while the log can be used.
        home: the log directory.
    """

    __slots__ = ("broken", "files_lock", "home", "memory_lock", "path", "settings")

    def __init__(self, path: Path, settings: StorageSettings, home: Home) -> None:
        self.path = path
        self.settings = settings
        self.home = home
        self.broken: str | None = None
        self.memory_lock = threading.Lock()
        self.files_lock = threading.RLock()

    @property
    def is_usable(self) -> bool:
        """Whether neither the log nor its log directory has failed."""
        return not (self.broken or self.home.failed)

    def check_usable(self) -> None:
        """Raises TidemarkError (STORAGE_ERROR) where the log or its log directory has failed."""
        reason = self.broken or self.home.failed
        if reason:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, reason)

    def suspect_disk(self, error: Exception) -> None:
        """Take the whole log directory offline after an I/O error, or where its file system is read-only now."""
        if is_broken(error):
            self.home.fail(f"{self.path.name}: {error}")
