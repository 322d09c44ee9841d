# SPDX-License-Identifier: Apache-2.0
"""Records every operation of a process that changes files, in order.

The functions of `os` and the syncfs of storage are patched. A check proves that no other call changes a file: the
replayed operations must equal the files on disk (`disk.Disk.current` against the tree).
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tidemark.storage import files


class Make(NamedTuple):
    """A new, empty file or directory under a name."""

    parent: int
    name: str
    node: int
    is_directory: bool


class Link(NamedTuple):
    parent: int
    name: str
    node: int


class Unlink(NamedTuple):
    parent: int
    name: str


class Rename(NamedTuple):
    """A file under the new name is replaced."""

    parent: int
    name: str
    new_parent: int
    new_name: str


class Write(NamedTuple):
    node: int
    position: int
    data: bytes


class Truncate(NamedTuple):
    node: int
    size: int


class Sync(NamedTuple):
    """fsync or fdatasync of a file or directory."""

    node: int


class SyncAll(NamedTuple):
    """syncfs of the disk that this directory is on."""

    node: int


class Mark(NamedTuple):
    """The note of the life at this point; not an operation."""

    note: Any


Operation = Make | Link | Unlink | Rename | Write | Truncate | Sync | SyncAll | Mark


class Recorder:
    """Records operations below `root` while active; nodes are numbered, `root` is node 0."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._nodes: dict[str, int] = {self.root: 0}
        self._count = 1
        self._opened: dict[int, int] = {}

    def mark(self, note: Any) -> None:
        with self._lock:
            self.operations.append(Mark(note))

    def adopt(self, tree: dict[str, int]) -> None:
        """Add existing nodes, by path below the root."""
        for name, node in tree.items():
            self._nodes[os.path.join(self.root, name)] = node
            self._count = max(self._count, node + 1)

    @contextmanager
    def active(self) -> Iterator[Recorder]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "pwrite", "pwritev", "write", "ftruncate", "fsync", "fdatasync"):
                patch.setattr(os, name, self._patched(name, getattr(os, name)))
            for name in ("unlink", "rmdir", "mkdir", "rename", "replace", "link"):
                patch.setattr(os, name, self._patched(name, getattr(os, name)))
            patch.setattr(os, "remove", os.unlink)
            patch.setattr(files, "_LIBC", self)
            yield self

    def syncfs(self, descriptor: int) -> int:
        """Replaces libc's syncfs."""
        with self._lock:
            if descriptor in self._opened:
                self.operations.append(SyncAll(self._opened[descriptor]))
        return 0

    def _patched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_{name}")

        def operation(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return note(real, *arguments, **named)

        return operation

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path below the root, else None."""
        text = os.fspath(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        return text if isinstance(text, str) and (text + "/").startswith(self.root + "/") else None

    def _place(self, path: str) -> tuple[int, str]:
        parent, name = os.path.split(path)
        return self._nodes[parent], name

    def _new(self, path: str, *, is_directory: bool) -> None:
        node, self._count = self._count, self._count + 1
        self._nodes[path] = node
        self.operations.append(Make(*self._place(path), node, is_directory))

    def _open(self, real: Callable[..., int], path: Any, flags: int, *rest: Any, **named: Any) -> int:
        known = self._path(path, named.get("dir_fd")) if not isinstance(path, int) else None
        fresh = known is not None and flags & os.O_CREAT and not os.path.lexists(known)
        descriptor = real(path, flags, *rest, **named)
        self._opened.pop(descriptor, None)
        if known is None:
            return descriptor
        if fresh:
            self._new(known, is_directory=False)
        elif flags & os.O_TRUNC and stat.S_ISREG(os.fstat(descriptor).st_mode):
            self.operations.append(Truncate(self._nodes[known], 0))
        self._opened[descriptor] = self._nodes[known]
        return descriptor

    def _wrote(self, descriptor: int, position: int, data: bytes) -> None:
        if descriptor in self._opened and data:
            self.operations.append(Write(self._opened[descriptor], position, data))

    def _pwrite(self, real: Callable[..., int], descriptor: int, data: Any, position: int) -> int:
        count = real(descriptor, data, position)
        self._wrote(descriptor, position, bytes(data)[:count])
        return count

    def _pwritev(self, real: Callable[..., int], descriptor: int, buffers: Any, position: int) -> int:
        count = real(descriptor, buffers, position)
        self._wrote(descriptor, position, b"".join(bytes(one) for one in buffers)[:count])
        return count

    def _write(self, real: Callable[..., int], descriptor: int, data: Any) -> int:
        count = real(descriptor, data)
        if descriptor in self._opened:
            self._wrote(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - count, bytes(data)[:count])
        return count

    def _ftruncate(self, real: Callable[..., None], descriptor: int, size: int) -> None:
        real(descriptor, size)
        if descriptor in self._opened:
            self.operations.append(Truncate(self._opened[descriptor], size))

    def _fsync(self, real: Callable[..., None], descriptor: int) -> None:
        if descriptor in self._opened:
            self.operations.append(Sync(self._opened[descriptor]))
        else:
            real(descriptor)

    _fdatasync = _fsync

    def _unlink(self, real: Callable[..., None], path: Any, **named: Any) -> None:
        known = self._path(path, named.get("dir_fd"))
        real(path, **named)
        if known is not None:
            self.operations.append(Unlink(*self._place(known)))
            del self._nodes[known]

    _rmdir = _unlink

    def _mkdir(self, real: Callable[..., None], path: Any, *rest: Any, **named: Any) -> None:
        real(path, *rest, **named)
        known = self._path(path)
        if known is not None:
            self._new(known, is_directory=True)

    def _link(self, real: Callable[..., None], source: Any, target: Any, **named: Any) -> None:
        real(source, target, **named)
        old, new = self._path(source), self._path(target)
        if old is not None and new is not None:
            self._nodes[new] = self._nodes[old]
            self.operations.append(Link(*self._place(new), self._nodes[new]))

    def _rename(self, real: Callable[..., None], source: Any, target: Any, **named: Any) -> None:
        real(source, target, **named)
        old, new = self._path(source), self._path(target)
        if old is None or new is None:
            return
        self.operations.append(Rename(*self._place(old), *self._place(new)))
        self._nodes[new] = self._nodes.pop(old)
        for path in [path for path in self._nodes if path.startswith(old + "/")]:
            self._nodes[new + path[len(old) :]] = self._nodes.pop(path)

    _replace = _rename
