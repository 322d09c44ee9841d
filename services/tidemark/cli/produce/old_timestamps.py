# SPDX-License-Identifier: Apache-2.0
"""A warning of records with times before 2000: most come from numbers in another unit than --timestamp-unit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.cli.common.output import print_warning
from tidemark.client.outputs.record_format import microseconds, moment
from tidemark.client.units import UNITS_US

_OLD_US: Final = microseconds(datetime(2000, 1, 1, tzinfo=UTC))
_NEW_US: Final = microseconds(datetime(2100, 1, 1, tzinfo=UTC))
_NAMES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


class OldTimestamps:
    """Warns once of the first time before 2000; `unit`: of numbers in the timestamp column."""

    def __init__(self, unit: str, warn: Callable[[str], None] = print_warning) -> None:
        self._unit = unit
        self._warn: Callable[[str], None] | None = warn

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Check the times of rows in SCHEMA; a null means the time of sending."""
        if self._warn is None:
            return
        earliest = pc.min(rows.column("timestamp").cast(pa.int64())).as_py()
        if earliest is None or earliest >= _OLD_US:
            return
        self._warn(self._sentence(earliest))
        self._warn = None

    def _sentence(self, stamp_us: int) -> str:
        found = f"a record has the time {moment(stamp_us) or f'{stamp_us} us'}, before 2000"
        number = stamp_us // UNITS_US[self._unit]
        for unit, factor in UNITS_US.items():
            if _OLD_US <= number * factor < _NEW_US:
                return f"{found}: the column seems to have {_NAMES[unit]}; if so, add --timestamp-unit {unit}"
        return f"{found}: retention.ms may delete it soon; if the column has another unit, add --timestamp-unit"
