# SPDX-License-Identifier: Apache-2.0
"""The header in which a client states its client id, once for each call or stream."""

from __future__ import annotations

from typing import Any, Final

from tidemark.core.quotas.client_ids import check_client_id

HEADER: Final = "client-id"


def headers_with(client_id: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call; empty for the client id ""."""
    return ((HEADER, client_id),) if client_id else ()


def client_id_of(context: Any) -> str:
    """The client id of a call; "" if there is none. Raises INVALID_REQUEST for an invalid client id."""
    for name, value in context.invocation_metadata() or ():
        if name == HEADER:
            return check_client_id(value if isinstance(value, str) else value.decode("utf-8", "replace"))
    return ""
