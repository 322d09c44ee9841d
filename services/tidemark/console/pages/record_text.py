# SPDX-License-Identifier: Apache-2.0
"""Bytes of a record as text that a page can show: JSON, text or hex, cut to a size, without hidden characters."""

from __future__ import annotations

import json
import re
from typing import Final

FORMS: Final = ("auto", "text", "json", "hex")
_HEX_BYTES_MAX: Final = 512
_HEX_LINE: Final = 16
_INDENT_MAX: Final = 8
"""Largest size of indented JSON, as a multiple of the shown bytes. Deeper JSON, which has long indents, stays text."""
_UTF8_BYTES_MAX: Final = 4
"""Largest size of a character in UTF-8: a cut leaves up to three bytes of a character."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_JSON_PARTS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def shown(content: bytes | None, form: str, bytes_max: int) -> dict[str, object] | None:
    """A key or a value as data; None for null.

    Args:
        content: all its bytes.
        form: one of FORMS; "auto": JSON if the content is an object or a list without deep nesting, else text if the
            content is UTF-8 without control characters, else hex.
        bytes_max: largest number of bytes of the part that is shown.
    """
    if content is None:
        return None
    cut = len(content) > bytes_max
    text = None if form == "hex" else _text(content[:bytes_max], cut=cut)
    if text is None or (form == "auto" and _CONTROLS.search(text)):
        part = content[: min(bytes_max, _HEX_BYTES_MAX)]
        return _facts(content, "hex", _hex(part), cut=len(part) < len(content))
    indented = _indented(text, _INDENT_MAX * bytes_max) if form in ("auto", "json") and not cut else None
    if indented is None:
        return _facts(content, "text", visible(text), cut=cut)
    return _facts(content, "json", visible(indented), cut=False)


def visible(text: str) -> str:
    """The text with escapes in place of control characters, invisible characters, and characters that change the
    direction of text.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _escape(one) for one in text)


def _facts(content: bytes, form: str, text: str, *, cut: bool) -> dict[str, object]:
    return {"bytes": len(content), "form": form, "text": text, "cut": cut}


def _escape(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _text(content: bytes, *, cut: bool) -> str | None:
    """The content as UTF-8; cut content up to its last whole character; None for other bytes."""
    for left_out in range(_UTF8_BYTES_MAX if cut else 1):
        try:
            return content[: len(content) - left_out].decode()
        except UnicodeDecodeError:
            continue
    return None


def _hex(content: bytes) -> str:
    """Lines of offset, bytes, and their printable ASCII characters."""
    lines = []
    for start in range(0, len(content), _HEX_LINE):
        part = content[start : start + _HEX_LINE]
        letters = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        lines.append(f"{start:04x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def _indented(text: str, characters_max: int) -> str | None:
    """A JSON object or list over several lines, with texts and numbers unchanged; None for other or larger text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    lines, depth, before, left = [""], 0, "", characters_max
    for part in _JSON_PARTS.findall(text):
        if part in "]}":
            depth -= 1
        if before and (before in "[{," if part not in "]}" else before not in "[{"):
            lines.append("  " * depth)
            left -= 1 + 2 * depth
        piece = ": " if part == ":" else part
        lines[-1] += piece
        left -= len(piece)
        if left < 0:
            return None
        depth += part in "[{"
        before = part
    return "\n".join(lines)
