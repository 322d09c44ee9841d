# SPDX-License-Identifier: Apache-2.0
"""Requests that change something are answered once: a retry with the same request id gets the first try's answer.

What is kept is a node for each id, with the method, a digest of the content and the answer, for 24 hours. A try that
died before it was answered has left a node without one: the next try does the work again, which finds what is done.
A refusal is not kept: nothing was changed, so there is nothing to repeat.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidemark.model import REQUEST_ID_CHARACTERS_MAX, ErrorCode, TidemarkError
from tidemark.ports import AdminRequest, Clock, MetadataStore

_log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3600 * 1000
_EXPIRE_EVERY_MS: Final = 3600 * 1000

Facts = Mapping[str, str]
Response = TypeVar("Response")


class AnsweredOnce:
    """Wraps calls that change something. `Any` stands for protobuf messages with a `request_id`.

    Args:
        store: started.
        clock: what is kept expires by it.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._expired_ms: int | None = None

    async def once(
        self,
        method: str,
        request: Any,
        response_type: type[Response],
        work: Callable[[Facts], Awaitable[Response]],
        look: Callable[[], Awaitable[Facts]] | None = None,
        is_final: Callable[[Response], bool] = lambda _: True,
    ) -> Response:
        """The answer to `request`, which has an id or not: that which is kept, else what `work` gives.

        Args:
            method: the call's name.
            request: digested without its id; one with `validate_only` changes nothing and is not kept.
            response_type: of the answer.
            work: does it, given what the first try saw; done again it must find what is done.
            look: what the work goes by, read before it begins, so that a later try goes by the same; may refuse.
            is_final: whether the answer is to be kept; one that says of a part that it is not done yet is not.

        Raises:
            TidemarkError: REQUEST_ID_REUSED; INVALID_REQUEST for an id that is too long; what `look` and `work` raise.
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
        return await self._keep(replace(kept, answer=_bytes_of(answer)), response_type, answer)

    async def answer_to(self, method: str, request: Any, response_type: type[Response]) -> Response | None:
        """The answer kept of this very request; raises as `once`."""
        kept = await self._kept(method, request) if request.request_id else None
        return None if kept is None or kept.answer is None else _parsed(response_type, kept.answer)

    async def _kept(self, method: str, request: Any) -> AdminRequest | None:
        if len(request.request_id) > REQUEST_ID_CHARACTERS_MAX:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST, f"a request_id has {REQUEST_ID_CHARACTERS_MAX} characters at most"
            )
        await self._maybe_expire()
        kept = await self._store.kept_request(request.request_id)
        if kept is None:
            return None
        if kept.at_ms < self._now_ms() - KEPT_MS:
            await self._store.forget_request(kept)
            return None
        self._check(kept, method, request)
        return kept

    def receipt(self, method: str, request: Any, answer: Any) -> AdminRequest | None:
        """What a multi may keep together with the change that it makes; None: the request has no id."""
        if not request.request_id:
            return None
        return replace(self._record(method, request), answer=_bytes_of(answer))

    def _record(self, method: str, request: Any, *, facts: Facts | None = None) -> AdminRequest:
        return AdminRequest(request.request_id, method, _digest(request), self._now_ms(), facts or {})

    def _check(self, kept: AdminRequest, method: str, request: Any) -> None:
        if (kept.method, kept.digest) == (method, _digest(request)):
            return
        what = "with another content" if kept.method == method else f"for {kept.method}"
        raise TidemarkError(
            ErrorCode.REQUEST_ID_REUSED,
            f"the request id {request.request_id!r} was used {what} in the last 24 hours: give every request its own, "
            "and repeat a request as it was",
            {"request_id": request.request_id, "method": kept.method},
        )

    async def _keep(self, finished: AdminRequest, response_type: type[Response], answer: Response) -> Response:
        """Where two tries were under way, both give the answer of the one that was faster."""
        try:
            kept = await self._store.finish_request(finished)
        except TidemarkError as error:
            _log.warning(
                "an answer is not kept", extra={"request_id": finished.request_id, "why": error.message}
            )  # a retry does the work again, and finds it done
            return answer
        return answer if kept.answer is None else _parsed(response_type, kept.answer)

    async def _forget(self, begun: AdminRequest) -> None:
        try:
            await self._store.forget_request(begun)
        except TidemarkError as error:
            _log.warning("a refused request is kept", extra={"request_id": begun.request_id, "why": error.message})

    async def _maybe_expire(self) -> None:
        now_ms = self._clock.now_ms()
        if self._expired_ms is not None and now_ms - self._expired_ms < _EXPIRE_EVERY_MS:
            return
        self._expired_ms = now_ms
        removed = await self._store.expire_requests(self._now_ms() - KEPT_MS)
        if removed:
            _log.info("kept requests have expired", extra={"count": removed})

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000


def _digest(request: Any) -> str:
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("request_id")
    return hashlib.sha256(content.SerializeToString(deterministic=True)).hexdigest()


def _bytes_of(answer: Any) -> bytes:
    serialized: bytes = answer.SerializeToString()
    return serialized


def _parsed(response_type: type[Response], answer: bytes) -> Response:
    message: Any = response_type
    parsed: Response = message.FromString(answer)
    return parsed
