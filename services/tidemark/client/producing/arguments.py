# SPDX-License-Identifier: Apache-2.0
"""Arguments of `send`, checked by the caller's call: a wrong argument must not fail other records of its batch."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from tidemark.client.argument_types import integer
from tidemark.model import ErrorCode, TidemarkError, microseconds_of

TIMESTAMP_MAX_US: Final = (1 << 63) - 1
"""Largest distance of a timestamp from 1970."""


Timestamp = int | datetime
"""Microseconds since 1970, or a datetime with a time zone."""


def checked(timestamp_us: Timestamp | None, partition: int | None) -> tuple[int | None, int | None]:
    """Timestamp and partition as int: of any integer type, and of a datetime with a time zone.

    Raises:
        TypeError: an argument has another type.
        TidemarkError: INVALID_TIMESTAMP: outside 64 bits, or a datetime without a time zone.
    """
    if partition is not None and type(partition) is not int:
        partition = integer("partition", partition)
    if timestamp_us is None:
        return None, partition
    if type(timestamp_us) is not int or not -TIMESTAMP_MAX_US <= timestamp_us <= TIMESTAMP_MAX_US:
        return _timestamp_us(timestamp_us), partition
    return timestamp_us, partition


def _timestamp_us(given: Any) -> int:
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise _invalid(f"{given!r} has no time zone: add one, for example with .astimezone()")
        timestamp_us = microseconds_of(given)
    else:
        timestamp_us = integer("timestamp_us", given)
    if abs(timestamp_us) > TIMESTAMP_MAX_US:
        raise _invalid(f"timestamp_us is {timestamp_us}, more than 64 bits: give microseconds since 1970")
    return timestamp_us


def _invalid(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_TIMESTAMP, sentence)
