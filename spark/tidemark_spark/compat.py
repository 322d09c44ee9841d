# SPDX-License-Identifier: Apache-2.0
"""Differences between PySpark's versions for readers.

Since 4.1 Spark's Python processes may use Unix sockets.
Since 4.1 a batch reader may take filters, but must not offer this while spark.sql.python.filterPushdown.enabled is off.
Since 4.2 a stream reader receives start and limit, may report the latest offset, and may support availableNow triggers.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

try:
    _streaming: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _streaming = None

HAS_READ_LIMITS: Final = _streaming is not None
"""Whether `latestOffset` has the parameters start and limit (PySpark >= 4.2)."""

_AVAILABLE_NOW_BY_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COMMIT_WORKER: Final = "python_streaming_sink_runner"


class _NoTrigger:
    """Stands in for SupportsTriggerAvailableNow in versions without it."""


AvailableNow: Any = _streaming.SupportsTriggerAvailableNow if HAS_READ_LIMITS else _NoTrigger
"""Base of a stream reader that ends an availableNow query at the offsets of its start."""


def prefer_unix_sockets(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let rows go to Spark through Unix sockets, unless settings of Spark choose; PySpark 4.0 has only TCP."""
    if not is_remote():
        # Without a JVM SparkConf knows no setting of spark-submit, and the builder would override it.
        SparkContext._ensure_initialized()
    return builder if SparkConf().contains(_UNIX_SOCKETS) else builder.config(_UNIX_SOCKETS, "true")


def finish_available_now(spark: SparkSession) -> None:
    """Make availableNow queries of the session read all records, even after an interrupted micro-batch.

    Before 4.2 such a query of a Python source is one micro-batch: the interrupted one, if any. Spark's own remedy is
    off by default, since rows of some sources may be duplicated; offsets of a log prevent that here.
    """
    if not HAS_READ_LIMITS:
        spark.conf.set(_AVAILABLE_NOW_BY_WRAPPER, "true")


def pushdown_is_on() -> bool:
    """Whether this is the process in which Spark passes filters to a reader; it exists only with pushdown on."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)


def commits_micro_batches() -> bool:
    """Whether Spark started this process to commit a micro-batch: the writer that is made there writes no row."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    names = [*sys.argv[1:2], "" if main is None else main.name]
    return any(name.rpartition(".")[2] == _COMMIT_WORKER for name in names)


def read_all() -> Any:
    """A read limit that means no limit."""
    return _streaming.ReadAllAvailable()


def read_limit(max_offsets: int | None, min_offsets: int) -> Any:
    """Default read limit of a stream reader."""
    if max_offsets is not None:
        return _streaming.ReadMaxRows(max_offsets)
    return _streaming.ReadMinRows(min_offsets) if min_offsets else read_all()


def is_unlimited(limit: Any) -> bool:
    """Whether Spark wants all records, regardless of the options."""
    return isinstance(limit, _streaming.ReadAllAvailable)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Arrow types of a Spark schema."""
    convert: Any = to_arrow_schema
    try:
        found: pa.Schema = convert(schema, timezone="UTC")
    except TypeError:  # before 4.2 the argument did not exist, and times were always UTC
        found = convert(schema)
    return found
