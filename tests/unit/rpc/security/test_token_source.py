# SPDX-License-Identifier: Apache-2.0
"""The token of a client: read again when its file changes or before its end, and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from tidemark.client import Producer, TlsFiles
from tidemark.client.metadata.tls import Credentials, client_identity
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.token_source import VARIABLE, TokenSource, _Plugin

from tests.refusals import raises_code

SECRET = "tidemark_very-secret"


def plugin_answer(source: TokenSource) -> tuple[Any, Exception | None]:
    found: list[tuple[Any, Exception | None]] = []
    _Plugin(source)(None, lambda metadata, error: found.append((metadata, error)))
    return found[0]


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_used(tmp_path: Path) -> None:
    now_s = 100.0
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    source = TokenSource(path, lambda: now_s)
    assert plugin_answer(source) == ((("authorization", f"Bearer {SECRET}"),), None)
    for content, wanted in (("second", "second"), ("", "second"), ("two words", "second"), ("third", "third")):
        path.write_text(content)
        now_s += 1
        assert source.current() == wanted
    path.unlink()
    now_s += 1
    assert source.current() == "third"


@pytest.mark.parametrize("content", [b"", b"two words", b"x" * 9000, b"a\x00b", b"\xff"])
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with raises_code(ErrorCode.INVALID_CONFIG, "holds no token") as refused:
        TokenSource(path)
    assert content.decode("latin-1") not in str(refused.value) or not content


@pytest.mark.parametrize(
    "token",
    ["tidemark_" + "x" * 43, " tidemark_" + "x" * 43, "eyJhbGciOi.eyJzdWIi.c2ln", "Bearer x", "x" * 2000, "a\nb"],
)
def test_a_token_in_place_of_its_path_is_refused_and_not_shown(token: str) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG, "token itself") as refused:
        TokenSource(token)
    assert token.strip() not in str(refused.value)


def token_until(expires_s: float) -> str:
    return jwt.encode({"exp": int(expires_s)}, "x" * 32, "HS256")


def test_a_callable_is_asked_again_before_its_token_expires() -> None:
    now_s, asked = 1000.0, []

    def ask() -> str:
        asked.append(now_s)
        return token_until(now_s + 300)

    source = TokenSource(ask, lambda: now_s)
    for _ in range(3):
        source.current()
    assert len(asked) == 1
    now_s += 269
    source.current()
    assert len(asked) == 1
    now_s += 2
    source.current()
    assert len(asked) == 2


@pytest.mark.parametrize("kind", ["file", "callable"])
def test_a_token_is_replaced_in_time_although_the_clock_is_set_back(tmp_path: Path, kind: str) -> None:
    now_s, path = 10_000.0, tmp_path / "token"
    path.write_text("first")
    source = TokenSource(str(path) if kind == "file" else path.read_text, lambda: now_s)
    assert source.current() == "first"
    now_s -= 3_600
    path.write_text("second-one")
    assert source.current() == "second-one"


def test_a_callable_with_an_expired_token_is_not_asked_without_a_pause() -> None:
    asked = []

    def ask() -> str:
        asked.append(1)
        return token_until(900)

    source = TokenSource(ask, lambda: 1000.0)
    for _ in range(100):
        source.current()
    assert len(asked) == 1


def fails() -> str:
    raise RuntimeError(f"no luck with {SECRET}")


@pytest.mark.parametrize("ask", [fails, lambda: f"{SECRET} {SECRET}", lambda: None])
def test_a_call_fails_with_a_sentence_that_has_no_token(ask: Callable[[], Any]) -> None:
    metadata, error = plugin_answer(TokenSource(ask))
    assert metadata == ()
    assert isinstance(error, TidemarkError)
    assert "token_file" in str(error)
    assert SECRET not in repr(error)


def test_a_token_without_tls_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    with pytest.raises(TidemarkError, match="a token needs TLS"):
        client_identity(Credentials(None, path))
    with pytest.raises(TidemarkError, match="a token needs TLS"):
        Producer("127.0.0.1:1", token_file=os.fspath(path))
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(TidemarkError, match="a token needs TLS"):
        client_identity(None)


@pytest.mark.parametrize("given", [5, "", b"x", ["x"]])
def test_another_value_than_a_path_or_a_callable_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(TypeError, match="token_file is"):
        client_identity(Credentials(None, given))


def test_no_object_of_a_client_shows_its_token(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs", "shop")
    path = tmp_path / "token"
    path.write_text(SECRET)
    identity = client_identity(Credentials(TlsFiles(authority.files("ca").ca), path))
    assert identity is not None
    assert identity.token is not None
    assert identity.token.current() == SECRET
    assert SECRET not in repr(identity) + repr(identity.token) + repr(Credentials(None, path))
    assert client_identity(Credentials(TlsFiles(authority.files("ca").ca), str(path))) is identity
