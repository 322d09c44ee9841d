# SPDX-License-Identifier: Apache-2.0
"""Files of tokens and keys that cannot be read for a while, such as before a chmod, which changes no content."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tidemark.model import TidemarkError
from tidemark.rpc.security import changed_file, jwks, token_file, token_source
from tidemark.rpc.security.jwks import KeySet
from tidemark.rpc.security.token_source import TokenSource
from tidemark.rpc.security.tokens import StaticTokens

from tests.unit.rpc.security.test_tokens import key_set


class Unreadable:
    """Makes every read of a file fail, while `on`; the tests may run as root, which no mode of a file stops."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.reads = 0
        for name in ("open", "read_text", "read_bytes"):
            monkeypatch.setattr(Path, name, self._reading(getattr(Path, name)))

    def _reading(self, read: Any) -> Any:
        def reading(path: Path, *arguments: Any, **options: Any) -> Any:
            self.reads += 1
            if self.on:
                raise PermissionError(13, "Permission denied")
            return read(path, *arguments, **options)

        return reading


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    for module in (changed_file, token_source):
        monkeypatch.setattr(module, "_CHECK_S", 0.0)
    monkeypatch.setattr(jwks, "UNKNOWN_KEY_S", 0.0)
    return Unreadable(monkeypatch)


def test_static_tokens_are_read_as_soon_as_their_file_can_be_read(
    tmp_path: Path, unreadable: Unreadable, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    tokens = StaticTokens(str(path))
    added = token_file.digest_of(token_file.create(path, "bob"))
    unreadable.on = True
    assert [tokens.name_of(added) for _ in range(3)] == [None, None, None]
    assert caplog.text.count("Permission denied") == 1, "one line for one state of the file"
    assert tokens._file.failures == 1
    unreadable.on = False
    assert tokens.name_of(added) == "bob"
    before = unreadable.reads
    assert tokens.name_of(added) == "bob"
    assert unreadable.reads == before


async def test_keys_of_a_file_are_read_as_soon_as_the_file_can_be_read(tmp_path: Path, unreadable: Unreadable) -> None:
    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    path = key_set(tmp_path / "keys.json", {"old": old})
    keys = KeySet(str(path))
    assert await keys.find("old")
    key_set(path, {"new": new})
    unreadable.on = True
    assert await keys.find("old"), "the last valid keys stay in use"
    unreadable.on = False
    assert not await keys.find("old"), "a withdrawn key"
    assert await keys.find("new")
    assert json.loads(path.read_bytes())["keys"][0]["kid"] == "new"


async def test_an_unreadable_file_of_keys_is_read_rarely(
    tmp_path: Path, unreadable: Unreadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = key_set(tmp_path / "keys.json", {"old": ec.generate_private_key(ec.SECP256R1())})
    now_s = 0.0
    monkeypatch.setattr(jwks, "UNKNOWN_KEY_S", 10.0)
    keys = KeySet(str(path), now_s=lambda: now_s)
    await keys.find("old")
    path.touch()
    unreadable.on = True
    before = unreadable.reads
    await asyncio.gather(*(keys.find("old") for _ in range(20)))
    assert unreadable.reads == before + 1
    now_s = 10.0
    await keys.find("old")
    assert unreadable.reads == before + 2


def test_the_token_of_a_client_is_read_as_soon_as_its_file_can_be_read(tmp_path: Path, unreadable: Unreadable) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    source = TokenSource(str(path))
    assert source.current() == "first"
    path.write_text("second-one")
    unreadable.on = True
    assert source.current() == "first"
    unreadable.on = False
    assert source.current() == "second-one"


def test_a_file_that_cannot_be_read_at_the_start_is_refused(tmp_path: Path, unreadable: Unreadable) -> None:
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    unreadable.on = True
    with pytest.raises(TidemarkError, match="Permission denied"):
        StaticTokens(str(path))
