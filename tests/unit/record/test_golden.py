# SPDX-License-Identifier: Apache-2.0
"""The bytes of a batch against golden files. If a test here fails, the format has changed: logs on disk and clients
have the old bytes, so change the code back, or raise the magic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Codec, Envelope, stamped
from tidemark.record.payload import reseal, with_offsets
from tidemark.record.typed.batch import build_typed_batch, prune, read_pruned, read_typed

from tests.unit.record.samples import compacted_sample, rows_of, sample, three_records
from tests.unit.record.typed.samples import flights, three_flights

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.batch").read_bytes()


def test_a_produced_batch_is_built_of_the_golden_bytes() -> None:
    assert sample() == golden("produced")


def test_an_idempotent_stamped_batch_is_made_of_the_golden_bytes() -> None:
    data = reseal(golden("produced"), producer_id=4711, producer_epoch=2, base_sequence=30)
    batch = stamped(check_batch(data), base_offset=1 << 33, leader_epoch=5)
    assert batch.data == golden("stamped")


def test_a_compacted_batch_is_made_of_the_golden_bytes() -> None:
    assert compacted_sample() == golden("compacted")


def test_a_typed_batch_is_built_of_the_golden_bytes() -> None:
    assert build_typed_batch(three_flights(), flights()) == golden("typed")


@pytest.mark.parametrize("name", ["typed", "typed-lz4", "typed-zstd"])
def test_golden_typed_batches_read_back_as_the_rows_they_were_built_of(name: str) -> None:
    batch = check_batch(golden(name))
    assert (batch.envelope.magic, batch.envelope.schema_version) == (2, 1)
    assert read_typed(batch, flights()).columns.equals(three_flights())
    delays = frozenset({3})
    pruned = prune(batch.data, flights(), delays)
    assert read_pruned(pruned, flights(), delays).columns.to_pylist() == [{"delay": 5}, {"delay": None}, {"delay": -3}]


@pytest.mark.parametrize("name", ["produced", "stamped", "lz4", "zstd"])
def test_golden_batches_read_back_as_the_records_they_were_built_of(name: str) -> None:
    batch = check_batch(golden(name))
    rows = with_offsets(batch)
    first = batch.envelope.base_offset
    assert rows_of(batch, rows)[:4] == rows_of(batch, three_records())
    assert rows.column("offset").to_pylist() == [first, first + 1, first + 2]


def test_the_golden_compacted_batch_reads_back_with_its_offsets() -> None:
    batch = check_batch(golden("compacted"))
    rows = with_offsets(batch)
    assert rows_of(batch, rows)[:4] == rows_of(batch, three_records())
    assert rows.column("offset").to_pylist() == [101, 104, 107]
    assert batch.envelope.delete_horizon_s == 1_800_000_000


@pytest.mark.parametrize(("name", "codec"), [("produced", 0), ("lz4", 1), ("zstd", 2)])
def test_the_golden_codecs_keep_their_numbers(name: str, codec: int) -> None:
    assert check_batch(golden(name)).envelope.codec == codec == Codec(codec)


def test_the_golden_stamped_envelope_has_its_fields() -> None:
    envelope = check_batch(golden("stamped")).envelope
    assert envelope._replace(header_crc=0, crc=0, batch_length=0) == Envelope(
        base_offset=1 << 33,
        leader_epoch=5,
        header_crc=0,
        batch_length=0,
        crc=0,
        magic=1,
        codec=0,
        attributes=0,
        record_count=3,
        last_offset_delta=2,
        base_sequence=30,
        max_timestamp_us=1_700_000_000_000_005,
        producer_id=4711,
        producer_epoch=2,
        delete_horizon_s=0,
    )


def test_the_formats_page_shows_the_golden_bytes() -> None:
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    shown = re.search(r"```hex stamped\n(.*?)```", page, re.DOTALL)
    assert shown, "docs/formats.md shows the stamped batch"
    lines = [line.split(" | ")[0] for line in shown.group(1).splitlines()]
    assert bytes.fromhex("".join(line[5:] for line in lines)) == golden("stamped")
