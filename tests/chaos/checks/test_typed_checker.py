# SPDX-License-Identifier: Apache-2.0
"""The checker of typed topics against forged histories: each anomaly is found by its name, a good history passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.document import draft_from_document
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.model import ErrorCode

from tests.chaos.checks.typed_checker import TypedAnomaly, check_typed, stored_of
from tests.chaos.checks.typed_history import (
    AT_THE_END,
    Change,
    ColumnSpec,
    Fate,
    ReadRow,
    StoredVersion,
    TypedHistory,
    every_column,
)
from tests.chaos.typed.evolution import FIRST, allowed_change, document_of, incompatible_change
from tests.refusals import raises_code

GATE, TRIP = FIRST.columns[3:]
ADDED = ColumnSpec("c_1a", "float64", False, 0.5, "1a")
RENAMED = GATE._replace(name="r_2b", default="d2")
MORE_OF_TRIP = TRIP._replace(fields=(*TRIP.fields, ColumnSpec("c_2b", "int32", False, 7, "2b")))
WITH_ADDED = (*FIRST.columns, ADDED)
NEWEST = (*FIRST.columns[:3], RENAMED, MORE_OF_TRIP, ADDED)


def good() -> TypedHistory:
    """Version 2 adds a column, version 3 renames a column and adds a field.

    Each time a concurrent change gets a conflict.
    """
    history = TypedHistory(
        changes=[
            FIRST,
            Change("1a", 1, WITH_ADDED, fate=Fate.MADE, version=2),
            Change("1b", 1, FIRST.columns[:3], fate=Fate.OUTRUN),
            Change("1x", 1, FIRST.columns[1:], allowed=False, fate=Fate.REFUSED),
            Change("2a", 2, WITH_ADDED[:4], fate=Fate.OUTRUN),
            Change("2b", 2, NEWEST, fate=Fate.UNKNOWN),
            Change("3a", 3, NEWEST[:4], fate=Fate.UNKNOWN),
        ],
        rows={
            "s:0": {"sender": "s", "number": 0, "delay": None},
            "s:1": {"sender": "s", "number": 1, "delay": 4, "gate": "B7", "trip": {"trip from": "x"}, "1a": 9.0},
        },
        last_columns=stored_of(Change("", 0, NEWEST), 0).columns,
    )
    history.versions = [stored_of(history.changes[at], version) for at, version in ((0, 1), (1, 2), (5, 3))]
    first, second = {"sender": "s", "number": 0, "delay": None}, {"sender": "s", "number": 1, "delay": 4}
    trip = {"from": "x", "miles": None}
    history.read = [
        ReadRow("q", 0, 0, "s:0", {**first, "gate": "?", "trip": None}),
        ReadRow("q", 1, 0, "s:1", {**second, "gate": "B7", "trip": trip, "c_1a": 9.0}),
        ReadRow(AT_THE_END, 0, 0, "s:0", {**first, "r_2b": "d2", "trip": None, "c_1a": 0.5}),
        ReadRow(AT_THE_END, 1, 0, "s:1", {**second, "r_2b": "B7", "trip": {**trip, "c_2b": 7}, "c_1a": 9.0}),
    ]
    return history


def _with_value(history: TypedHistory, at: int, **columns: object) -> None:
    row = history.read[at]
    history.read[at] = row._replace(columns={**row.columns, **columns})


def leave_a_number_out(history: TypedHistory) -> None:
    history.versions[2] = history.versions[2]._replace(version=4)
    history.changes[5].follows = 3


def store_an_unrequested_version(history: TypedHistory) -> None:
    history.versions.append(StoredVersion(4, "hand-made", history.last_columns))


def store_other_columns(history: TypedHistory) -> None:
    history.versions[1] = history.versions[1]._replace(columns=history.last_columns)


def make_a_version_from_an_earlier_one(history: TypedHistory) -> None:
    history.changes[5].follows = 1


def lose_a_version(history: TypedHistory) -> None:
    history.versions[1:] = [stored_of(history.changes[2], 2), stored_of(history.changes[5], 3)]
    history.changes[2].fate = Fate.UNKNOWN
    del history.read[1]


def let_both_win(history: TypedHistory) -> None:
    history.changes[2] = replace(history.changes[2], fate=Fate.MADE, version=2)


def let_none_win(history: TypedHistory) -> None:
    history.changes[6].fate = Fate.OUTRUN


def refuse_a_made_change(history: TypedHistory) -> None:
    history.changes[5].fate = Fate.OUTRUN


def make_a_forbidden_change(history: TypedHistory) -> None:
    history.changes[5].allowed = False


def refuse_an_allowed_change(history: TypedHistory) -> None:
    history.changes[6].fate = Fate.REFUSED


def give_null_for_a_default(history: TypedHistory) -> None:
    _with_value(history, 2, c_1a=None)


def give_the_default_for_a_value(history: TypedHistory) -> None:
    """The rename lost the values of the column."""
    _with_value(history, 3, r_2b="?")


def give_null_for_the_default_of_a_field(history: TypedHistory) -> None:
    _with_value(history, 3, trip={"from": "x", "miles": None, "c_2b": None})


def give_a_field_the_value_of_another_row(history: TypedHistory) -> None:
    _with_value(history, 1, trip={"from": "y", "miles": None})


def give_a_struct_for_null(history: TypedHistory) -> None:
    history.rows["s:0"]["trip"] = None
    _with_value(history, 2, trip={"from": "x", "miles": None, "c_2b": 7})


def give_fields_of_no_version(history: TypedHistory) -> None:
    _with_value(history, 3, trip={"from": "x", "c_2b": 7})


def give_columns_of_no_version(history: TypedHistory) -> None:
    history.read[0] = history.read[0]._replace(columns={"sender": "s", "number": 0})


def end_with_an_earlier_version(history: TypedHistory) -> None:
    history.last_columns = history.versions[1].columns


def go_back_a_version(history: TypedHistory) -> None:
    history.read.append(history.read[0]._replace(partition=1, offset=1))


@pytest.mark.parametrize(
    ("forge", "anomaly"),
    [
        (leave_a_number_out, TypedAnomaly.GAP),
        (store_an_unrequested_version, TypedAnomaly.UNASKED),
        (store_other_columns, TypedAnomaly.UNASKED),
        (make_a_version_from_an_earlier_one, TypedAnomaly.STALE),
        (lose_a_version, TypedAnomaly.VERSION_LOST),
        (let_both_win, TypedAnomaly.TWO_WINNERS),
        (let_none_win, TypedAnomaly.NO_WINNER),
        (refuse_a_made_change, TypedAnomaly.REFUSED_MADE),
        (make_a_forbidden_change, TypedAnomaly.WRONGLY_MADE),
        (refuse_an_allowed_change, TypedAnomaly.WRONGLY_REFUSED),
        (give_null_for_a_default, TypedAnomaly.WRONG_VALUE),
        (give_the_default_for_a_value, TypedAnomaly.WRONG_VALUE),
        (give_null_for_the_default_of_a_field, TypedAnomaly.WRONG_VALUE),
        (give_a_field_the_value_of_another_row, TypedAnomaly.WRONG_VALUE),
        (give_a_struct_for_null, TypedAnomaly.WRONG_VALUE),
        (give_fields_of_no_version, TypedAnomaly.WRONG_COLUMNS),
        (give_columns_of_no_version, TypedAnomaly.WRONG_COLUMNS),
        (end_with_an_earlier_version, TypedAnomaly.WRONG_COLUMNS),
        (go_back_a_version, TypedAnomaly.OLDER_COLUMNS),
    ],
)
def test_each_anomaly_is_found_by_its_name(forge: Callable[[TypedHistory], None], anomaly: TypedAnomaly) -> None:
    history = good()
    forge(history)
    assert anomaly in {finding.anomaly for finding in check_typed(history)}


def test_a_good_history_has_no_anomaly() -> None:
    assert check_typed(good()) == []


def test_the_policy_allows_the_changes_of_a_round_and_refuses_the_others() -> None:
    chance, columns = random.Random(28), FIRST.columns
    schema = first_version(draft_from_document(document_of(FIRST)))
    for number in range(1, 200):
        bad = incompatible_change(chance, f"{number}x", schema.version, columns)
        with raises_code(ErrorCode.INCOMPATIBLE_SCHEMA):
            next_version(schema, draft_from_document(document_of(bad, columns)), Compatibility.BACKWARD)
        change = allowed_change(chance, f"{number}a", schema.version, columns)
        schema = next_version(schema, draft_from_document(document_of(change, columns)), Compatibility.BACKWARD)
        columns = change.columns
        every = list(every_column(columns))
        assert len({column.name for column in every}) == len({column.origin for column in every}) == len(every)
