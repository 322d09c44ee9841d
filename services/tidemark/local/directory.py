# SPDX-License-Identifier: Apache-2.0
"""The directory of a local cluster's data, which one cluster at a time may use."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

_LOCK: Final = "lock"


class HeldDirectory:
    """A directory under a lock, which ends with this process: two ZooKeepers on the same data would spoil it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1

    def take(self) -> None:
        """Make the directory where it is not there, and hold it.

        Raises:
            TidemarkError: STORAGE_ERROR: it cannot be made or written to, or another cluster holds it.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise TidemarkError(
                ErrorCode.STORAGE_ERROR,
                f"{self._directory} cannot keep a cluster: {error.strerror}; name another with --directory",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise TidemarkError(
                ErrorCode.STORAGE_ERROR,
                f"{self._directory} is held by another local cluster: stop that one, or name another with --directory",
            ) from error

    def release(self) -> None:
        """Let go of it; again is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
