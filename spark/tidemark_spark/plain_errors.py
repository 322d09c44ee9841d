# SPDX-License-Identifier: Apache-2.0
"""Errors with an explaining sentence reach Spark without Python's stack trace, which would hide the sentence."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Final

from tidemark.errors import ErrorCode, TidemarkError

_log = logging.getLogger("tidemark.spark")

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Set by spark.sql.execution.pyspark.udf.hideTraceback.enabled; PySpark reads it when it reports an error."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Wrap an entry point that Spark calls: PySpark reports errors with an explaining sentence without their stack
    traces.

    The setting stays on, because Spark's Python process ends after an error. Other processes keep their stack traces.
    """
    try:
        yield
    except Exception as error:
        if _explains_itself(error) and _is_sparks_process():
            _log.debug("the stack trace that Spark's message omits", exc_info=True)
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _explains_itself(error: Exception) -> bool:
    """Whether the error is of a broker or of this source, and not of a library or a defect."""
    if isinstance(error, TidemarkError):
        return error.code is not ErrorCode.INTERNAL
    return type(error) is ValueError or type(error).__module__.startswith("tidemark_spark.")


def _is_sparks_process() -> bool:
    """Whether Spark started this process to plan, to read or to write."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")
