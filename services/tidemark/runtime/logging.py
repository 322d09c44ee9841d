# SPDX-License-Identifier: Apache-2.0
"""Logs on stderr: one JSON object a line, or readable text; both carry the `extra` fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others come from `extra`."""

_NOISY: Final = ("kazoo", "grpc", "asyncio")
"""Libraries with many messages: logged from WARNING on, kazoo from CRITICAL on."""


def _extra_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, service, logger, message, the extra fields, and error if there is one."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line without a newline at its end."""
        fields: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _extra_of(record).items():
            fields.setdefault(name, value)
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`12:34:56.789 INFO broker-0 message  field=value`; tracebacks on lines of their own."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the traceback after it."""
        extra = "".join(f"  {name}={value}" for name, value in _extra_of(record).items())
        line = f"{_timestamp(record)[11:23]} {record.levelname:<7} {self._service} {record.getMessage()}{extra}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(level: str, fmt: str, service: str, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (default stderr).

    Args:
        level: lowest level of Tidemark's own logs: debug, info, warning or error.
        fmt: "json" or "text".
        service: name of the process in each line, such as "broker-0".
        stream: output stream.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(service) if fmt == "json" else TextFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
