# SPDX-License-Identifier: Apache-2.0
"""Refusals of schemas, and the bounds that hold while a draft is built, so that hostile input ends early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tidemark.core.schemas.model import COLUMNS_MAX, DEPTH_MAX
from tidemark.model import ErrorCode, TidemarkError

TEXT_BYTES_MAX: Final = 512 * 1024
"""Largest text of a schema, in any form, in bytes of UTF-8."""
_SHOWN_CHARACTERS_MAX: Final = 60
_SHOWN_NAMES_MAX: Final = 6


def shown(text: str) -> str:
    """A text from outside, shortened and without control characters, for a sentence."""
    if len(text) > _SHOWN_CHARACTERS_MAX:
        text = f"{text[:_SHOWN_CHARACTERS_MAX]}..."
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def path_text(path: Sequence[str]) -> str:
    """A path of names, shortened for a sentence."""
    if len(path) > _SHOWN_NAMES_MAX:
        path = [*path[: _SHOWN_NAMES_MAX - 1], "...", path[-1]]
    return ".".join(shown(name) for name in path)


def invalid(sentence: str, path: Sequence[str] = ()) -> TidemarkError:
    """INVALID_SCHEMA for a column, or for the whole schema without a path; metadata has `column`."""
    if not path:
        return TidemarkError(ErrorCode.INVALID_SCHEMA, sentence)
    column = path_text(path)
    return TidemarkError(ErrorCode.INVALID_SCHEMA, f"column {column}: {sentence}", {"column": column})


def check_size(text: str) -> None:
    """Raise INVALID_SCHEMA for a text above TEXT_BYTES_MAX, or for a text that UTF-8 cannot encode."""
    try:
        size_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise invalid("the text of the schema has half a surrogate pair; UTF-8 cannot encode it") from None
    if size_bytes > TEXT_BYTES_MAX:
        raise invalid(f"the text of the schema has {size_bytes} bytes, {TEXT_BYTES_MAX} are allowed; shorten the docs")


class ColumnBudget:
    """Counts columns while a draft is built, and bounds their depth before any recursion."""

    def __init__(self) -> None:
        self._count = 0

    def take(self, path: Sequence[str]) -> None:
        """Count the column at this path; raises INVALID_SCHEMA above COLUMNS_MAX columns or below DEPTH_MAX."""
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise invalid(f"a schema has at most {COLUMNS_MAX} columns, nested ones included", path)
        if len(path) > DEPTH_MAX:
            raise invalid(f"columns nest at most {DEPTH_MAX} deep; flatten it, or keep it as string or binary", path)


@contextmanager
def naming(topic: str) -> Iterator[None]:
    """Name the topic in the errors of its schema, whose rules know no topic."""
    try:
        yield
    except TidemarkError as error:
        facts = {"topic": topic, **error.metadata}
        raise TidemarkError(error.code, f"topic {shown(topic)}: {error.message}", facts) from None
