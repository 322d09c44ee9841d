# SPDX-License-Identifier: Apache-2.0
"""The three forms of a page at one address, chosen by the header Accept: HTML, JSON, a stream of updates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from starlette.responses import HTMLResponse, Response, StreamingResponse

from tidemark.console.identity import Identity
from tidemark.console.page import Download, Page, Problem, Refused, View
from tidemark.console.rendering import LIVE, WHOLE, Renderer
from tidemark.runtime.clock import timeout

_VARY: Final = {"Vary": "Accept, Cookie, Authorization"}
_NO_ANSWER: Final = (503, 504)
"""Refusals that pass by themselves. The stream ends without a word, so that the browser connects again."""
_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
"""Asks nginx, also as an Ingress, to pass each update on; otherwise small updates wait in its buffer."""


class Form(StrEnum):
    """A form of a page; the value is the media type."""

    HTML = "text/html"
    JSON = "application/json"
    EVENTS = "text/event-stream"


def wanted_form(accept: str) -> Form:
    """The first form that the header names; HTML for any other header."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        if media in tuple(Form):
            return Form(media)
    return Form.HTML


class Responses:
    """Makes the responses of all pages."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def page(
        self,
        page: Page,
        view: View,
        form: Form,
        problems: Sequence[Problem],
        identity: Identity,
        address: str,
        read_at_ms: int,
    ) -> Response:
        """The response with a page, in HTML or JSON."""
        if form is Form.JSON:
            return _json(_twin(view, problems, read_at_ms), view.status)
        text = self._html(page, view, WHOLE, problems, read_at_ms, identity=identity, address=address)
        return HTMLResponse(text, view.status, _VARY)

    def part(self, page: Page, view: View, problems: Sequence[Problem], read_at_ms: int) -> str:
        """The part of a page that live updates replace."""
        return self._html(page, view, LIVE, problems, read_at_ms)

    def download(self, made: Download) -> Response:
        """A response that browsers save as a file."""
        headers = {**_VARY, "Content-Disposition": f'attachment; filename="{made.name}"'}
        return Response(made.content, headers=headers, media_type=made.media_type)

    def refusal(self, refused: Refused, form: Form, identity: Identity | None, address: str) -> Response:
        """An error in place of a page, in the requested form."""
        headers = {"Retry-After": "5"} if refused.status in (503, 504) else {}
        reason = HTTPStatus(refused.status).phrase
        code = None if refused.error is None else str(refused.error.code)
        if form is not Form.HTML:
            error = {"status": refused.status, "code": code, "message": refused.sentence}
            return _json({"error": {**error, "since_ms": refused.since_ms or None}}, refused.status, headers)
        facts = {
            "title": reason,
            "sentence": refused.sentence,
            "code": code,
            "since_ms": refused.since_ms,
            "address": address,
            "identity": identity or Identity(),
            "page": "",
            "problems": (),
            "live": False,
        }
        return HTMLResponse(self._renderer.render("_error.html", WHOLE, facts), refused.status, {**_VARY, **headers})

    def login(self, sentence: str, following: str, status: int = 200) -> Response:
        """The login form; `sentence`: why it is shown again."""
        facts = {
            "title": "Log in",
            "sentence": sentence,
            "following": following,
            "address": "/login",
            "identity": Identity(),
            "page": "",
            "problems": (),
            "live": False,
        }
        return HTMLResponse(self._renderer.render("_login.html", WHOLE, facts), status, _VARY)

    def _html(
        self,
        page: Page,
        view: View,
        layout: str,
        problems: Sequence[Problem],
        read_at_ms: int,
        **more: object,
    ) -> str:
        facts = {
            "title": view.title,
            "command": view.command,
            "data": view.data,
            "page": page.name,
            "live": page.live and view.live,
            "problems": problems,
            "read_at_ms": read_at_ms,
            **more,
        }
        return self._renderer.render(f"{page.name}.html", layout, facts)


def events(
    render: Callable[[], Awaitable[str]], interval_s: float, stopping: asyncio.Event, counted: Callable[[int], None]
) -> StreamingResponse:
    """A stream of updates: the part is sent when it has changed, and after each check a sign that the stream is alive.

    Args:
        render: the part; raises `Refused` if the page cannot be shown now, or any more.
        interval_s: time between two looks.
        stopping: ends the stream.
        counted: receives 1 with the first part and -1 at the end of the stream; raises `Refused` for one too many.
    """
    updates = _updates(render, interval_s, stopping, counted)
    return StreamingResponse(updates, headers={**_VARY, **_UNBUFFERED}, media_type=Form.EVENTS)


async def _updates(
    render: Callable[[], Awaitable[str]], interval_s: float, stopping: asyncio.Event, counted: Callable[[int], None]
) -> AsyncIterator[str]:
    sent, is_counted = "", False
    try:
        while not stopping.is_set():
            try:
                part = await render()
            except Refused as refused:
                if refused.status not in _NO_ANSWER:
                    yield _event("refused", refused.sentence)
                return
            if not is_counted:  # not before: any caller can wait for the refusal of a made-up token
                try:
                    counted(1)
                except Refused as refused:
                    yield _event("refused", refused.sentence)
                    return
                is_counted = True
            if part != sent:
                sent = part
                yield _event("part", part)
            yield _event("alive", "")
            await _sleep(interval_s, stopping)
    finally:
        if is_counted:
            counted(-1)


async def _sleep(seconds: float, stopping: asyncio.Event) -> None:
    try:
        async with timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


def _twin(view: View, problems: Sequence[Problem], read_at_ms: int) -> Mapping[str, object]:
    return {
        "title": view.title,
        "command": view.command,
        "read_at_ms": read_at_ms,
        "problems": [asdict(problem) for problem in problems],
        "data": view.data,
    }


def _json(content: object, status: int, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(text, status, {**_VARY, **(headers or {})}, Form.JSON)
