# SPDX-License-Identifier: Apache-2.0
"""Functions that make the bytes of a key or value, and read them: JSON, text, or the application's own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

from tidemark.model import ErrorCode, TidemarkError

T = TypeVar("T")

Serializer = Callable[[Any], bytes | None]
"""Makes the bytes of a key or value; None stays None without a call."""
Deserializer = Callable[[bytes], Any]
"""Reads the bytes of a key or value; None stays None without a call."""


def to_json(value: object) -> bytes:
    """Write a value as JSON, UTF-8 without spaces.

    Bytes become text, or base64 if they are not UTF-8; times ISO 8601; NaN and infinity null; Decimal, UUID and
    timedelta text.

    Raises:
        TypeError: the value, or a part of it, has another type.
    """
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    as_list = getattr(value, "tolist", None)
    if callable(as_list):  # scalars and arrays of numpy
        return _plain(as_list())
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON: {value!r:.60}")


def _to_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is not text: {value!r:.60}")
    return value.encode()


def _from_text(data: bytes) -> str:
    return data.decode()


_SERIALIZERS: Final[Mapping[str, Serializer]] = {"json": to_json, "text": _to_text}
_DESERIALIZERS: Final[Mapping[str, Deserializer]] = {"json": json.loads, "text": _from_text}


def serializer_of(name: str, given: str | Serializer | None) -> Serializer | None:
    """Return the serializer of the argument `name`; raises INVALID_CONFIG."""
    return _chosen(name, given, _SERIALIZERS)


def deserializer_of(name: str, given: str | Deserializer | None) -> Deserializer | None:
    """Return the deserializer of the argument `name`; raises INVALID_CONFIG."""
    return _chosen(name, given, _DESERIALIZERS)


def _chosen(name: str, given: str | T | None, known: Mapping[str, T]) -> T | None:
    if isinstance(given, str):
        if given in known:
            return known[given]
    elif given is None or callable(given):
        return given
    raise TidemarkError(ErrorCode.INVALID_CONFIG, f'{name} is {given!r}: expected "json", "text" or a function')
