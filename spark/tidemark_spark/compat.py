# SPDX-License-Identifier: Apache-2.0
"""What PySpark's versions differ in for readers, in one place.

Since 4.1 a batch reader may take filters, and must not offer to while spark.sql.python.filterPushdown.enabled is off.
Since 4.2 a stream reader is told its start and a limit, may say what there is, and may support availableNow triggers.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

try:
    _streaming: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _streaming = None

HAS_READ_LIMITS: Final = _streaming is not None
"""Whether `latestOffset` is given a start and a limit (PySpark >= 4.2)."""

_AVAILABLE_NOW_BY_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class _NoTrigger:
    """Stands in for SupportsTriggerAvailableNow where there is none."""


AvailableNow: Any = _streaming.SupportsTriggerAvailableNow if HAS_READ_LIMITS else _NoTrigger
"""The base of a stream reader that ends an availableNow query at what there was when it began."""


def finish_available_now(spark: SparkSession) -> None:
    """Have the session's availableNow queries read all there is, after a micro-batch that was cut short as well.

    Before 4.2 such a query of a Python source is one micro-batch: that one, if there is one. Spark's own remedy is off
    by default for sources that may double rows with it; the offsets of this one are of the log, and cannot.
    """
    if not HAS_READ_LIMITS:
        spark.conf.set(_AVAILABLE_NOW_BY_WRAPPER, "true")


def pushdown_is_on() -> bool:
    """Whether this process is the one in which Spark hands filters to a reader: it exists only where that is on."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)


def read_all() -> Any:
    """The limit that is none."""
    return _streaming.ReadAllAvailable()


def read_limit(max_offsets: int | None, min_offsets: int) -> Any:
    """What a stream reader says that it would like to be held to."""
    if max_offsets is not None:
        return _streaming.ReadMaxRows(max_offsets)
    return _streaming.ReadMinRows(min_offsets) if min_offsets else read_all()


def is_unlimited(limit: Any) -> bool:
    """Whether Spark wants everything, whatever the options say."""
    return isinstance(limit, _streaming.ReadAllAvailable)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark takes for a schema."""
    convert: Any = to_arrow_schema
    try:
        found: pa.Schema = convert(schema, timezone="UTC")
    except TypeError:  # before 4.2 times were always UTC, and the argument was not there
        found = convert(schema)
    return found
