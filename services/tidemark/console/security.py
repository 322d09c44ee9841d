# SPDX-License-Identifier: Apache-2.0
"""Headers of every response, and the requests that are refused: of other sites, and under a foreign host name."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without a referrer the console's own forms would have no origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE: Final = ("GET", "HEAD")
_ALWAYS_LOCAL: Final = "localhost"


class SecurityHeaders:
    """Adds `HEADERS` to every response; a response without a caching rule of its own is not stored."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and add `HEADERS` to its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class RefusedRequests:
    """Refuses a request under a host name that is not the console's, and a change that another site sends.

    Args:
        hosts: names in addition to localhost and IP addresses. A foreign name at an address of the console is an
            attack (DNS rebinding): a web page would read the console as its own site.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts} | {_ALWAYS_LOCAL}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse the request with status 403 or 421."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            sentence = "This console has another host name. Its setting console.hosts names those that it answers to.\n"
            return PlainTextResponse(sentence, 421)
        if scope["method"] not in _SAFE and not _is_same_site(headers, host):
            return PlainTextResponse("A change must come from a page of this console.\n", 403)
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name.lower() in self._hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_same_site(headers: Headers, host: str) -> bool:
    """Whether a page of the console sent a change, or a program with a token in its header."""
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == host.lower()
    site = headers.get("sec-fetch-site")
    return site == "same-origin" if site is not None else "authorization" in headers
