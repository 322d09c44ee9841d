# SPDX-License-Identifier: Apache-2.0
"""Checks of a request before any work: the number of items that it names, and its waits.

Requests within the limit are handled in slices (`runtime.slices.Pace`). `answer_size` keeps their answers within the
limit of a message.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final, TypeVar

from tidemark.model import ErrorCode, TidemarkError, invalid_request

T = TypeVar("T")
NAMED_MAX: Final = 20_000
CONFIG_RESOURCES_MAX: Final = 1_000
"""Resources whose settings one answer has: some 3 kB each."""
REQUEST_BYTES_MAX: Final = 8 << 20
"""Largest unary request from a client. Batches come in streams, up to gRPC's limit of a message."""


def check_named(named: Sized, what: str, most: int | None = None) -> None:
    """Raises INVALID_REQUEST beyond the limit, `NAMED_MAX` or `most`; `what` is the plural noun of the items."""
    most = NAMED_MAX if most is None else most
    if len(named) > most:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a request names at most {most} {what}, this one {len(named)}; send several requests",
            {"named_max": str(most)},
        )


def in_requests(named: Sequence[T], most: int | None = None) -> list[Sequence[T]]:
    """The items in the fewest parts that a request may name, `NAMED_MAX` or `most`, in their order; one empty part
    without items."""
    most = NAMED_MAX if most is None else most
    return [named[at : at + most] for at in range(0, max(1, len(named)), most)]


def check_wait(wait_ms: int, name: str) -> None:
    """Raises INVALID_REQUEST for a negative wait; `name` names the field in the message."""
    if wait_ms < 0:
        raise invalid_request(f"{name} is {wait_ms}: give 0 or more milliseconds")
