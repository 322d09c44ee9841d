# SPDX-License-Identifier: Apache-2.0
"""The parts of every page: the request with its questions to the cluster, and the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from tidemark.client.aio import AdminClient
from tidemark.client.lifecycle import Lifecycle
from tidemark.console.identity import Identity
from tidemark.console.queries.clients import ClientClass, Clients
from tidemark.console.queries.shared import Answer, SharedQueries, is_denial
from tidemark.console.queries.sightings import Sighting, Sightings
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import timeout

C = TypeVar("C", bound=Lifecycle)
T = TypeVar("T")

NEED_S: Final = 6.0
"""Time that a page waits for an answer that it needs."""
STALE_S: Final = 0.25
"""Time that a page waits for a newer answer if it has an older answer, or does not need one."""


_LATE: Final = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the cluster has not answered yet")


class Refused(Exception):  # noqa: N818 - a page that is not shown is not a fault
    """The page is not shown; the response has `status` and `sentence`.

    Attributes:
        error: error of the cluster, if an error is the cause.
        since_ms: start of the cause, in milliseconds since 1970; 0: not known.
    """

    def __init__(self, status: int, sentence: str, *, error: TidemarkError | None = None, since_ms: int = 0) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.error = error
        self.since_ms = since_ms


@dataclass(frozen=True, slots=True)
class Problem:
    """A question that the cluster did not answer; the page shows the other answers.

    Attributes:
        since_ms: start of the first call that failed.
        read_at_ms: time of the data that the page shows instead; 0: the page shows no data.
        denied: the user may not ask the question.
    """

    sentence: str
    code: str
    since_ms: int
    read_at_ms: int
    denied: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The content of a page, for HTML and JSON.

    Attributes:
        command: the `tidemark` command that shows the same.
        data: data for the template and the JSON twin.
        status: status of the response.
        live: False stops the updates of an open page, also where the table of pages has `live`.
    """

    title: str
    command: str
    data: Mapping[str, object]
    status: int = 200
    live: bool = True


