# SPDX-License-Identifier: Apache-2.0
"""The file primitives of storage: descriptors that close with their last user, durable replacement, checked JSON.

A replaced file is replaced as a whole (temporary file, rename). One `syncfs` makes a whole directory durable; fsync is
used for single small files (docs/formats.md, "A log directory").
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import google_crc32c

from tidemark.model import ErrorCode, TidemarkError

TEMPORARY_SUFFIX: Final = ".tmp"
DELETED_SUFFIX: Final = ".deleted"
"""Suffix of a file that was removed from a log, and is deleted after a delay or when the log is opened again."""
PARTITION_FILE: Final = "partition.json"
"""File in each replica's directory with its topic id, incarnation and generation."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_FILES: Final = (errno.EMFILE, errno.ENFILE)
_BROKEN: Final = frozenset(
    {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN, errno.ENOTCONN, errno.ESHUTDOWN}
)


class Descriptor:
    """A file descriptor that is closed with the last reference to this object.

    While a caller holds the object (not only its number), the number is not reused for another file.
    """

    __slots__ = ("number",)

    def __init__(self, path: Path | str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def storage_error(doing: str, error: OSError) -> TidemarkError:
    """An OSError as a TidemarkError: DISK_FULL or STORAGE_ERROR."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    code = ErrorCode.DISK_FULL if has_no_room(error) else ErrorCode.STORAGE_ERROR
    return TidemarkError(code, f"{doing}: {reason}")


def has_no_room(error: BaseException) -> bool:
    """Whether disk space, a quota or the limit of open files is exhausted.

    Errors of a write (not of a sync) without a broken disk: a retry may succeed."""
    return isinstance(error, OSError) and error.errno in (*_NO_SPACE, *_TOO_MANY_FILES)


def is_unopened(error: BaseException) -> bool:
    """Whether the process or the machine has too many open files: then the call had no effect, and the disk is not
    the cause.
    """
    return isinstance(error, OSError) and error.errno in _TOO_MANY_FILES


def is_broken(error: BaseException) -> bool:
    """Whether the error affects the whole disk instead of a single file."""
    return isinstance(error, OSError) and error.errno in _BROKEN


def raise_storage_error(doing: str, error: OSError) -> NoReturn:
    """Raise `storage_error` in place of the OSError."""
    raise storage_error(doing, error) from error


def sync_file_system(directory: Path, descriptor: Descriptor) -> None:
    """Make all earlier writes to the file system of this directory durable: one syncfs(2) for all files.

    Args:
        descriptor: descriptor of the directory, opened before the first write to it. A writeback error that another
            process has seen is not reported to descriptors opened later.

    Raises:
        OSError: a writeback failed. A retry is not safe: the page cache has dropped the unwritten data.
    """
    if not hasattr(_LIBC, "syncfs"):
        os.sync()  # no syncfs outside Linux; this one reports no error
        return
    if _LIBC.syncfs(descriptor.number) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number), str(directory))


def monotonic_ms() -> int:
    """The time of the monotonic clock, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def sync_file(path: Path) -> None:
    """Make the content of one file durable."""
    descriptor = Descriptor(path, os.O_RDONLY)
    os.fsync(descriptor.number)


def open_directory(directory: Path) -> Descriptor:
    """Open a directory for `sync_directory`, before a step that must not fail for lack of descriptors."""
    return Descriptor(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_directory(directory: Path | Descriptor) -> None:
    """Make the names in a directory durable."""
    descriptor = directory if isinstance(directory, Descriptor) else open_directory(directory)
    os.fsync(descriptor.number)


def write_temporary(path: Path, content: bytes, *, durable: bool = False) -> Path:
    """Write the content to a temporary file in the directory of `path`, for the caller to rename."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    descriptor = Descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor.number, content, 0)
        if durable:
            os.fsync(descriptor.number)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk, the space is needed
        raise
    return temporary


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: a reader, or a start after a kill, gets the old or the new file.

    With `durable` the file is on disk when this returns (fsync, rename, fsync of the directory).
    """
    write_temporary(path, content, durable=durable).replace(path)
    if durable:
        sync_directory(path.parent)


def replace_or_overwrite(path: Path, content: bytes) -> None:
    """Replace a small file durably; on a full disk, write the blocks of the old file again.

    A kill in the middle of such a write leaves a file that `read_json` refuses.

    Raises:
        OSError: the disk is full, and there is no old file; or another error.
    """
    try:
        replace_file(path, content, durable=True)
    except OSError as error:
        if error.errno not in _NO_SPACE or not path.exists():
            raise
        descriptor = Descriptor(path, os.O_WRONLY)
        write_all(descriptor.number, content, 0)
        os.ftruncate(descriptor.number, len(content))
        os.fsync(descriptor.number)


def write_all(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Write all bytes, with as many calls of pwrite(2) as are needed."""
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, position)
        left, position = left[written:], position + written


def write_vector(descriptor: int, buffers: Sequence[bytes | memoryview], total: int, position: int) -> None:
    """pwritev(2) of buffers of `total` bytes, until all bytes are written."""
    written = os.pwritev(descriptor, buffers, position)
    while written < total:
        rest = memoryview(b"".join(buffers))[written:]
        count = os.pwrite(descriptor, rest, position + written)
        if count <= 0:
            raise OSError(errno.EIO, "no bytes were written")
        written += count


def read_exactly(descriptor: int, length: int, position: int) -> bytes:
    """pread(2) until all bytes are read; the result is shorter at the end of the file."""
    data = os.pread(descriptor, length, position)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(descriptor, length - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def drop_from_page_cache(descriptor: int, start: int, size: int) -> None:
    """Make the next read of these bytes come from the disk; bytes that are not written back stay in the page cache.
    A hint (fadvise).
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def checksum(content: bytes) -> int:
    """The CRC-32C of the data."""
    value: int = google_crc32c.value(content)
    return value


class BadFile(Exception):  # noqa: N818 - a finding about a file, turned into a refusal or a repair by its reader
    """A small file exists with wrong content; the text states the fault."""


def pack_json(document: Mapping[str, Any]) -> bytes:
    """A JSON object with the CRC-32C of its content as its last member."""
    return (json.dumps({**document, "crc": _document_crc(document)}, indent=1) + "\n").encode()


def read_json(path: Path, **members: type) -> dict[str, Any] | None:
    """A document of `pack_json` with members of these types; None if there is no file.

    Raises:
        BadFile: truncated, damaged, or not written by `pack_json`.
    """
    content = _content(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
        whole = isinstance(document, dict) and document.pop("crc", None) == _document_crc(document)
    except (ValueError, RecursionError):
        raise BadFile(f"{path.name} is not JSON") from None
    if not whole:
        raise BadFile(f"the checksum of {path.name} does not match")
    for name, kind in members.items():
        if type(document.get(name)) is not kind:
            raise BadFile(f"{path.name} has no {name} that can be used")
    known: dict[str, Any] = document
    return known


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(f"{path.name} cannot be read: {error.strerror}") from error


def _document_crc(document: Mapping[str, Any]) -> int:
    return checksum(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def pack_lines(lines: list[str]) -> bytes:
    """A text file: a version line, the lines, and the CRC-32C of all that in a last line."""
    body = "".join(f"{line}\n" for line in ["1", *lines]).encode()
    return body + f"crc {checksum(body):08x}\n".encode()


def read_lines(path: Path) -> list[str] | None:
    """The lines of `pack_lines`; None where there is no file.

    Raises:
        BadFile: truncated, damaged or of an unknown version.
    """
    content = _content(path)
    if content is None:
        return None
    cut = content.rfind(b"crc ")
    if cut < 0 or content[cut:] != f"crc {checksum(content[:cut]):08x}\n".encode():
        raise BadFile(f"the checksum of {path.name} does not match")
    try:
        version, *lines = content[:cut].decode().splitlines()
    except ValueError:
        raise BadFile(f"{path.name} is not in the format of this program") from None
    if version != "1":
        raise BadFile(f"{path.name} has version {version}, this program knows 1")
    return lines
