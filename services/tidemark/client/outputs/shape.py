# SPDX-License-Identifier: Apache-2.0
"""Formats of records, and the options of an output."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Shape(StrEnum):
    """Format of records."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class OutputOptions(Protocol):
    """The options of an output."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def shape(self) -> Shape:
        """Format of the records."""

    @property
    def named_columns(self) -> list[str] | None:
        """The columns of a typed topic to read; None: all."""

    @property
    def key_separator(self) -> str:
        """Of text: written between key and value; "": values only."""

    @property
    def delimiter(self) -> str:
        """Of CSV: separator of cells."""

    @property
    def strings(self) -> bool:
        """Of Parquet: write keys and values as text, not bytes."""
