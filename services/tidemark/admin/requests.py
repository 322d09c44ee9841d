# SPDX-License-Identifier: Apache-2.0
"""Idempotent requests: a retry with the same request id gets the response of the first attempt.

A znode for each request id stores the method, a digest of the request and the response, for 24 hours. Above a total
size, the oldest requests of the callers with the most bytes are removed earlier, so no caller can fill ZooKeeper. An
attempt that failed leaves a znode without a response. The next attempt repeats the work, except for completed parts. A
refusal changes nothing and is not stored, so the request may be repeated.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidemark.model import REQUEST_ID_CHARACTERS_MAX, ErrorCode, TidemarkError, invalid_request
from tidemark.ports import AdminRequest, Clock
from tidemark.rpc.security.access import CURRENT
from tidemark.zookeeper.requests import NODE_BYTES
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3600 * 1000
_EXPIRE_EVERY_MS: Final = 3600 * 1000
_EXPIRE_EVERY_BYTES: Final = 16 << 20
"""Size of records that this service stores between two checks for records above the limit."""

_PRINCIPAL_DIGITS: Final = 16

Facts = Mapping[str, str]
Response = TypeVar("Response")


class AnsweredOnce:
    """Carries out a request with effects at most once. `Any` is a protobuf message with a `request_id`.

    Args:
        store: started.
        clock: decides when stored responses expire.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._expired_ms: int | None = None
        self._stored_bytes = 0
        """Size of the records that this service stored since it last removed some."""

    async def once(
        self,
        method: str,
        request: Any,
        response_type: type[Response],
        work: Callable[[Facts], Awaitable[Response]],
        look: Callable[[], Awaitable[Facts]] | None = None,
        is_final: Callable[[Response], bool] = lambda _: True,
    ) -> Response:
        """Return the stored response to `request`; without one, do the work and store its response.

        Args:
            method: name of the RPC.
            request: digested without its id; the response of one with `validate_only` or without id is not stored.
            response_type: type of the response.
            work: does the work, given the facts of the first attempt; a repetition must find completed parts done.
            look: reads the facts that the work depends on, so that a later attempt uses the same; may refuse.
            is_final: whether to store the response; a response that reports some part as "not yet" is not stored.

        Raises:
            TidemarkError: REQUEST_ID_REUSED; INVALID_REQUEST for an id that is too long; errors of `look` and `work`.
        """
        if not request.request_id or getattr(request, "validate_only", False):
            return await work({} if look is None else await look())
        kept = await self._kept(method, request)
        began = kept is None
        if kept is None:
            facts = {} if look is None else await look()
            kept = await self._store.begin_request(self._record(method, request, facts=facts))
            self._check(kept, method, request)
        if kept.answer is not None:
            return _parsed(response_type, kept.answer)
        try:
            answer = await work(kept.facts)
        except TidemarkError as error:
            if began and not error.retriable:
                await self._forget(kept)
            raise
        if not is_final(answer):
            return answer
        return await self._keep(self._answered(kept, answer), response_type, answer)

    async def answer_to(self, method: str, request: Any, response_type: type[Response]) -> Response | None:
        """Return the stored response to this request; None if no response is stored. Raises as `once`."""
        kept = await self._kept(method, request) if request.request_id else None
        return None if kept is None or kept.answer is None else _parsed(response_type, kept.answer)

    async def _kept(self, method: str, request: Any) -> AdminRequest | None:
        if len(request.request_id) > REQUEST_ID_CHARACTERS_MAX:
            raise invalid_request(f"a request_id has {REQUEST_ID_CHARACTERS_MAX} characters at most")
        await self._maybe_expire()
        kept = await self._store.kept_request(_key(request))
        if kept is None:
            return None
        if kept.at_ms < self._now_ms() - KEPT_MS:
            await self._store.forget_request(kept)
            return None
        self._check(kept, method, request)
        return kept

    def receipt(self, method: str, request: Any, answer: Any) -> AdminRequest | None:
        """Build the record that a multi stores together with its change; None: the request has no id."""
        if not request.request_id:
            return None
        return self._answered(self._record(method, request), answer)

    def _answered(self, record: AdminRequest, answer: Any) -> AdminRequest:
        serialized: bytes = answer.SerializeToString()
        self._stored_bytes += len(serialized)
        return replace(record, answer=serialized)

    def _record(self, method: str, request: Any, *, facts: Facts | None = None) -> AdminRequest:
        self._stored_bytes += NODE_BYTES
        return AdminRequest(_key(request), method, _digest(request), self._now_ms(), facts or {})

    def _check(self, kept: AdminRequest, method: str, request: Any) -> None:
        if (kept.method, kept.digest) == (method, _digest(request)):
            return
        use = "with another content" if kept.method == method else f"for {kept.method}"
        raise TidemarkError(
            ErrorCode.REQUEST_ID_REUSED,
            f"the request id {request.request_id!r} was used {use} in the last 24 hours: give every request its own "
            "id, and repeat a request without a change",
            {"request_id": request.request_id, "method": kept.method},
        )

    async def _keep(self, finished: AdminRequest, response_type: type[Response], answer: Response) -> Response:
        """Store the response; of two concurrent attempts, both return the response stored first."""
        try:
            kept = await self._store.finish_request(finished)
        except TidemarkError as error:
            _log.warning(
                "a response could not be stored", extra={"request_id": finished.request_id, "why": error.message}
            )  # a retry repeats the work, and finds it done
            return answer
        return answer if kept.answer is None else _parsed(response_type, kept.answer)

    async def _forget(self, begun: AdminRequest) -> None:
        try:
            await self._store.forget_request(begun)
        except TidemarkError as error:
            _log.warning(
                "the record of a refused request could not be deleted",
                extra={"request_id": begun.request_id, "why": error.message},
            )

    async def _maybe_expire(self) -> None:
        now_ms = self._clock.now_ms()
        is_due = self._expired_ms is None or now_ms - self._expired_ms >= _EXPIRE_EVERY_MS
        if not is_due and self._stored_bytes < _EXPIRE_EVERY_BYTES:
            return
        self._expired_ms, self._stored_bytes = now_ms, 0
        removed = await self._store.expire_requests(self._now_ms() - KEPT_MS)
        if removed:
            _log.info("stored responses expired", extra={"count": removed})

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000


def by_content(request: Any) -> Any:
    """The request under an id of its content: several requests with one id are parts of one change, each kept
    separately.

    A request without an id, or with one that is too long, stays as it is.
    """
    if not 0 < len(request.request_id) <= REQUEST_ID_CHARACTERS_MAX:
        return request
    part = type(request)()
    part.CopyFrom(request)
    part.request_id = hashlib.sha256(f"{_digest(request)}:{request.request_id}".encode()).hexdigest()
    return part


def _key(request: Any) -> str:
    """The id, with the principal if authorization is on: no caller gets the response to another one's request."""
    access = CURRENT.get()
    if access is None:
        return str(request.request_id)
    digits = hashlib.sha256(access.principal.encode()).hexdigest()[:_PRINCIPAL_DIGITS]
    whole = f"{digits}:{request.request_id}"
    return whole if len(whole) <= REQUEST_ID_CHARACTERS_MAX else hashlib.sha256(whole.encode()).hexdigest()


def _digest(request: Any) -> str:
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("request_id")
    return hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()


def _parsed(response_type: type[Response], answer: bytes) -> Response:
    message: Any = response_type
    parsed: Response = message.FromString(answer)
    return parsed
