# SPDX-License-Identifier: Apache-2.0
"""Formats of records, and the options of an output."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Shape(StrEnum):
    """Formats of records in an output."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class OutputOptions(Protocol):
    """Options that decide the format of an output."""

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
    def schema_version(self) -> int | None:
        """The version of a typed topic's schema that rows have; None: the newest."""

    @property
    def key_separator(self) -> str:
        """Text output: the separator of key and value; "": values only."""

    @property
    def delimiter(self) -> str:
        """CSV output: the separator of cells."""

    @property
    def strings(self) -> bool:
        """Parquet output: whether keys and values are text, not bytes."""
