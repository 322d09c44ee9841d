# SPDX-License-Identifier: Apache-2.0
"""The listener and the caller of a call, and the guard of the calls that only services may make.

On a plain-text port every caller is anonymous, and no call is guarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

import grpc

from tidemark.core.security.acls import CLUSTER, Operation, normal_host
from tidemark.core.security.authorizer import Decision
from tidemark.core.security.listeners import Endpoint, Listener, endpoint_of
from tidemark.core.security.principals import ANONYMOUS, Principal, principal_of
from tidemark.core.security.service_rights import INTERNAL, check_caller, check_service_id
from tidemark.core.security.subject_mapping import SubjectMapping
from tidemark.model import BrokerRegistration, ErrorCode, TidemarkError
from tidemark.rpc.errors import Continuation, abort_with, handler_refusing
from tidemark.rpc.security.audit import DENIALS
from tidemark.rpc.security.expiring import ending_at
from tidemark.rpc.security.files import subject_in, uris_in

_SECURITY: Final = "transport_security_type"
_CERTIFICATE: Final = "x509_pem_cert"
"""The names are read from the certificate itself. gRPC's `peer_uri` ends at a NUL, so the other part of a name would be
lost. `peer_identities()` mixes names of all kinds, so a DNS name could look like a URI."""
_HEADER: Final = "authorization"
_SCHEME: Final = "bearer "
_OPEN: Final = ("/grpc.health.v1.Health/",)
"""Calls without a token: probes, and a broker's check of its own address."""


class Verified(NamedTuple):
    """A caller whose token is valid.

    Attributes:
        principal: the identity.
        expires_s: end of the token, in seconds since 1970; None: it does not expire.
        holds: asks whether the keys that verified the token are still in use; None: no key did.
    """

    principal: Principal
    expires_s: float | None = None
    holds: Callable[[], Awaitable[bool]] | None = None


class TokenVerifier(Protocol):
    """Verifies the tokens of callers of a listener."""

    async def verify(self, token: str) -> Verified:
        """The caller with this token; raises AUTHENTICATION_FAILED, without the token in the message."""


def refused(reason: str, sentence: str) -> TidemarkError:
    """The error for a token that is not accepted.

    Args:
        reason: a word for metrics and programs.
        sentence: the fault; without the token.
    """
    return TidemarkError(ErrorCode.AUTHENTICATION_FAILED, sentence, {"reason": reason})


class NoTokens:
    """Accepts no token, because no token is configured."""

    async def verify(self, _token: str) -> Verified:
        """Refuse every token with AUTHENTICATION_FAILED."""
        raise TidemarkError(
            ErrorCode.AUTHENTICATION_FAILED,
            "this service accepts no tokens: no token or issuer is configured",
            {"reason": "unknown"},
        )


class _Call(NamedTuple):
    listener: Listener = Listener.ONLY
    principal: Principal = ANONYMOUS
    subjects: SubjectMapping | None = None


_NO_CALL: Final = _Call()
_CALL: ContextVar[_Call] = ContextVar("call", default=_NO_CALL)
"""gRPC runs the interceptors and the handler of a call in one task."""


def listener_of_call() -> Listener:
    """The listener of the present call."""
    return _CALL.get().listener


def caller_of(context: Any) -> Principal | None:
    """The identity that the caller's certificate or token proves; None on a plain-text port.

    Services are only known on the listener that they use: on a listener for clients each certificate is a user's.
    """
    facts = context.auth_context()
    if facts.get(_SECURITY) != [b"ssl"]:
        return None
    call = _CALL.get()
    if call.listener is Listener.TOKEN:
        return call.principal
    certificates = facts.get(_CERTIFICATE, ())
    uris = [uri for pem in certificates for uri in uris_in(pem)]
    if call.subjects is not None and not uris and len(certificates) == 1:
        return call.subjects.principal_of(subject_in(certificates[0]))
    found = principal_of(uris)
    if call.listener is Listener.MTLS and found.role is not None:
        return Principal(f"User:{found.name}")
    return found


def address_for_caller(broker: BrokerRegistration) -> Endpoint:
    """The address of a broker that the present caller can use; raises COORDINATOR_NOT_AVAILABLE if there is none."""
    listener = listener_of_call()
    found = endpoint_of(broker, listener)
    if found is None:
        raise TidemarkError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {broker.broker_id} has no listener {listener}: add it there"
        )
    return found