@dataclass(frozen=True, slots=True)
class Download:
    """The answer of a page that is a file, which a browser saves and never shows.

    Attributes:
        name: name of the file; letters, digits, dots, hyphens and underscores.
    """

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of a page that has made a change. A browser is redirected to an address of `result`, so that a reload
    does not repeat the change. A program gets `result` directly.
    """

    result: View


@dataclass(slots=True)
class Asked:
    """One request for a page.

    Attributes:
        path: the parts of the address, such as `topic`.
        query: the parameters after "?"; the last value of each.
        form: fields of a change.
        changes: whether the request carries a change out.
        writes: whether users without a token may make changes.
        problems: problems of the questions so far.
        oldest_ms: start of the oldest call whose answer the page shows, among answers with the usual age limit; None:
            no call yet.
    """

    identity: Identity
    clients: Clients
    queries: SharedQueries
    sightings: Sightings
    now_ms: Callable[[], int]
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    writes: bool = False
    problems: list[Problem] = field(default_factory=list)
    oldest_ms: int | None = None

    @property
    def read_at_ms(self) -> int:
        """The time of the page's data."""
        return self.now_ms() if self.oldest_ms is None else self.oldest_ms

    async def see(
        self,
        kind: str,
        call: Callable[[C], Awaitable[T]],
        client: ClientClass[C],
        *,
        key: Hashable = (),
        life_ms: int | None = None,
        patience_s: float = STALE_S,
    ) -> Answer[T]:
        """Ask an optional question; a failure is listed at the top of the page.

        Args:
            kind: name of the question in metrics.
            call: a method of the client, with its arguments.
            client: class of the client, such as `AdminClient`.
            key: the arguments, which distinguish questions of the same kind.
            life_ms: age up to which pages share an answer; None: console.refresh.ms.
            patience_s: time to wait; the call continues, and a later update of the page has its answer.
        """
        answer = await self.queries.ask(
            kind,
            (self.identity.key, key),
            lambda: self.clients.call(self.identity, client, call),
            patience_s=patience_s,
            life_ms=life_ms,
        )
        if answer.error is not None:
            _refuse_without_token(answer.error)
            self._note(answer.error, answer)
        elif answer.waiting_since_ms:
            self._note(_LATE, replace(answer, failing_since_ms=answer.waiting_since_ms))
        if answer.value is not None and life_ms is None:
            self.oldest_ms = min(self.oldest_ms or answer.read_at_ms, answer.read_at_ms)
        return answer

    def _note(self, error: TidemarkError, answer: Answer[T]) -> None:
        """List a problem, once for each cause."""
        found = Problem(
            error.message, str(error.code), answer.failing_since_ms, answer.read_at_ms, denied=is_denial(error)
        )
        if all((one.code, one.sentence) != (found.code, found.sentence) for one in self.problems):
            self.problems.append(found)

    async def need(
        self,
        kind: str,
        call: Callable[[C], Awaitable[T]],
        client: ClientClass[C],
        *,
        key: Hashable = (),
        life_ms: int | None = None,
    ) -> T:
        """Ask a question whose answer the page needs; raises `Refused`. An older answer is used if there is no newer
        one.
        """
        known = len(self.problems)
        answer = await self.see(kind, call, client, key=key, life_ms=life_ms)
        if answer.value is None and answer.error is None:
            answer = await self.see(kind, call, client, key=key, life_ms=life_ms, patience_s=NEED_S)
        if answer.value is not None:
            return answer.value
        del self.problems[known:]
        if answer.error is None:
            raise Refused(504, f"The cluster has not answered within {NEED_S:g} s. Load the page again.")
        status = _status_of(answer.error)
        raise Refused(status, answer.error.message, error=answer.error, since_ms=answer.failing_since_ms)

    async def read(
        self, kind: str, call: Callable[[C], Awaitable[T]], client: ClientClass[C], *, patience_s: float
    ) -> T:
        """Ask a question whose answer is too large to be kept and shared; raises `Refused`."""
        try:
            async with timeout(patience_s):
                return await self.queries.once(kind, lambda: self.clients.call(self.identity, client, call))
        except TimeoutError:
            raise Refused(504, f"The cluster has not answered within {patience_s:g} s. Load the page again.") from None
        except TidemarkError as error:
            _refuse_without_token(error)
            raise Refused(_status_of(error), error.message, error=error) from None

    async def change(self, kind: str, call: Callable[[C], Awaitable[T]], client: ClientClass[C]) -> T:
        """Make a change, without a retry; raises `Refused`, which states if the outcome is unknown."""
        try:
            return await self.read(kind, call, client, patience_s=NEED_S)
        except Refused as refused:
            if refused.status not in (503, 504):
                raise
            sentence = f"{refused.sentence.rstrip('.')}. The change may still have been made: see the dry run."
            raise Refused(refused.status, sentence, error=refused.error) from None

    async def need_admin(
        self, kind: str, call: Callable[[AdminClient], Awaitable[T]], *, key: Hashable = (), life_ms: int | None = None
    ) -> T:
        """Like `need`, from a client of the admin service."""
        return await self.need(kind, call, AdminClient, key=key, life_ms=life_ms)

    async def see_admin(
        self, kind: str, call: Callable[[AdminClient], Awaitable[T]], *, key: Hashable = (), life_ms: int | None = None
    ) -> Answer[T]:
        """Like `see`, from a client of the admin service."""
        return await self.see(kind, call, AdminClient, key=key, life_ms=life_ms)

    def sighted(self, key: Hashable, state: Hashable) -> Sighting:
        """Note a state, and return since when the console sees it."""
        return self.sightings.note((self.identity.key, key), state)

    @property
    def may_change(self) -> bool:
        """Whether the console carries out changes for this user; the cluster authorizes each change."""
        return self.writes or bool(self.identity.token)

    def need_write(self) -> None:
        """Refuse a change of a console that only reads."""
        if not self.may_change:
            raise Refused(403, "This console only reads: console.write is false. Use the command instead.")


@dataclass(frozen=True, slots=True)
class Page:
    """A line of the table of pages.

    Attributes:
        name: name of the template, and in metrics.
        path: the address, with the parts in braces.
        label: text of the link in the navigation; "": no link.
        live: whether an open page is updated.
    """

    name: str
    path: str
    load: Callable[[Asked], Awaitable[View | Download | Done]]
    label: str = ""
    live: bool = True
    methods: tuple[str, ...] = ("GET",)


_NOT_FOUND: Final = (
    ErrorCode.UNKNOWN_TOPIC,
    ErrorCode.UNKNOWN_PARTITION,
    ErrorCode.UNKNOWN_BROKER,
    ErrorCode.GROUP_NOT_FOUND,
    ErrorCode.TRANSACTION_NOT_FOUND,
)


_CONFLICTS: Final = (ErrorCode.GROUP_NOT_EMPTY, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
_INVALID: Final = (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_TOPIC_NAME)


def _status_of(error: TidemarkError) -> int:
    if error.code in _NOT_FOUND:
        return 404
    if error.code in _CONFLICTS:
        return 409
    if is_denial(error):
        return 403
    return 400 if error.code in _INVALID else 503


def _refuse_without_token(error: TidemarkError) -> None:
    if error.code is ErrorCode.AUTHENTICATION_FAILED:
        raise Refused(401, error.message, error=error)
