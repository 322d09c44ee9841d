# SPDX-License-Identifier: Apache-2.0
"""The web application: a route for each page, login and logout, static files, the kubelet's probe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tidemark.client.aio import AdminClient
from tidemark.console.identity import (
    ANONYMOUS,
    COOKIE,
    Identity,
    drop_cookie,
    identify,
    is_token,
    local_path,
    set_cookie,
)
from tidemark.console.metrics import ConsoleMetrics
from tidemark.console.page import Asked, Done, Download, Page, Refused, View
from tidemark.console.pages.table import PAGES
from tidemark.console.queries.clients import Clients
from tidemark.console.queries.results import Results
from tidemark.console.queries.shared import SharedQueries
from tidemark.console.queries.sightings import Sightings
from tidemark.console.rendering import Renderer, text_of
from tidemark.console.responses import Form, Responses, events, wanted_form
from tidemark.console.security import RefusedRequests, SecurityHeaders
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.shared_calls import SharedCalls

STREAMS_MAX: Final = 500
FORM_BYTES_MAX: Final = 64 << 10
HEALTH_PATH: Final = "/healthz"
_STATIC: Final = Path(__file__).parent / "static"
_STATIC_AGE_S: Final = 3600
_CLOSE_IDLE_S: Final = 60.0

_FIELDS_MAX: Final = 200


class Console:
    """Answers the requests of browsers and scripts.

    Args:
        clients: clients of the cluster.
        refresh_ms: life of a shared answer, and interval of live updates.
        hosts: host names in addition to localhost and IP addresses.
        version: version of Tidemark.
        write: whether users of a cluster without security may make changes.
        pages: the table of pages.
        now_ms: the time since 1970.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        refresh_ms: int = 2_000,
        hosts: Collection[str] = (),
        version: str = "",
        write: bool = False,
        metrics: ConsoleMetrics | None = None,
        pages: Sequence[Page] = PAGES,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clients = clients
        self._writes = write and not clients.secure
        self._results: Results[View] = Results()
        self._refresh_s = refresh_ms / 1000
        self._metrics = metrics or ConsoleMetrics()
        self._now_ms = now_ms
        self._queries = SharedQueries(refresh_ms, now_ms, self._metrics.on_query)
        self._sightings = Sightings(now_ms)
        self._parts: SharedCalls[tuple[str, str], str] = SharedCalls(refresh_ms // 2, SystemClock())
        navigation = [page for page in pages if page.label]
        shared = {"navigation": navigation, "secure": clients.secure, "writes": self._writes, "version": version}
        renderer = Renderer(shared)
        self._responses = Responses(renderer)
        self._streams = 0
        self._stopping = asyncio.Event()
        self._routes = [*map(self._route, pages), *self._own_routes()]
        routed = Starlette(
            routes=self._routes,
            exception_handlers={HTTPException: self._on_http_error, Exception: self._on_error},
            lifespan=self._lifespan,
        )
        routed.router.redirect_slashes = False  # its redirects name the scheme, which an Ingress may have changed
        # Outside of Starlette, because Starlette's page for an internal error passes by its own middleware.
        self.app: ASGIApp = SecurityHeaders(RefusedRequests(routed, hosts))

    def stop_streams(self) -> None:
        """End all live updates; open pages connect again, to the next process."""
        self._stopping.set()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        closing = asyncio.create_task(self._close_idle(), name="close idle clients")
        try:
            yield
        finally:
            closing.cancel()
            await asyncio.wait({closing})
            await self._queries.close()
            await self._clients.close()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(_CLOSE_IDLE_S)
            self._queries.drop_idle()
            await self._clients.close_idle()

    def _own_routes(self) -> list[Route | Mount]:
        return [
            Route(HEALTH_PATH, _healthy),
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Mount("/static", _StaticFiles(directory=_STATIC), name="static"),
        ]

    def _route(self, page: Page) -> Route:
        async def answer(request: Request) -> Response:
            return await self._answer(page, request)

        return Route(page.path, answer, methods=list(page.methods), name=page.name)

    async def _answer(self, page: Page, request: Request) -> Response:
        began_s = time.perf_counter()
        form, identity = wanted_form(request.headers.get("accept", "")), self._identity(request)
        try:
            if identity is None:
                raise Refused(401, "Log in with a token.")
            response = await self._made(page, request, form, identity)
        except Refused as refused:
            response = self._refusal(refused, form, identity, request)
        except Exception:
            self._metrics.on_request(page.name, 500, time.perf_counter() - began_s)
            raise
        self._metrics.on_request(page.name, response.status_code, time.perf_counter() - began_s)
        return response

    async def _made(self, page: Page, request: Request, form: Form, identity: Identity) -> Response:
        if form is Form.EVENTS:
            return self._stream(page, request, identity)
        asked = self._asked(request, identity, await _form_of(request))
        result = self._result_of(request, identity) if "POST" in page.methods else None
        view = await page.load(asked) if result is None else result
        if isinstance(view, Download):
            return self._responses.download(view)
        if isinstance(view, Done):
            if form is Form.HTML:
                name = self._results.keep(identity.key, view.result)
                return RedirectResponse(f"?{urlencode({'result': name})}", 303)
            view = view.result
        address = _address(request)
        return self._responses.page(page, view, form, asked.problems, identity, address, asked.read_at_ms)

    def _result_of(self, request: Request, identity: Identity) -> View | None:
        """The result that an address names; None: the address names no result."""
        name = request.query_params.get("result")
        if name is None or request.method == "POST":
            return None
        found = self._results.get(identity.key, name)
        if found is None:
            sentence = "This console has no such result: it is too old, or of another replica. See the other pages."
            raise Refused(404, sentence)
        return found

    def _stream(self, page: Page, request: Request, identity: Identity) -> Response:
        if not page.live:
            raise Refused(406, "This page has no live updates.")
        self._check_room()

        async def made() -> str:
            asked = self._asked(request, identity, {})
            view = await page.load(asked)
            if not isinstance(view, View) or not view.live:
                raise Refused(406, "This page has no live updates.")
            return self._responses.part(page, view, asked.problems, asked.read_at_ms)

        async def part() -> str:
            return await self._parts.result((identity.key, _address(request)), made)

        return events(part, self._refresh_s, self._stopping, self._on_stream)

    def _check_room(self) -> None:
        if self._streams >= STREAMS_MAX:
            raise Refused(503, f"The console has {STREAMS_MAX} open live updates. Close some pages.")

    def _on_stream(self, change: int) -> None:
        if change > 0:
            self._check_room()
        self._streams += change
        self._metrics.on_stream(change)

    def _asked(self, request: Request, identity: Identity, form: Mapping[str, str]) -> Asked:
        return Asked(
            identity,
            self._clients,
            self._queries,
            self._sightings,
            self._now_ms,
            path={name: text_of(value) for name, value in request.path_params.items()},
            query=dict(request.query_params),
            form=form,
            changes=request.method == "POST",
            writes=self._writes,
        )

    def _identity(self, request: Request) -> Identity | None:
        return identify(request, secure=self._clients.secure)

    def _refusal(self, refused: Refused, form: Form, identity: Identity | None, request: Request) -> Response:
        if refused.status == 401 and form is Form.HTML:
            response: Response = RedirectResponse("/login?" + urlencode({"next": _address(request)}), 303)
            if COOKIE in request.cookies:
                drop_cookie(response)
            return response
        return self._responses.refusal(refused, form, identity, _address(request))

    async def _show_login(self, request: Request) -> Response:
        if not self._clients.secure:
            return RedirectResponse("/", 303)
        return self._responses.login("", local_path(request.query_params.get("next", "/")))

    async def _log_in(self, request: Request) -> Response:
        if not self._clients.secure:
            return RedirectResponse("/", 303)
        try:
            fields = await _form_of(request)
        except Refused as refused:
            return self._refusal(refused, Form.HTML, None, request)
        token, following = fields.get("token", "").strip(), local_path(fields.get("next", "/"))
        sentence = (
            "" if is_token(token) else "This is not a token: expected characters without spaces, commas and quotes."
        )
        sentence = sentence or await self._why_not(Identity.of(token))
        if sentence:
            return self._responses.login(sentence, following, 401)
        response = RedirectResponse(following, 303)
        set_cookie(response, token)
        return response

    async def _why_not(self, identity: Identity) -> str:
        """The reason why the cluster does not accept a token; "": the token is accepted, or the cluster does not
        answer.
        """
        try:
            await self._clients.call(identity, AdminClient, lambda admin: admin.describe_cluster())
        except TidemarkError as error:
            return error.message if error.code is ErrorCode.AUTHENTICATION_FAILED else ""
        return ""

    async def _log_out(self, request: Request) -> Response:
        response = RedirectResponse("/login" if self._clients.secure else "/", 303)
        drop_cookie(response)
        return response

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"].rstrip("/")
        asked = {**request.scope, "path": path}
        if error.status_code == 404 and any(one.matches(asked)[0] is not Match.NONE for one in self._routes):
            return RedirectResponse(_address(request, path), 307)
        sentences = {404: "This console has no page at this address.", 405: "This page cannot be changed this way."}
        refused = Refused(error.status_code, sentences.get(error.status_code, error.detail))
        return self._refusal(refused, wanted_form(request.headers.get("accept", "")), self._identity(request), request)

    async def _on_error(self, request: Request, error: Exception) -> Response:
        """A fault of the console; the server logs it."""
        refused = Refused(500, f"The console failed ({type(error).__name__}). Its log has the details.")
        return self._refusal(refused, wanted_form(request.headers.get("accept", "")), ANONYMOUS, request)


class _StaticFiles(StaticFiles):
    """The files of the package, which a browser may keep."""

    def file_response(self, *args: object, **options: object) -> Response:
        response: Response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = f"max-age={_STATIC_AGE_S}"
        return response


async def _healthy(request: Request) -> Response:
    """Answers while the process serves, even if no broker answers."""
    return PlainTextResponse("ok\n")


async def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form; raises `Refused` if the body is too large or not a form."""
    if request.method != "POST":
        return {}
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise Refused(413, f"The form has more than {FORM_BYTES_MAX} bytes.")
    except ClientDisconnect:
        raise Refused(400, "The form is not complete.") from None
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        raise Refused(400, "The form cannot be read.") from None


def _address(request: Request, path: str = "") -> str:
    """Path and parameters of a request, for a link: with two slashes at its beginning it would lead to another site.

    Args:
        path: in place of the path of the request.
    """
    query = request.url.query
    return "/" + quote(path or request.scope["path"]).lstrip("/") + (f"?{query}" if query else "")


__all__ = ["HEALTH_PATH", "Console"]