def host_of(peer: str) -> str:
    """The address in "ipv4:10.0.0.1:1234" or "ipv6:%5B::1%5D:1234", in the form in which rules name it."""
    _, _, address = unquote(peer).partition(":")
    host = address.rpartition(":")[0].strip("[]") or address
    try:
        return normal_host(host)
    except TidemarkError:
        return host  # a Unix socket, or an address with a zone: no rule can name this host


def check_id(context: Any, service_id: int) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED, which is audited, if the caller claims the id of another service."""
    caller = caller_of(context)
    if caller is not None:
        with _audited(caller, context):
            check_service_id(caller, service_id)


@contextmanager
def _audited(caller: Principal, context: Any) -> Iterator[None]:
    """Count a refusal within, and write its line of the audit log."""
    try:
        yield
    except TidemarkError as error:
        decision = Decision(allowed=False, rule=None, reason=error.message)
        DENIALS.denied(caller.name, host_of(context.peer()), Operation.CLUSTER_ACTION, CLUSTER, decision)
        raise


class Authentication(grpc.aio.ServerInterceptor):
    """Notes the listener of each call, and the caller of a call with a token. Streams end when their token expires.

    Args:
        listener: listener of this server.
        plain: whether the listener speaks plain text.
        on_refused: called with the reason of each refused token.
        tokens: on the listener for tokens; None: no token is accepted.
        subjects: names users by the subjects of certificates without a URI name; None: these callers are anonymous.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        plain: bool,
        tokens: TokenVerifier | None = None,
        on_refused: Callable[[str], None] = lambda _: None,
        subjects: SubjectMapping | None = None,
    ) -> None:
        self._on_refused = on_refused
        self._call = _Call(listener, subjects=subjects)
        self._listener = listener
        self._plain = plain
        self._tokens = tokens or (NoTokens() if listener is Listener.TOKEN else None)

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of the call, or one that refuses it."""
        header = _authorization(handler_call_details)
        expires_s = None
        _CALL.set(self._call)
        if self._tokens is None:
            if header is not None:
                return self._refusing(_misplaced(plain=self._plain))
        elif not handler_call_details.method.startswith(_OPEN):
            try:
                verified = await self._tokens.verify(_token_in(header))
            except TidemarkError as error:
                return self._refusing(error)
            expires_s = verified.expires_s
            _CALL.set(_Call(self._listener, verified.principal))
        handler = await continuation(handler_call_details)
        return handler if expires_s is None or handler is None else ending_at(expires_s, handler)

    def _refusing(self, error: TidemarkError) -> Any:
        self._on_refused(error.metadata.get("reason", "unknown"))
        return handler_refusing(error)


def _authorization(details: grpc.HandlerCallDetails) -> str | bytes | None:
    for name, value in details.invocation_metadata or ():
        if name == _HEADER:
            return value
    return None


def _token_in(header: str | bytes | None) -> str:
    """The bearer token in the header; "" if the header has none."""
    text = header.decode("utf-8", "replace") if isinstance(header, bytes) else header or ""
    return text[len(_SCHEME) :].strip() if text[: len(_SCHEME)].lower() == _SCHEME else ""


def _misplaced(*, plain: bool) -> TidemarkError:
    if plain:
        return TidemarkError(
            ErrorCode.AUTHENTICATION_FAILED,
            "a token was sent in plain text and can be read on the network: this port has no TLS. Replace the token, "
            "and send tokens to the listener clients.token only",
            {"reason": "plain_text"},
        )
    return TidemarkError(
        ErrorCode.AUTHENTICATION_FAILED,
        "this listener takes certificates, not tokens: use the address of clients.token, or unset the token file",
        {"reason": "other_listener"},
    )


class CallerCheck(grpc.aio.ServerInterceptor):
    """Refuses internal calls of other callers than services of this cluster.

    Args:
        cluster: the cluster's name in the identities of its services.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler of an internal call; other handlers are returned unchanged."""
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or path not in INTERNAL:
            return handler
        inner = handler.stream_stream if handler.request_streaming else handler.unary_unary

        async def checked(request: Any, context: Any) -> Any:
            caller = caller_of(context)
            try:
                if caller is not None:
                    with _audited(caller, context):
                        check_caller(path, caller, self._cluster)
            except TidemarkError as error:
                await abort_with(context, error)
            return await inner(request, context)

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(checked, handler.request_deserializer, handler.response_serializer)
