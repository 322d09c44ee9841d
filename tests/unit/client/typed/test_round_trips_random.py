# SPDX-License-Identifier: Apache-2.0
"""Rows of any permitted schema are read as they were sent: as records and tables, pruned, in any version."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from tidemark.client.producing.partitioner import partition_of
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.batch_rows import OF_RECORDS, BatchRows
from tidemark.client.typed.records import typed_records
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.typed.batch import prune
from tidemark.record.typed.key_bytes import key_bytes

from tests.unit.client.typed.samples import as_read, from_records, sealed
from tests.unit.core.schemas.drafts import RANDOMS, draft
from tests.unit.core.schemas.rows import Row, batch, projected, rows
from tests.unit.core.schemas.test_evolution_random import chain

few = settings(max_examples=150, deadline=None)


def sample(random: Random) -> tuple[TopicSchema, list[Row], Codec]:
    schema = first_version(draft(random))
    return schema, rows(random, schema), random.choice(list(Codec))


@given(RANDOMS)
@few
def test_records_come_back(random: Random) -> None:
    schema, records, codec = sample(random)
    typed = TypedFormat("t", "id", schema)
    reader = BatchRows("t", {1: schema}, dictionaries=False)
    sent = sealed(typed, from_records(typed, records), codec)
    found = typed_records("t", 3, reader.rows(sent, 3, 0))
    assert [record.value for record in found] == [as_read(schema, record, dict) for record in records]
    assert [record.offset for record in found] == list(range(100, 100 + len(records)))
    assert [record.key for record in found] == [typed.records.key(typed.records.check(one)[0]) for one in records]
    again = from_records(typed, [record.value for record in found])  # records that a consumer read can be sent again
    assert typed_records("t", 3, reader.rows(sealed(typed, again), 3, 0))[0].value == found[0].value


@given(RANDOMS)
@few
def test_tables_come_back(random: Random) -> None:
    schema, records, codec = sample(random)
    typed = TypedFormat("t", "id", schema)
    given_rows = batch(schema, records)
    table = pa.Table.from_batches([given_rows, given_rows.slice(1)])
    reader = BatchRows("t", {1: schema}, system=(), dictionaries=False)
    found = reader.rows(sealed(typed, *typed.fit_table(table, None), codec), 0, 0)
    found.validate(full=True)
    assert found.schema.equals(given_rows.schema)
    assert found.to_pylist() == table.to_pylist()
    assert typed.fit_table(found, None) == typed.fit_table(table, None)


@given(RANDOMS)
@few
def test_records_and_tables_have_the_same_key_bytes(random: Random) -> None:
    schema, records, _ = sample(random)
    typed = TypedFormat("t", "id", schema)
    of_rows = typed.keys(*typed.fit_table(batch(schema, records), None))
    values = [typed.records.check(record)[0] for record in records]
    wanted = [None] * len(records) if of_rows is None else of_rows.to_pylist()
    assert [typed.records.key(row) for row in values] == wanted
    partitions = [None if key is None else partition_of(key, 7) for key in wanted]
    assert [typed.partition_of(row, 7) for row in values * 2] == partitions * 2


@given(RANDOMS)
@few
def test_every_version_is_read_as_the_newest_with_any_columns_whole_or_pruned(random: Random) -> None:
    chained = chain(random, Compatibility.BACKWARD)
    versions = {version.version: version for version in chained}
    target = versions[max(versions)]
    names = [column.name for column in target.columns]
    chosen = random.choice([None, random.sample(names, random.randint(0, len(names)))])
    system = random.sample(OF_RECORDS, random.randint(0 if chosen else 1, len(OF_RECORDS)))
    columns = None if chosen is None else [*chosen, *system]
    reader = BatchRows("t", versions, columns, system=system, dictionaries=False)
    wanted = [column for column in target.columns if chosen is None or column.name in chosen]
    for source in versions.values():
        records = rows(random, source)
        typed = TypedFormat("t", "id", source)
        (table,) = typed.fit_table(batch(source, records), None)
        stored = sealed(typed, table, random.choice(list(Codec)))
        if reader.column_ids and random.randrange(3):
            data = prune(stored.data, layout_of(source), frozenset(reader.column_ids))
            stored = Batch(parse_envelope(data), data)
        skipped = random.randrange(len(records))
        found = reader.rows(stored, 0, 100 + skipped)
        found.validate(full=True)
        assert found.schema.equals(reader.schema)
        assert found.schema.names == [*(column.name for column in wanted), *system]
        assert found.select([column.name for column in wanted]).to_pylist() == projected(
            source, wanted, records[skipped:]
        )
        if "_offset" in system:
            assert found.column("_offset").to_pylist() == list(range(100 + skipped, 100 + len(records)))
        if "_key" in system:
            keys = key_bytes(table, [column.name for column in source.key_columns])
            expected = [None] * len(records) if keys is None else keys.to_pylist()
            assert found.column("_key").to_pylist() == expected[skipped:]


def test_a_sealed_batch_is_split_into_its_own_rows() -> None:
    """The producer splits a batch that was refused for some of its records."""
    random = Random(7)
    for _ in range(50):
        schema, records, codec = sample(random)
        typed = TypedFormat("t", "id", schema)
        sent = from_records(typed, records)
        assert typed.read(check_envelope(sealed(typed, sent, codec).data).data).equals(sent)
