# SPDX-License-Identifier: Apache-2.0
"""Names that clients give themselves, for quotas. Pure; every client imports this, so it imports little."""

from __future__ import annotations

import re
from typing import Final

from tidemark.errors import ErrorCode, TidemarkError

DEFAULT: Final = "<default>"
"""Name in an entity for every user, or every client id, without a quota of its own."""
_CHARACTERS_MAX: Final = 255
_SHOWN_MAX: Final = 40
_CLIENT_ID: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Printable ASCII, without a space at either end: a value that a header of gRPC can have."""


def check_client_id(client_id: str) -> str:
    """The client id; raises INVALID_REQUEST unless it has 1 to 255 printable characters of ASCII."""
    if len(client_id) <= _CHARACTERS_MAX and client_id != DEFAULT and _CLIENT_ID.fullmatch(client_id):
        return client_id
    shown = client_id if len(client_id) <= _SHOWN_MAX else f"{client_id[:_SHOWN_MAX]}..."
    raise TidemarkError(
        ErrorCode.INVALID_REQUEST,
        f"client id {shown!r}: give 1 to {_CHARACTERS_MAX} printable ASCII characters",
        {"quota": "client_id"},
    )
