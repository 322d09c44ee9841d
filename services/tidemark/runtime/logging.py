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


def extra_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields that the caller of the logger gave as `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(value: object) -> str:
    """The text with escapes for line ends, control characters and double spaces.

    A name that a client chose could forge a line with a line end, and a field with a space.
    """
    text = str(value).replace("  ", " \\x20")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class JsonFormatter(logging.Formatter):
    """One JSON object in ASCII: time (UTC), level, service, logger, message, the extra fields, and error if any."""

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
        for name, value in extra_of(record).items():
            fields.setdefault(name, value)
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """`12:34:56.789 INFO broker-0 message  field=value`; tracebacks on separate, indented lines."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the traceback after it."""
        extra = "".join(f"  {name}={_printable(value)}" for name, value in extra_of(record).items())
        message = _printable(record.getMessage())
        line = f"{_timestamp(record)[11:23]} {record.levelname:<7} {self._service} {message}{extra}"
        if not record.exc_info:
            return line
        return "\n  ".join((line, *map(_printable, self.formatException(record.exc_info).splitlines())))


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
