# SPDX-License-Identifier: Apache-2.0
"""Spark's Python processes log no traceback when Spark closes their sockets.

Spark closes the socket of such a process at the end of a stream or session, or after a minute without a task. Through a
Unix socket, the last flush of the process then fails, and PySpark's daemon logs a traceback before it ends the process.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace


def end_silently() -> None:
    """Log no traceback of a closed socket in this process, if PySpark's daemon has started the process."""
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", None) == "pyspark.daemon":
        vars(main)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": _print_unless_closed})


def _print_unless_closed() -> None:
    """PySpark's worker reports the errors of a task through the socket: only the socket's own errors end here."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()
