# SPDX-License-Identifier: Apache-2.0
"""The identity of a call's caller, and the guard of the calls that only services may make.

On a plain-text port every caller is anonymous, and no call is guarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from tidemark.core.security.principals import Principal, principal_of
from tidemark.core.security.service_rights import INTERNAL, check_caller, check_service_id
from tidemark.model import TidemarkError
from tidemark.rpc.errors import abort_with

_SECURITY: Final = "transport_security_type"
_URIS: Final = "peer_uri"
"""Only the URI names of the certificate. `peer_identities()` mixes names of all kinds, so a DNS name could pose as a
URI."""


def caller_of(context: Any) -> Principal | None:
    """The identity that the caller's certificate proves; None on a plain-text port."""
    facts = context.auth_context()
    if facts.get(_SECURITY) != [b"ssl"]:
        return None
    return principal_of([uri.decode("utf-8", "replace") for uri in facts.get(_URIS, ())])


def check_id(context: Any, service_id: int) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED if the caller claims the id of another service."""
    caller = caller_of(context)
    if caller is not None:
        check_service_id(caller, service_id)


class CallerCheck(grpc.aio.ServerInterceptor):
    """Refuses internal calls of other callers than services of this cluster.

    Args:
        cluster: the cluster's name in the identities of its services.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of an internal call; other handlers are as they were."""
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or path not in INTERNAL:
            return handler
        inner = handler.stream_stream if handler.request_streaming else handler.unary_unary

        async def checked(request: Any, context: Any) -> Any:
            caller = caller_of(context)
            try:
                if caller is not None:
                    check_caller(path, caller, self._cluster)
            except TidemarkError as error:
                await abort_with(context, error)
            return await inner(request, context)

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(checked, handler.request_deserializer, handler.response_serializer)
