# SPDX-License-Identifier: Apache-2.0
"""Senders of a typed topic, row by row and as tables; each row has the columns of the newest known version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from tidemark.client import Producer
from tidemark.client.producing.batching import TableHandle
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.checks.history import Outcome, Sent
from tests.chaos.checks.typed_history import ColumnSpec, TypedHistory, by_origin
from tests.chaos.clients import Sender
from tests.chaos.typed.evolution import lacks, value_of

_TABLE_ROWS: Final = 4


class RowSender(Sender):
    """Sends rows; omits columns and fields that have a default or may be null.

    Attributes:
        refused: the rows that did not fit the version that the producer knew; none of them was added to a batch.
    """

    typed: TypedHistory
    columns: Callable[[], tuple[ColumnSpec, ...]]
    refused: list[Sent]

    def follow(self, typed: TypedHistory, columns: Callable[[], tuple[ColumnSpec, ...]], refused: list[Sent]) -> None:
        """Note the rows in this history, with these columns."""
        self.typed, self.columns, self.refused = typed, columns, refused

    def _send(self, producer: Producer, number: int) -> None:
        columns = [column for column in self.columns() if not lacks(column, number)]
        (row,) = self._rows([number], columns, number)
        value, partition = self._noted(number, columns, row), number % self._load.partitions
        try:
            handle = producer.send(self._load.topic, row, partition=partition)
        except TidemarkError as error:
            self._note_refusal(error, [value], partition)
        else:
            self._handles.append((value, "", partition, handle))

    def _rows(self, numbers: list[int], columns: list[ColumnSpec], sending: int) -> list[dict[str, Any]]:
        identity = {"sender": self.name}
        return [
            {column.name: value_of(column, number, sending) for column in columns} | identity | {"number": number}
            for number in numbers
        ]

    def _noted(self, number: int, columns: list[ColumnSpec], row: dict[str, Any]) -> str:
        value = f"{self.name}:{number}"
        self.typed.rows[value] = {column.origin: by_origin(column, row[column.name]) for column in columns}
        return value

    def _note_refusal(self, error: TidemarkError, values: list[str], partition: int) -> None:
        if error.code is not ErrorCode.SCHEMA_MISMATCH:
            raise error
        self.refused += [Sent(value, self.name, partition, Outcome.FAILED) for value in values]


class TableSender(RowSender):
    """Sends tables of a few rows; some tables lack a column or a field in all rows."""

    def _send(self, producer: Producer, number: int) -> None:
        columns = [column for column in self.columns() if not lacks(column, number)]
        numbers = list(range(number * _TABLE_ROWS, (number + 1) * _TABLE_ROWS))
        rows = self._rows(numbers, columns, number)
        values = [self._noted(one, columns, row) for one, row in zip(numbers, rows, strict=True)]
        partition = number % self._load.partitions
        try:
            table = producer.send_table(self._load.topic, pa.Table.from_pylist(rows), partition=partition)
        except TidemarkError as error:
            self._note_refusal(error, values, partition)
        else:
            self._handles += [(value, "", partition, _RowOfTable(table, at)) for at, value in enumerate(values)]


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int


@dataclass(frozen=True, slots=True)
class _RowOfTable:
    """The handle of one row."""

    table: TableHandle
    at: int

    def done(self) -> bool:
        return self.table.done()

    def result(self, timeout_s: float) -> _Place:
        left = self.at
        for batch in self.table.result(timeout_s):
            if left < batch.record_count:
                return _Place(batch.base_offset + left)
            left -= batch.record_count
        raise AssertionError(f"row {self.at} is in no batch")
