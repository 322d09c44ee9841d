# SPDX-License-Identifier: Apache-2.0
"""Data directory of a local cluster, for one cluster at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

_LOCK: Final = "lock"


class HeldDirectory:
    """A directory with a file lock, released at the end of this process: two ZooKeepers would corrupt the data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1

    def take(self) -> None:
        """Create the directory if it is missing, and lock it.

        Raises:
            TidemarkError: STORAGE_ERROR: it cannot be created or written, or another cluster has the lock.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            raise TidemarkError(
                ErrorCode.STORAGE_ERROR,
                f"{self._directory} cannot hold a cluster's data: {reason}; name another with --directory",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise TidemarkError(
                ErrorCode.STORAGE_ERROR,
                f"{self._directory} is locked by another local cluster: stop that, or name another with --directory",
            ) from error

    def release(self) -> None:
        """Release the lock of the directory. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
