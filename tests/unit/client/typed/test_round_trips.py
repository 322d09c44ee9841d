# SPDX-License-Identifier: Apache-2.0
"""Rows of any schema that may be created come back as they were sent, record by record and as a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.record.envelope import Codec
from tidemark.record.typed.batch import read_typed

from tests.unit.client.typed.samples import as_read, from_records, sealed
from tests.unit.core.schemas.drafts import NAMES, schemas
from tests.unit.core.schemas.rows import batch, rows

few = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a schema takes minutes
)
CODECS = st.sampled_from(list(Codec))


@st.composite
def sent(draw: st.DrawFn) -> tuple[TopicSchema, list[dict[str, Any]]]:
    schema = draw(schemas(NAMES))
    return schema, draw(rows(schema))


@given(sent(), CODECS)
@few
def test_records_come_back(sample: tuple[TopicSchema, list[dict[str, Any]]], codec: Codec) -> None:
    schema, records = sample
    typed = TypedFormat("t", "id", schema)
    found = read_typed(sealed(typed, from_records(typed, records), codec), layout_of(schema))
    assert found.columns.to_pylist() == [as_read(schema, record) for record in records]


@given(sent(), CODECS)
@few
def test_tables_come_back(sample: tuple[TopicSchema, list[dict[str, Any]]], codec: Codec) -> None:
    schema, records = sample
    typed = TypedFormat("t", "id", schema)
    given_rows = batch(schema, records)
    table = pa.Table.from_batches([given_rows, given_rows.slice(1)])
    fitted = typed.fit_table(table, None)
    found = read_typed(sealed(typed, fitted, codec), layout_of(schema))
    assert found.columns.to_pylist() == table.to_pylist()


@given(sent())
@few
def test_records_and_tables_have_the_same_key_bytes(sample: tuple[TopicSchema, list[dict[str, Any]]]) -> None:
    schema, records = sample
    typed = TypedFormat("t", "id", schema)
    of_rows = typed.keys(typed.fit_table(batch(schema, records), None))
    of_records = [typed.records.key(typed.records.check(record).values) for record in records]
    assert of_records == ([None] * len(records) if of_rows is None else of_rows.to_pylist())
