# SPDX-License-Identifier: Apache-2.0
"""The identity of a request: a bearer token from the header or the login's cookie, or no token if security is off.

The console forwards the token to the cluster, which decides on every call. The console stores no token. The cookie is
in the browser, and a client of the cluster keeps the token in memory while pages use it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

COOKIE: Final = "tidemark_console_token"
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")
"""A browser keeps a cookie of up to 4 KiB."""
_COOKIE_SAFE: Final = re.compile(r"[^\s\",;\\]+")


@dataclass(frozen=True, slots=True)
class Identity:
    """A user as the cluster sees it.

    Attributes:
        token: "": without security.
        key: names the identity in caches; the token cannot be derived from it.
    """

    token: str = field(default="", repr=False)
    key: str = ""

    @classmethod
    def of(cls, token: str) -> Identity:
        """The identity that a token carries."""
        return cls(token, hashlib.sha256(token.encode()).hexdigest())


ANONYMOUS: Final = Identity()


def is_token(text: str) -> bool:
    """Whether a text can be a token in a cookie."""
    return _TOKEN.fullmatch(text) is not None and _COOKIE_SAFE.fullmatch(text) is not None


def identify(connection: HTTPConnection, *, secure: bool) -> Identity | None:
    """The identity of a request; None: the request needs a token and has none."""
    if not secure:
        return ANONYMOUS
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else connection.cookies.get(COOKIE, "")
    return Identity.of(token) if is_token(token) else None


def set_cookie(response: Response, token: str) -> None:
    """Keep the token in the browser, until the browser ends, out of reach of scripts and of other sites.

    A browser takes a `secure` cookie over HTTPS, and from localhost.
    """
    response.set_cookie(COOKIE, token, httponly=True, secure=True, samesite="strict", path="/")


def drop_cookie(response: Response) -> None:
    """Remove the token from the browser."""
    response.delete_cookie(COOKIE, httponly=True, secure=True, samesite="strict", path="/")


def local_path(text: str) -> str:
    """The address if it is a path of this console, else "/": a login never leads to another site."""
    parts = urlsplit(text)
    is_local = text.startswith("/") and not text.startswith("//") and not parts.scheme and not parts.netloc
    plain = is_local and text.isprintable() and "\\" not in text and " " not in text
    return text if plain else "/"
