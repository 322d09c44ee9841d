# SPDX-License-Identifier: Apache-2.0
"""Maps TidemarkError to gRPC status with google.rpc.ErrorInfo, and back (rule K3); the only place that does so."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from tidemark.model import ErrorCode, TidemarkError, error_of
from tidemark.v1 import record_pb2

DOMAIN = "tidemark"

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
"""The rest of the interceptors, and the handler of a call."""

_MESSAGE_ROOM_BYTES: Final = 5000
_FACTS_ROOM_BYTES: Final = 2000
"""gRPC guarantees 8 KiB of headers and drops a status with larger ones: the cause would be lost."""
_PLAIN_COST: Final = 1 + 4 / 3
_ENCODED_COST: Final = 3 + 4 / 3
_CAUSE: Final = re.compile(
    r"last error: \w+: ip\S+: (?:Failed to connect to remote host: )?(.+)|address lookup failed for \S+: ([^]]+)"
)

_PLAIN_PEER: Final = "WRONG_VERSION_NUMBER"
_OTHER_NAME: Final = "Hostname Verification Check failed"
_UNTRUSTED: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([a-z -]+)")
_PLUGIN: Final = re.compile(r"Getting metadata from plugin failed with error: (?:[A-Z_]+: )?(.*)", re.DOTALL)
_LONG_HEADER: Final = "metadata size exceeds"
_CLOSED: Final = "Socket closed"
_NO_SUCH_CALL: Final = (
    "the service at this address does not have this call: upgrade an older service, or correct the address"
)
_MAYBE_TLS: Final = "if the port speaks TLS, give a certificate that it accepts (docs/security.md)"
"""The hint for a closed connection, which is all that a client receives when a server ends the handshake."""

_GRPC_TO_CODE: dict[grpc.StatusCode, ErrorCode] = {
    grpc.StatusCode.UNAVAILABLE: ErrorCode.BROKER_NOT_AVAILABLE,
    grpc.StatusCode.CANCELLED: ErrorCode.BROKER_NOT_AVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorCode.REQUEST_TIMED_OUT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorCode.BATCH_TOO_LARGE,
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.INVALID_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.AUTHENTICATION_FAILED,
}

_FAILED_WRITE: Final = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""The status with which gRPC's client ends a stream if the connection ends during a write, as at its greatest age."""


def to_proto(error: TidemarkError) -> record_pb2.Error:
    """Encode an error inside a response or a stream."""
    return record_pb2.Error(code=str(error.code), message=error.message, metadata=dict(error.metadata))


def from_proto(error: record_pb2.Error) -> TidemarkError:
    """Decode the error inside a response or a stream; a code of a later version becomes INTERNAL and keeps its name."""
    return error_of(error.code, error.message, error.metadata)


def error_in(answer: Any) -> TidemarkError | None:
    """Decode the optional field `error` of a message; None if it is not set."""
    return from_proto(answer.error) if answer.HasField("error") else None


def raise_error_in(answer: Any) -> None:
    """Raises the `error` of a message, if that is set."""
    error = error_in(answer)
    if error is not None:
        raise error


def _shortened(text: str, room_bytes: int) -> str:
    """The part of a text that fits into `room_bytes` of a header: percent-encoded, and then in base64."""
    spent = 0.0
    for index, character in enumerate(text):
        octets = len(character.encode("utf-8", "replace"))
        spent += octets * (_PLAIN_COST if " " <= character <= "~" and character != "%" else _ENCODED_COST)
        if spent > room_bytes:
            return f"{text[:index]} [...]"
    return text


def _for_header(error: TidemarkError) -> tuple[str, dict[str, str]]:
    """Message and metadata of an error, shortened so that the caller's gRPC does not drop the status."""
    message = _shortened(f"{error.code}: {error.message}", _MESSAGE_ROOM_BYTES)
    facts: dict[str, str] = {}
    room_bytes = _FACTS_ROOM_BYTES
    for name, value in error.metadata.items():
        facts[name] = _shortened(value, max(0, room_bytes))
        room_bytes -= int(_PLAIN_COST * len(f"{name}{facts[name]}".encode("utf-8", "replace")))
    return message, facts


async def abort_with(context: grpc.aio.ServicerContext, error: TidemarkError) -> NoReturn:  # type: ignore[type-arg]
    """End a call with the error as status and google.rpc.ErrorInfo."""
    message, facts = _for_header(error)
    info = error_details_pb2.ErrorInfo(reason=str(error.code), domain=DOMAIN, metadata=facts)
    detail = any_pb2.Any()
    detail.Pack(info)
    code = grpc.StatusCode[error.code.status]
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message, details=[detail])
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError("abort raises")


def handler_refusing(error: TidemarkError) -> Any:
    """A handler that refuses a call: it reads no request, and so serves calls of every kind."""

    async def refuse(_: object, context: Any) -> None:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def from_rpc_error(error: grpc.RpcError, *, address: str) -> TidemarkError:
    """The error that a failed call carries, or the error of the connection to `address`."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return TidemarkError(ErrorCode.INTERNAL, f"{address}: {error}")
    info = _error_info(error)
    if info is not None:
        message = (error.details() or "").removeprefix(f"{info.reason}: ")
        return error_of(info.reason, message, info.metadata)
    details = error.details() or ""
    mistaken = _handshake_mistake(details)
    if mistaken is not None:
        return TidemarkError(ErrorCode.AUTHENTICATION_FAILED, f"{address}: {mistaken}", {"address": address})
    status = error.code()
    if (status, details) == _FAILED_WRITE:
        status, details = grpc.StatusCode.UNAVAILABLE, "the connection ended while a message was written"
    code = _GRPC_TO_CODE.get(status, ErrorCode.INTERNAL)
    name, why = status.name.lower(), _cause_in(details)
    if why == _CLOSED:
        why = f"{why}; {_MAYBE_TLS}"
    if status is grpc.StatusCode.UNIMPLEMENTED:
        why = _NO_SUCH_CALL
    return TidemarkError(code, f"{address}: {name}: {why}", {"address": address})


def is_untrusted(error: grpc.RpcError) -> bool:
    """Whether the call failed because this side does not accept the certificate of the server."""
    details = str(error.details() or "") if isinstance(error, grpc.aio.AioRpcError | grpc.Call) else ""
    return _OTHER_NAME not in details and _UNTRUSTED.search(details) is not None


def _handshake_mistake(details: str) -> str | None:
    """The reason of a failed TLS handshake, or of a token that was not sent, as far as this side knows it."""
    unsent = _PLUGIN.search(details)
    if unsent is not None:
        return unsent[1]
    if _LONG_HEADER in details:
        return "the token is too long for the server"
    if _PLAIN_PEER in details:
        return "the port does not speak TLS: give a TLS port, or unset the TLS files"
    if _OTHER_NAME in details:
        return "the certificate of the server has another name: use a name or address that the certificate has"
    found = _UNTRUSTED.search(details)
    if found is not None:
        dated = "expired" in found[1] or "not yet valid" in found[1]
        advice = "renew it, or correct the clock of a machine" if dated else "tls.ca.file must have its authority"
        return f"the certificate of the server is not accepted ({found[1]}): {advice}"
    return None


def _cause_in(details: str) -> str:
    """The cause in gRPC's report of a failed connection, such as a refused connection or an unknown name."""
    found = _CAUSE.search(details)
    return next(filter(None, found.groups())) if found else details


def _error_info(error: grpc.aio.AioRpcError | grpc.Call) -> error_details_pb2.ErrorInfo | None:
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        status = status_pb2.Status.FromString(value)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info
    return None
