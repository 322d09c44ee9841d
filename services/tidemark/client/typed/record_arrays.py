# SPDX-License-Identifier: Apache-2.0
"""The arrays of the columns of checked records.

Arrow takes ten times as long for a datetime as for a timedelta, and longer for a number than Python's `struct`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from itertools import repeat
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidemark.model import UNIX_EPOCH

_CODES: Final[dict[Any, str]] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float64(): "d",
}
_DURATION: Final = pa.duration("us")


def array_of(values: Sequence[Any], made: pa.DataType) -> pa.Array[Any]:
    """The array of a column's checked values; raises the errors of pyarrow.array."""
    code = _CODES.get(made)
    if code is not None:
        count = len(values)
        try:
            data = struct.pack(f"{count}{code}", *values)
        except struct.error:  # a null
            return pa.array(values, made)
        return pa.Array.from_buffers(made, count, [None, pa.py_buffer(data)])
    if not pa.types.is_timestamp(made):
        return pa.array(values, made)
    epoch = _epoch_of(next((value.tzinfo for value in values if value is not None), None))
    try:
        since: list[Any] = list(map(operator.sub, values, repeat(epoch)))
    except TypeError:  # a null
        since = [None if value is None else value - epoch for value in values]
    found: Any = pa.array(since, _DURATION)
    times: pa.Array[Any] = found.view(made)
    return times


def _epoch_of(zone: tzinfo | None) -> datetime:
    """The start of 1970 in the time zone of values, if it is UTC or missing, else in UTC.

    Python subtracts datetimes of one and the same time zone without asking for its distance from UTC.
    """
    is_utc = zone is UTC or (type(zone) is ZoneInfo and zone.key == "UTC")
    return UNIX_EPOCH.replace(tzinfo=zone) if zone is None or is_utc else UNIX_EPOCH
