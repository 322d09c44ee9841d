# SPDX-License-Identifier: Apache-2.0
"""A simulated disk: the files after a power loss or a kill at any operation.

The model of a file system: synced data is on disk; any part of the other data may be. Names (`Make`, `Link`, `Unlink`,
`Rename`) and truncations reach the disk in the order of the calls, at the latest with the next sync of any file, as
with a journal; another mode has no such order. Contents reach the disk in any order, by pages. A page that is missing
is zeros, or the file ends before the page. Each directory below the root is a separate disk.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.crash.recorder import Link, Make, Mark, Operation, Rename, Sync, SyncAll, Truncate, Unlink, Write

PAGE_BYTES = 512
"""Size of a page, which the disk writes whole, in bytes; small, like the files."""


class Crash(Enum):
    """The kind of crash."""

    KILL = "a kill"
    TORN_KILL = "a kill in the middle of the write"
    STRICT = "a power loss that takes all that was not synced"
    ORDERED = "a power loss that takes some of it, names in order"
    LOOSE = "a power loss that takes some of it, the names of each directory in an order of their own"


Image = dict[str, bytes | None]
"""Content by path, None of a directory."""


@dataclass
class _Node:
    is_directory: bool
    disk: int = 0
    names: dict[str, int] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    durable_names: dict[str, int] = field(default_factory=dict)
    durable: bytes = b""
    unsynced: list[tuple[int, Write | Truncate]] = field(default_factory=list)


class Disk:
    """Applies operations in order; returns images of the disk between them."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {0: _Node(is_directory=True)}
        self._count = 0
        self._synced: dict[int, int] = {0: 0}
        self._pending: list[tuple[int, Make | Link | Unlink | Rename]] = []
        """Changes of names that were not synced, in order."""

    @classmethod
    def of(cls, image: Image) -> tuple[Disk, dict[str, int]]:
        """A disk with this durable content; and the nodes by path."""
        disk, nodes = cls(), {"": 0}
        for number, path in enumerate(sorted(image), 1):
            content = image[path]
            parent, _, name = path.rpartition("/")
            node = _Node(content is None, content=bytearray(content or b""), durable=content or b"")
            node.disk = disk._nodes[nodes[parent]].disk if parent else number
            disk._nodes[number], disk._synced[node.disk] = node, 0
            disk._nodes[nodes[parent]].names[name] = disk._nodes[nodes[parent]].durable_names[name] = number
            nodes[path] = number
        del nodes[""]
        return disk, nodes

    def apply(self, operation: Operation) -> None:
        self._count += 1
        match operation:
            case Make(_, _, node, is_directory):
                disk = self._nodes[operation.parent].disk if operation.parent else node
                self._nodes[node] = _Node(is_directory, disk)
                self._synced.setdefault(disk, 0)
                self._rename(operation)
            case Link() | Unlink() | Rename():
                self._rename(operation)
            case Write(node) | Truncate(node):
                _change(self._nodes[node].content, operation)
                self._nodes[node].unsynced.append((self._count, operation))
            case Sync(node):
                self._synced[self._nodes[node].disk] = self._count
                self._sync(node)
            case SyncAll(node):
                disk = self._nodes[node].disk
                self._synced[disk] = self._count
                for number, other in self._nodes.items():
                    if other.disk == disk:
                        self._sync(number)
            case Mark():
                self._count -= 1

    def _rename(self, operation: Make | Link | Unlink | Rename) -> None:
        _change_names({node: one.names for node, one in self._nodes.items()}, operation)
        self._pending.append((self._count, operation))

    def _sync(self, number: int) -> None:
        node = self._nodes[number]
        if not node.is_directory:
            node.durable = bytes(node.content)
            node.unsynced.clear()
            return
        durable = {one: other.durable_names for one, other in self._nodes.items()}
        for _, operation in [one for one in self._pending if number in _directories(one[1])]:
            _change_names(durable, operation)
        self._pending = [one for one in self._pending if number not in _directories(one[1])]
        assert node.durable_names == node.names

    # -- images

    def current(self) -> Image:
        """The content that processes see."""
        names = {number: node.names for number, node in self._nodes.items()}
        return self._image(names, {number: bytes(node.content) for number, node in self._nodes.items()})

    def torn(self, write: Write) -> Image:
        """The content that processes see after a kill in the middle of that write."""
        contents = {number: bytes(node.content) for number, node in self._nodes.items()}
        half = bytearray(contents[write.node])
        _change(half, write._replace(data=write.data[: len(write.data) // 2]))
        contents[write.node] = bytes(half)
        return self._image({number: node.names for number, node in self._nodes.items()}, contents)

    def after(self, crash: Crash, rng: random.Random) -> Image:
        """The content after a crash at this point."""
        if crash is Crash.KILL:
            return self.current()
        names = {number: dict(node.durable_names) for number, node in self._nodes.items()}
        if crash is Crash.STRICT:
            return self._image(names, {number: node.durable for number, node in self._nodes.items()})
        reached = {disk: max(synced, self._reached(rng)) for disk, synced in self._synced.items()}
        limits = {number: reached[node.disk] for number, node in self._nodes.items()}
        if crash is Crash.LOOSE:
            limits = {number: self._reached(rng) for number in self._nodes}
        for number, operation in self._pending:
            if number <= max(limits[one] for one in _directories(operation)):
                _change_names(names, operation)
        contents = {}
        for number, node in self._nodes.items():
            contents[number] = _some_of(node, limits[number], rng)
        return self._image(names, contents)

    def _reached(self, rng: random.Random) -> int:
        """Changes of names and sizes up to this number are on disk."""
        return rng.choice((0, self._count, rng.randint(0, self._count), self._count - rng.randint(0, 12)))

    def _image(self, names: dict[int, dict[str, int]], contents: dict[int, bytes]) -> Image:
        image: Image = {}

        def add(number: int, prefix: str) -> None:
            for name, child in names[number].items():
                if self._nodes[child].is_directory:
                    image[prefix + name] = None
                    add(child, f"{prefix}{name}/")
                else:
                    image[prefix + name] = contents[child]

        add(0, "")
        return image


def _directories(operation: Make | Link | Unlink | Rename) -> set[int]:
    if isinstance(operation, Rename):
        return {operation.parent, operation.new_parent}
    return {operation.parent}


def _change_names(names: dict[int, dict[str, int]], operation: Make | Link | Unlink | Rename) -> None:
    match operation:
        case Make(parent, name, node) | Link(parent, name, node):
            names[parent][name] = node
        case Unlink(parent, name):
            names[parent].pop(name, None)
        case Rename(parent, name, new_parent, new_name):
            node = names[parent].pop(name, None)
            if node is not None:
                names[new_parent][new_name] = node


def _change(content: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        del content[operation.size :]
        content.extend(bytes(operation.size - len(content)))
        return
    end = operation.position + len(operation.data)
    content.extend(bytes(max(0, end - len(content))))
    content[operation.position : end] = operation.data


def _some_of(node: _Node, reached: int, rng: random.Random) -> bytes:
    """The durable content with some later changes: truncations up to `reached`, any pages of the writes.

    Of the writes after a truncation that is not on disk, only the page of the truncation may be there.
    """
    content = bytearray(node.durable)
    luck = rng.choice((0.0, 0.5, 0.9, 1.0))
    partial: int | None = None
    for number, operation in node.unsynced:
        if isinstance(operation, Truncate):
            if number <= reached and partial is None:
                _change(content, operation)
            elif operation.size < len(content):
                page = operation.size // PAGE_BYTES if operation.size % PAGE_BYTES else -1
                partial = page if partial is None else min(partial, page)
            continue
        for at, data in _pages(operation):
            whole = partial is None or at // PAGE_BYTES == partial
            if whole and rng.random() < luck:
                _change(content, Write(operation.node, at, data))
    if rng.random() < 0.3:  # the file's size is on disk, its pages are not
        content.extend(bytes(max(0, len(node.content) - len(content))) if partial is None else b"")
    return bytes(content)


def _pages(write: Write) -> Iterable[tuple[int, bytes]]:
    at, end = write.position, write.position + len(write.data)
    while at < end:
        past = min(end, (at // PAGE_BYTES + 1) * PAGE_BYTES)
        yield at, write.data[at - write.position : past - write.position]
        at = past


def write_image(image: Image, target: Path) -> None:
    """Called for each crash point: with `os`, in half the time that `Path` takes."""
    os.mkdir(target)
    for path in sorted(image):
        content = image[path]
        if content is None:
            os.mkdir(f"{target}/{path}")
        else:
            descriptor = os.open(f"{target}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            assert os.write(descriptor, content) == len(content)
            os.close(descriptor)


def read_image(root: Path) -> Image:
    return dict(_contents(str(root), ""))


def _contents(directory: str, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    for entry in sorted(os.scandir(directory), key=lambda one: one.name):
        if entry.is_dir(follow_symlinks=False):
            yield prefix + entry.name, None
            yield from _contents(entry.path, f"{prefix}{entry.name}/")
        else:
            with open(entry.path, "rb", buffering=0) as file:
                yield prefix + entry.name, file.read()
