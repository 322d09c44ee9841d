# SPDX-License-Identifier: Apache-2.0
"""The open files of segments, under a bound."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from tidemark.storage.files import Descriptor
from tidemark.storage.segments.loaded_indexes import LIMIT_BYTES, Indexed, LoadedIndexes


class DescriptorPool:
    """Open files under a bound, as a process may open a limited number: the least recently used are closed.

    Attributes:
        indexes: the loaded indexes of sealed segments, under their own bound.
    """

    def __init__(self, limit: int = 4096, index_limit_bytes: int = LIMIT_BYTES) -> None:
        assert limit > 0
        self.indexes = LoadedIndexes(index_limit_bytes)
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Indexed, Descriptor] = OrderedDict()

    def get(self, key: Indexed, path: Path) -> Descriptor:
        """The descriptor of `key`, opened for reading and writing if it is not open."""
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        opened = Descriptor(path, os.O_RDWR)
        with self._lock:
            found = self._open.setdefault(key, opened)
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
            return found

    def drop(self, key: Indexed) -> None:
        """Forget the file of `key`, which closes when its readers are done, and its index."""
        with self._lock:
            self._open.pop(key, None)
        self.indexes.drop(key)

    def __len__(self) -> int:
        return len(self._open)
