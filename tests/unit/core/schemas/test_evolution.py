# SPDX-License-Identifier: Apache-2.0
"""The next version of a schema, by each policy; refusals name both versions, the column and the rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tidemark.core.schemas.compatibility import Compatibility, widens
from tidemark.core.schemas.ddl import ddl_of, draft_from_ddl
from tidemark.core.schemas.evolution import DifferenceKind, differences, first_version, next_version
from tidemark.core.schemas.model import (
    COLUMNS_MAX,
    VERSION_MAX,
    Column,
    Decimal,
    Dictionary,
    Primitive,
    SchemaDraft,
    TopicSchema,
    draft_of,
    walk,
)
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code

BACKWARD, FORWARD, FULL, NONE = Compatibility
FLIGHTS = (
    "carrier STRING NOT NULL, at TIMESTAMP NOT NULL, delay INT, price DECIMAL(10,2) NOT NULL, gate STRING NOT NULL "
    "DEFAULT 'A1', leg STRUCT<origin: STRING NOT NULL, miles: SMALLINT>, tags ARRAY<INT>, fares MAP<STRING, FLOAT>"
)
KEYED = f"{FLIGHTS}, PRIMARY KEY (carrier), EVENT_TIME (at)"


def schema(ddl: str = KEYED) -> TopicSchema:
    return first_version(draft_from_ddl(ddl))


def evolved(ddl: str, compatibility: Compatibility = BACKWARD, current: TopicSchema | None = None) -> TopicSchema:
    return next_version(current or schema(), draft_from_ddl(ddl), compatibility)


def ids(found: TopicSchema) -> dict[str, int]:
    return {".".join(path): column.id for path, column in walk(found.columns)}


def changed(old: str, new: str) -> str:
    assert old in FLIGHTS
    return FLIGHTS.replace(old, new)


CHANGES = {
    "a nullable column is added": (f"{FLIGHTS}, note STRING", "bffn"),
    "a column with a default is added": (f"{FLIGHTS}, note STRING NOT NULL DEFAULT ''", "bffn"),
    "a column that is not null is added": (f"{FLIGHTS}, note STRING NOT NULL", ".f.n"),
    "a nullable column is dropped": (changed("delay INT, ", ""), "bffn"),
    "a column with a default is dropped": (changed("gate STRING NOT NULL DEFAULT 'A1', ", ""), "bffn"),
    "a column that is not null is dropped": (changed("price DECIMAL(10,2) NOT NULL, ", ""), "b..n"),
    "a column is renamed": (changed("delay INT", "late INT RENAMED FROM delay"), "bffn"),
    "an integer gets wider": (changed("delay INT", "delay BIGINT"), "b..n"),
    "an integer becomes a double": (changed("delay INT", "delay DOUBLE"), "b..n"),
    "an integer gets narrower": (changed("delay INT", "delay SMALLINT"), ".f.n"),
    "an integer becomes a string": (changed("delay INT", "delay STRING"), "...n"),
    "a decimal gets more digits": (changed("DECIMAL(10,2)", "DECIMAL(12,2)"), "b..n"),
    "a decimal gets another scale": (changed("DECIMAL(10,2)", "DECIMAL(12,3)"), "...n"),
    "a column becomes nullable": (changed("price DECIMAL(10,2) NOT NULL", "price DECIMAL(10,2)"), "b..n"),
    "a column becomes not null": (changed("delay INT", "delay INT NOT NULL"), ".f.n"),
    "a column becomes not null with a default": (changed("delay INT", "delay INT NOT NULL DEFAULT 0"), ".f.n"),
    "a default is changed": (changed("'A1'", "'B2'"), "bffn"),
    "a default is removed": (changed(" DEFAULT 'A1'", ""), ".f.n"),
    "a default is added": (changed("price DECIMAL(10,2) NOT NULL", "price DECIMAL(10,2) NOT NULL DEFAULT 0"), "b..n"),
    "a default is added to a nullable column": (changed("delay INT", "delay INT DEFAULT 0"), "bffn"),
    "a doc is added": (changed("delay INT", "delay INT COMMENT 'minutes'"), "bffn"),
    "a string becomes a dictionary": (changed("gate STRING", "gate DICTIONARY<STRING>"), "bffn"),
    "a list becomes a map": (changed("ARRAY<INT>", "MAP<INT, INT>"), "...n"),
    "a list becomes a plain column": (changed("ARRAY<INT>", "INT"), "...n"),
    "elements get wider": (changed("ARRAY<INT>", "ARRAY<BIGINT>"), "b..n"),
    "elements become not null": (changed("ARRAY<INT>", "ARRAY<INT NOT NULL>"), ".f.n"),
    "elements become strings": (changed("ARRAY<INT>", "ARRAY<STRING>"), "...n"),
    "values of a map get wider": (changed("MAP<STRING, FLOAT>", "MAP<STRING, DOUBLE>"), "b..n"),
    "keys of a map become integers": (changed("MAP<STRING, FLOAT>", "MAP<INT, FLOAT>"), "...n"),
    "a nested column is added": (changed("SMALLINT>", "SMALLINT, hub: STRING>"), "bffn"),
    "a nested column that is not null is added": (changed("SMALLINT>", "SMALLINT, hub: STRING NOT NULL>"), ".f.n"),
    "a nested column that is not null is dropped": (changed("origin: STRING NOT NULL, ", ""), "b..n"),
    "a nested column gets wider": (changed("SMALLINT>", "INT>"), "b..n"),
    "a nested column is renamed": (changed("miles: SMALLINT", "far: SMALLINT RENAMED FROM miles"), "bffn"),
    "the columns get another order": (f"tags ARRAY<INT>, {changed(', tags ARRAY<INT>', '')}", "bffn"),
}


@pytest.mark.parametrize("compatibility", Compatibility)
@pytest.mark.parametrize("change", CHANGES)
def test_a_policy_allows_a_change_or_refuses(change: str, compatibility: Compatibility) -> None:
    ddl, allowing = CHANGES[change]
    if allowing[list(Compatibility).index(compatibility)] != ".":
        following = evolved(ddl, compatibility)
        assert following.version == 2
        assert ddl_of(following) == ddl_of(draft_from_ddl(f"{without_renames(ddl)}, {KEY}"))
        assert differences(schema(), following)
        return
    with pytest.raises(TidemarkError) as raised:
        evolved(ddl, compatibility)
    error = raised.value
    assert error.code is ErrorCode.INCOMPATIBLE_SCHEMA
    assert error.message.startswith("version 2 cannot follow version 1: column ")
    assert f"schema.compatibility is {compatibility}, so readers with version" in error.message
    assert error.metadata["column"] in ids(schema()).keys() | {"note", "leg.hub"}
    assert (error.metadata["version"], error.metadata["next_version"]) == ("1", "2")


KEY = "PRIMARY KEY (carrier), EVENT_TIME (at)"


def without_renames(ddl: str) -> str:
    return ddl.replace(" RENAMED FROM delay", "").replace(" RENAMED FROM miles", "")


def test_the_sentence_of_a_refusal() -> None:
    with pytest.raises(TidemarkError) as raised:
        evolved(f"{FLIGHTS}, note STRING NOT NULL")
    assert raised.value.message == (
        "version 2 cannot follow version 1: column note: version 1 has no such column; in version 2 the column is not "
        "null and has no default. The rule: schema.compatibility is backward, so readers with version 2 read batches "
        "of every earlier version"
    )


@pytest.mark.parametrize("ddl", [FLIGHTS, KEYED])
def test_a_draft_that_changes_nothing_makes_no_version(ddl: str) -> None:
    current = schema()
    assert evolved(ddl, current=current) is current
    assert not differences(current, current)


def test_columns_keep_their_ids_and_new_ones_get_new_ids() -> None:
    current = schema()
    following = evolved(changed("delay INT", "late INT RENAMED FROM delay, hub STRUCT<city: STRING>"), current=current)
    before, after = ids(current), ids(following)
    assert after["late"] == before["delay"]
    assert (after["hub"], after["hub.city"]) == (current.last_column_id + 1, current.last_column_id + 2)
    assert following.last_column_id == current.last_column_id + 2
    assert (following.key, following.event_time) == (current.key, current.event_time)


def test_a_column_that_is_dropped_and_added_again_gets_another_id() -> None:
    current = schema()
    dropped = evolved(changed("delay INT, ", ""), current=current)
    added = evolved(changed("delay INT", "delay STRING"), current=dropped)
    assert ids(added)["delay"] > current.last_column_id


def test_without_a_policy_a_column_of_another_type_is_another_column() -> None:
    current = schema()
    following = evolved(changed("delay INT", "delay STRING"), NONE, current)
    assert ids(following)["delay"] > current.last_column_id
    below = evolved(changed("miles: SMALLINT", "miles: STRING"), NONE, current)
    assert ids(below)["leg"] == ids(current)["leg"]
    assert ids(below)["leg.miles"] > current.last_column_id
    elements = evolved(changed("ARRAY<INT>", "ARRAY<STRING>"), NONE, current)
    assert ids(elements)["tags"] > current.last_column_id


@pytest.mark.parametrize("compatibility", Compatibility)
@pytest.mark.parametrize(
    ("ddl", "column", "words"),
    [
        (changed("carrier STRING NOT NULL, ", ""), "carrier", "is in the key of version 1, and is dropped"),
        (changed("carrier STRING", "carrier INT"), "carrier", "is string in version 1 and int32 in the next"),
        (f"{FLIGHTS}, PRIMARY KEY (gate)", "gate", "another key than that of version 1, which has carrier"),
        (f"{FLIGHTS}, PRIMARY KEY (carrier, gate)", "carrier", "another key than that of version 1"),
        (changed("at TIMESTAMP NOT NULL, ", ""), "at", "and is dropped or of another type"),
        (changed("at TIMESTAMP NOT NULL", "at STRING"), "at", "and is dropped or of another type"),
        (f"{FLIGHTS}, b TIMESTAMP, EVENT_TIME (b)", "b", "in version 1 column at has it"),
        (
            changed("carrier STRING NOT NULL", "carrier STRING NOT NULL, c2 STRING NOT NULL DEFAULT ''")
            + ", PRIMARY KEY (c2)",
            "c2",
            "another key",
        ),
    ],
)
def test_key_and_event_time_never_change(ddl: str, column: str, words: str, compatibility: Compatibility) -> None:
    with raises_code(ErrorCode.INCOMPATIBLE_SCHEMA) as raised:
        evolved(ddl, compatibility)
    assert words in raised.value.message
    assert "is the same in every version" in raised.value.message
    assert raised.value.metadata["column"] == column


def test_a_topic_without_key_and_event_time_never_gets_one() -> None:
    current = schema(FLIGHTS)
    for clause in ("PRIMARY KEY (carrier)", "EVENT_TIME (at)"):
        with pytest.raises(TidemarkError, match="no column"):
            evolved(f"{FLIGHTS}, {clause}", current=current)


def test_a_key_column_may_be_renamed_and_become_a_dictionary() -> None:
    ddl = changed("carrier STRING NOT NULL", "airline DICTIONARY<STRING> NOT NULL RENAMED FROM carrier")
    for stated in (ddl, f"{ddl}, PRIMARY KEY (airline)"):
        assert [column.name for column in evolved(stated).key_columns] == ["airline"]


def test_a_draft_without_a_key_gets_columns_that_are_not_null() -> None:
    following = evolved(changed("carrier STRING NOT NULL, at TIMESTAMP NOT NULL", "carrier STRING, at TIMESTAMP"))
    assert following is not None
    assert not any(column.nullable for column in following.key_columns)
    assert following.event_time_column is not None
    assert not following.event_time_column.nullable


RENAMED = changed("delay INT", "late INT RENAMED FROM delay")


def test_a_rename_that_was_done_counts_for_nothing() -> None:
    once = evolved(RENAMED)
    assert evolved(RENAMED, current=once) is once
    reused = changed("delay INT", "late INT RENAMED FROM delay, delay INT")
    first = evolved(reused)
    assert ids(first)["late"] == ids(schema())["delay"]
    assert ids(first)["delay"] > schema().last_column_id
    assert evolved(reused, current=first) is first


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        (
            changed("delay INT", "late INT RENAMED FROM dely"),
            "column late: renamed_from: version 1 has no column 'dely'",
        ),
        (
            changed("delay INT", "late INT RENAMED FROM delay, b INT RENAMED FROM delay"),
            "column late: two columns have renamed_from: delay",
        ),
        (changed("delay INT", "Delay INT"), "column Delay: version 1 has 'delay', the same but for the case"),
        (changed("miles: SMALLINT", "Miles: SMALLINT"), "column leg.Miles: version 1 has 'miles'"),
    ],
)
def test_a_rename_without_its_column_is_refused(ddl: str, words: str) -> None:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        evolved(ddl)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "ddl",
    [
        "a INT, b INT RENAMED FROM c",
        "c INT RENAMED FROM b, b INT RENAMED FROM c, a INT",
        "a INT RENAMED FROM b, b INT RENAMED FROM c, c INT RENAMED FROM a",
    ],
)
def test_columns_that_change_names_with_one_another_need_two_steps(ddl: str) -> None:
    with pytest.raises(TidemarkError, match="rename in two steps"):
        evolved(ddl, current=schema("a INT, b INT, c INT"))


def test_a_name_may_change_its_case_by_a_rename() -> None:
    following = evolved(changed("delay INT", "Delay INT RENAMED FROM delay"))
    assert ids(following)["Delay"] == ids(schema())["delay"]


def test_the_last_version_has_no_next_one() -> None:
    last = replace(schema(), version=VERSION_MAX)
    with pytest.raises(TidemarkError, match="versions go from 1 to 2047; use another topic"):
        evolved(RENAMED, current=last)


def test_a_draft_that_no_topic_can_have_is_refused() -> None:
    columns = tuple(Column(0, f"c{index}", Primitive.INT32) for index in range(5_000))
    with pytest.raises(TidemarkError, match=f"at most {COLUMNS_MAX} columns"):
        next_version(schema(), SchemaDraft(columns), NONE)


def test_a_default_that_was_removed_would_be_missed_by_batches_of_the_first_version() -> None:
    first = schema("a INT")
    second = evolved("a INT, b INT NOT NULL DEFAULT 0", current=first)
    with pytest.raises(TidemarkError, match="column b: version 2 has a default, which batches without the column need"):
        evolved("a INT, b INT NOT NULL", current=second)
    assert evolved("a INT, b INT", current=second).version == 3


def test_a_column_without_a_default_cannot_get_one_where_old_readers_count() -> None:
    first = schema("a INT, b INT NOT NULL")
    with pytest.raises(TidemarkError, match="so no version may drop the column; version 2 adds a default"):
        evolved("a INT, b INT NOT NULL DEFAULT 0", FORWARD, first)


@pytest.mark.parametrize(
    ("ddl", "kind", "sentence"),
    [
        (
            f"{FLIGHTS}, note STRING NOT NULL DEFAULT 'x'",
            "added",
            "column note is added: note string not null default 'x'",
        ),
        (changed("delay INT, ", ""), "dropped", "column delay is dropped"),
        (RENAMED, "renamed", "column delay is renamed to late"),
        (changed("delay INT", "delay BIGINT"), "type", "column delay: int32 becomes int64"),
        (changed("SMALLINT", "INT"), "type", "column leg.miles: int16 becomes int32"),
        (changed("ARRAY<INT>", "ARRAY<BIGINT>"), "type", "column tags.element: int32 becomes int64"),
        (changed("DECIMAL(10,2) NOT NULL", "DECIMAL(10,2)"), "nullable", "column price: null is allowed"),
        (changed("'A1'", "'B2'"), "default", 'column gate: default "A1" becomes "B2"'),
        (changed("delay INT", "delay INT DEFAULT 5"), "default", "column delay: default null becomes 5"),
        (changed("delay INT", "delay INT COMMENT 'min'"), "doc", "column delay: doc becomes 'min'"),
    ],
)
def test_differences_have_a_sentence(ddl: str, kind: str, sentence: str) -> None:
    (found,) = differences(schema(), evolved(ddl))
    assert (found.kind, found.sentence) == (DifferenceKind(kind), sentence)


def test_differences_of_order_key_and_event_time() -> None:
    first = schema("a INT, b INT, c INT NOT NULL, t TIMESTAMP NOT NULL")
    second = evolved("b INT, a INT, c INT NOT NULL, t TIMESTAMP NOT NULL", current=first)
    assert [it.sentence for it in differences(first, second)] == ["columns have another order: b, a, c, t"]
    other = schema("a INT, b INT, c INT, t TIMESTAMP, PRIMARY KEY (c), EVENT_TIME (t)")
    assert [it.sentence for it in differences(first, other)] == ["key: none becomes c", "event_time: none becomes t"]


def test_a_replaced_column_is_dropped_and_added() -> None:
    found = differences(schema(), evolved(changed("delay INT", "delay STRING"), NONE))
    assert [it.kind for it in found] == [DifferenceKind.DROPPED, DifferenceKind.ADDED]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (Primitive.INT8, Primitive.INT64, True),
        (Primitive.INT64, Primitive.INT32, False),
        (Primitive.INT32, Primitive.FLOAT64, True),
        (Primitive.INT64, Primitive.FLOAT64, False),
        (Primitive.INT8, Primitive.FLOAT32, False),
        (Primitive.FLOAT32, Primitive.FLOAT64, True),
        (Primitive.DATE, Primitive.TIMESTAMP_NTZ, False),
        (Primitive.STRING, Primitive.BINARY, False),
        (Decimal(5, 2), Decimal(6, 2), True),
        (Decimal(5, 2), Decimal(7, 3), False),
        (Decimal(5, 2), Decimal(4, 2), False),
        (Primitive.INT32, Decimal(20, 0), False),
        (Dictionary(Primitive.INT8), Primitive.INT16, True),
        (Primitive.STRING, Dictionary(Primitive.STRING), True),
    ],
)
def test_numbers_get_wider_without_loss(source: Primitive, target: Primitive, expected: bool) -> None:
    assert widens(source, target) is expected


def test_the_draft_of_a_version_changes_nothing() -> None:
    current = schema()
    assert next_version(current, draft_of(current), FULL) is current


def test_the_page_lists_the_changes_that_each_policy_allows() -> None:
    page = (Path(__file__).parents[4] / "docs" / "schemas.md").read_text()
    rows = dict(re.findall(r"^\| ((?:a|an|the) [^|]*) \| ((?:yes|no)(?: \| (?:yes|no))*) \|$", page, re.MULTILINE))
    assert len(rows) > 20
    for change, allowed in rows.items():
        assert allowed == " | ".join("no" if letter == "." else "yes" for letter in CHANGES[change][1]), change
