# SPDX-License-Identifier: Apache-2.0
"""Parsing of sizes and rates."""

from __future__ import annotations

import re
from typing import Final

import typer

from tidemark.model import INT64_MAX

_UNITS: Final = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)


def parse_rate(text: str) -> int:
    """Bytes per second of "50MB", "50MB/s", "1.5GiB" or "1000000"; raises BadParameter for other text and 0."""
    rate = _bytes(text.strip().removesuffix("/s"))
    if rate is None:
        raise typer.BadParameter(f"{text!r}: expected bytes per second, such as 50MB, 512KiB or 1000000")
    if rate < 1:
        raise typer.BadParameter(f"{text!r}: expected 1 byte per second or more; omit the option for no limit")
    if rate > INT64_MAX:
        raise typer.BadParameter(
            f"{text!r}: expected at most {INT64_MAX} bytes per second; omit the option for no limit"
        )
    return rate


def parse_size(text: str, *, bytes_max: int = INT64_MAX) -> int:
    """Bytes of "100", "1kB" or "64KiB"; raises BadParameter for other text, for 0, and above `bytes_max`."""
    size = _bytes(text.strip())
    if size is None:
        raise typer.BadParameter(f"{text!r}: expected bytes, such as 100, 1kB or 64KiB")
    if size < 1:
        raise typer.BadParameter(f"{text!r}: expected 1 byte or more")
    if size > bytes_max:
        raise typer.BadParameter(f"{text!r}: expected at most {bytes_max} bytes")
    return size


def _bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    factor = _UNITS.get(found[2].upper()) if found is not None else None
    return None if found is None or factor is None else round(min(float(found[1]), 2.0**64) * factor)
