# SPDX-License-Identifier: Apache-2.0
"""The file of static tokens: a line `NAME: SHA-256` for each token, never the token."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidemark.model import TidemarkError, invalid_config, invalid_request
from tidemark.runtime.configuration.file_content import read_content

PREFIX: Final = "tidemark_"
"""Start of each token, so that scanners for leaked secrets can find them."""
_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE: Final = re.compile(rf"(?P<name>{_NAME.pattern}): *(?P<hash>[0-9a-f]{{64}})")


def digest_of(token: str) -> str:
    """The hash of a token, as in the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def parse(text: str, path: str) -> dict[str, str]:
    """Hash by name; raises INVALID_CONFIG for a line of another form, which the error does not repeat."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(bare)
        if match is None:
            raise _wrong(f"{path}, line {number}: expected NAME: and a SHA-256 in 64 hexadecimal digits, in lower case")
        if match["name"] in found:
            raise _wrong(f"{path}, line {number}: the name {match['name']} is there twice")
        found[match["name"]] = match["hash"]
    return found


def read(path: str | Path) -> dict[str, str]:
    """Hash by name; raises INVALID_CONFIG if the file cannot be read."""
    try:
        return parse(read_content(path).decode(), str(path))
    except OSError as error:
        raise _wrong(f"tokens.file is {path}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _wrong(f"tokens.file is {path}, which is not text") from None


def create(path: Path, name: str) -> str:
    """A new random token of 256 bits, whose hash is added to the file; the token itself is stored nowhere.

    Raises:
        TidemarkError: INVALID_REQUEST: the name is wrong or in use, another command changes the file now, the group
            of the file cannot be kept, or the path is a directory or a device.
    """
    if not _NAME.fullmatch(name):
        raise invalid_request(f"the name is {name!r}: expected at most 100 letters, digits, '.', '_' and '-'")
    token = PREFIX + secrets.token_urlsafe(_BYTES)
    path = _file_at(path)
    with _changing(path, may_lack=True) as hashes:
        if name in hashes:
            raise invalid_request(f"{path} has a token of the name {name}: remove it first, or choose another name")
        hashes[name] = digest_of(token)
    return token


def remove(path: Path, name: str) -> None:
    """Remove a token; raises INVALID_REQUEST for an unknown name, and for a directory or a device."""
    path = _file_at(path)
    with _changing(path) as hashes:
        if name not in hashes:
            raise invalid_request(f"{path} has no token of the name {name}")
        del hashes[name]


def _file_at(path: Path) -> Path:
    """The file to replace, behind links; raises INVALID_REQUEST for a device, which would be a file afterwards."""
    if path.exists() and not path.is_file():
        raise invalid_request(f"{path} is not a regular file: name the file of the tokens")
    return path.resolve() if path.is_symlink() else path


@contextlib.contextmanager
def _changing(path: Path, *, may_lack: bool = False) -> Iterator[dict[str, str]]:
    """The hashes of the file, to be changed; written in one step at the end.

    The new file is made before the old one is read: so a second command cannot lose the change of the first one.
    """
    new = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise invalid_request(f"{new} exists: another command is changing {path}; if none is, remove {new}") from None
    except OSError as error:
        raise invalid_request(f"{new}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            hashes = {} if may_lack and not path.exists() else read(path)
            yield hashes
            _keep_access(path, descriptor)
            file.writelines(f"{name}: {digest}\n" for name, digest in hashes.items())
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _keep_access(path: Path, descriptor: int) -> None:
    """Mode, group and, where permitted, owner of the old file: a service must be able to read the new one, too."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return
    try:
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            os.fchown(descriptor, -1, old.st_gid)
    except PermissionError as error:
        raise invalid_request(
            f"{path} is unchanged, because the new file cannot have the group {old.st_gid} of the old one "
            f"({error.strerror}). Run the command as the owner of the file, or as root"
        ) from None
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _wrong(sentence: str) -> TidemarkError:
    return invalid_config("tokens.file", sentence)
