# SPDX-License-Identifier: Apache-2.0
"""The token of a client: from a file or a callable, read again before it expires. No error of this module shows a
token.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from tidemark.model import TidemarkError, invalid_config
from tidemark.rpc.security.changed_file import signature
from tidemark.rpc.security.paths import TOKEN_ITSELF
from tidemark.runtime.configuration.file_content import read_content

VARIABLE: Final = "TIDEMARK_TOKEN_FILE"
TokenGiven = str | os.PathLike[str] | Callable[[], str]
"""A path, or a function that returns a token; gRPC's threads call it."""
_CHECK_S: Final = 0.5
_OPAQUE_S: Final = 60.0
"""Time for which a callable's token is kept if it names no expiry."""
_EARLY_S: Final = 30.0
"""A callable is called again this time before its token expires."""
_TOKEN: Final = re.compile(r"[!-~]{1,8192}")


class TokenSource:
    """Returns the newest token; safe for several threads.

    Args:
        given: the path of a file, or a callable.
        now_s: seconds since 1970.

    Raises:
        TidemarkError: INVALID_CONFIG: the file cannot be read, or holds no token; a token is given in place of a path.
    """

    def __init__(self, given: TokenGiven, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._ask = given if callable(given) else None
        self._path = "" if callable(given) else os.fspath(given)
        self._token = ""
        self._looked_s = self._again_s = 0.0
        self._seen: tuple[int, ...] | None = None
        if TOKEN_ITSELF.match(self._path):
            raise _wrong("token_file has a token itself: name the file that holds the token")
        if self._path:
            self._read()

    def current(self) -> str:
        """The token; raises INVALID_CONFIG, or the callable's error, if there is no token."""
        with self._lock:
            now_s = self._now_s()
            if not self._looked_s <= now_s < self._again_s:  # the clock may be set back
                self._looked_s = now_s
                if self._ask is not None:
                    self._token = _checked(self._ask(), "the callable of token_file returned")
                    self._again_s = _asked_again_s(self._token, self._now_s())
                else:
                    self._look()
            return self._token

    def _look(self) -> None:
        """Read the file if it changed. If the file is missing or incomplete, the former token stays in use."""
        self._again_s = self._now_s() + _CHECK_S
        if signature(self._path) != self._seen:
            with contextlib.suppress(TidemarkError):
                self._read()

    def _read(self) -> None:
        seen = signature(self._path)
        try:
            content = read_content(self._path)
        except OSError as error:
            raise _wrong(f"token_file is {self._path}, which cannot be read: {error.strerror}") from None
        self._token = _checked(content.decode("latin-1").strip(), f"token_file is {self._path}, which holds")
        self._seen = seen


def call_credentials(source: TokenSource) -> grpc.CallCredentials:
    """Credentials that add the token to each call or stream at its start."""
    return grpc.metadata_call_credentials(_Plugin(source), name="token")


class _Plugin(grpc.AuthMetadataPlugin):
    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def __call__(self, context: Any, callback: Any) -> None:
        try:
            token = self._source.current()
        except Exception as error:  # noqa: BLE001 - the call fails with it; an error of a callable may show a token
            callback((), error if isinstance(error, TidemarkError) else _wrong(f"token_file: {type(error).__name__}"))
            return
        callback((("authorization", f"Bearer {token}"),), None)


def _checked(token: object, whence: str) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise _wrong(f"{whence} no token: expected 1 to 8192 ASCII characters without spaces")
    return token


def _asked_again_s(token: str, now_s: float) -> float:
    """The time at which a callable is asked again. The claim `exp` is read, not verified: the server verifies it."""
    try:
        part = token.split(".")[1]
        expires_s = float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return now_s + _OPAQUE_S
    return max(now_s + _CHECK_S, expires_s - max(0.0, min(_EARLY_S, (expires_s - now_s) / 2)))


def _wrong(sentence: str) -> TidemarkError:
    return invalid_config("token_file", sentence)
