# SPDX-License-Identifier: Apache-2.0
"""Rows of generated schemas go through a cluster by every way of writing, and are equal by every way of reading."""

from __future__ import annotations

from itertools import islice
from random import Random

import polars as pl
import pytest
from tidemark.client import AdminClient, Consumer, Producer, read_table, scan
from tidemark.core.schemas.evolution import first_version
from tidemark.local.cluster import LocalCluster

from tests.unit.client.typed.samples import as_read
from tests.unit.core.schemas.drafts import draft
from tests.unit.core.schemas.rows import batch, rows


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_any_schema_come_out_as_they_went_in(cluster: LocalCluster, seed: int) -> None:
    random = Random(seed)
    stated = draft(random)
    schema = first_version(stated)
    records = [*rows(random, schema), *rows(random, schema)]
    topic = f"any-schema-{seed}"
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1, schema=stated)
    with Producer(cluster.bootstrap) as producer:
        for record in records:
            producer.send(topic, record)
        producer.flush(30)
        producer.send_table(topic, batch(schema, records)).result(timeout_s=30)

    names = [column.name for column in schema.columns]
    wanted = batch(schema, records).to_pylist() * 2
    table = read_table(cluster.bootstrap, topic).read_all()
    assert table.schema.names == names
    assert repr(table.to_pylist()) == repr(wanted)
    some = random.sample(names, random.randint(1, len(names)))
    pruned = read_table(cluster.bootstrap, topic, columns=[*some, "_offset"]).read_all().to_pylist()
    assert repr([{name: row[name] for name in some} for row in pruned]) == repr(
        [{name: row[name] for name in some} for row in wanted]
    )
    assert [row["_offset"] for row in pruned] == list(range(len(wanted)))
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(topic)
        values = [record.value for record in islice(consumer, len(wanted))]
    assert repr(values) == repr([as_read(schema, record, dict) for record in records] * 2)
    frame = scan(cluster.bootstrap, topic).select(pl.col(some), pl.len().alias("count of rows")).collect()
    assert frame["count of rows"].to_list() == [len(wanted)] * len(wanted)
    assert frame.drop("count of rows").columns == some
