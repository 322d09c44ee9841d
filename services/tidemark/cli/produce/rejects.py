# SPDX-License-Identifier: Apache-2.0
"""Rows that do not fit their topic: the first is an error, or all are written to a file while the other rows are "
"sent."""

from __future__ import annotations

import json
from typing import Final, TextIO

from tidemark.client.typed.mismatches import MisfitError
from tidemark.core.schemas.refusals import path_text
from tidemark.model import ErrorCode, TidemarkError

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""Encodes a value that JSON lacks, such as a time of day, as its text."""


class Rejects:
    """Takes the rows that do not fit.

    Args:
        file: gets one JSON object a line: line, column, reason and the row; None: the first row is an error.
        unit: "line" or "row", as an error names the place; from 1 on.

    Attributes:
        count: rows in the file.
    """

    def __init__(self, file: TextIO | None, unit: str = "line") -> None:
        self._file = file
        self._unit = unit
        self.count = 0

    def take(self, number: int, misfit: MisfitError, row: object) -> None:
        """Write the row to the file.

        Args:
            number: number of its first line, or of the row in a file without lines.
            misfit: the reason, and the column if the column is known.
            row: the row as the input has it.

        Raises:
            TidemarkError: SCHEMA_MISMATCH without a file.
        """
        column = path_text(misfit.path) if misfit.path else None
        if self._file is None:
            raise refusal(f"{self._unit} {number}", misfit)
        self._file.write(_ENCODE({"line": number, "column": column, "reason": misfit.sentence, "row": row}) + "\n")
        self.count += 1


def refusal(place: str, misfit: MisfitError) -> TidemarkError:
    """SCHEMA_MISMATCH at a place of the input."""
    column = path_text(misfit.path) if misfit.path else None
    at_column = "" if column is None else f", column {column}"
    return TidemarkError(
        ErrorCode.SCHEMA_MISMATCH,
        f"{place}{at_column}: {misfit.sentence}",
        {"place": place, **({} if column is None else {"column": column})},
    )
