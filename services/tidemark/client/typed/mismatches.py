# SPDX-License-Identifier: Apache-2.0
"""SCHEMA_MISMATCH: the errors name topic, version, column and row."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.schemas.refusals import path_text, shown
from tidemark.model import ErrorCode, TidemarkError


class MisfitError(ValueError):
    """A value does not fit its column.

    Args:
        sentence: the reason.
        path: names from the column of the topic down to the mismatch.
        row: index of the row in the checked column; None: the column as a whole.
    """

    def __init__(self, sentence: str, path: Sequence[str] = (), row: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path = tuple(path)
        self.row = row

    def below(self, name: str) -> MisfitError:
        """The same misfit, in a column of that name."""
        return MisfitError(self.sentence, (name, *self.path), self.row)

    def at(self, row: int) -> MisfitError:
        """The same misfit, at a row of the enclosing column."""
        return MisfitError(self.sentence, self.path, row)

    def error(self, topic: str, version: int, first_row: int = 0) -> TidemarkError:
        """SCHEMA_MISMATCH; `first_row` is the index of the first row of the checked column."""
        facts = {"topic": topic, "version": str(version)}
        places = []
        if self.row is not None:
            facts["row"] = str(first_row + self.row)
            places.append(f"row {facts['row']}")
        if self.path:
            facts["column"] = path_text(self.path)
            places.append(f"column {facts['column']}")
        place = f"{', '.join(places)}: " if places else ""
        return TidemarkError(
            ErrorCode.SCHEMA_MISMATCH, f"topic {topic}, schema version {version}: {place}{self.sentence}", facts
        )


def shown_value(value: object) -> str:
    """A value for a sentence, shortened."""
    try:
        return shown(repr(value))
    except Exception:  # noqa: BLE001 - an error of the application's class, or an int with too many digits to print
        return f"a {type(value).__name__}"
