# SPDX-License-Identifier: Apache-2.0
"""Microseconds to build, check, read, stamp and reseal a batch of 64 KiB, best of several rounds.

A typed batch of twelve columns is built, checked with its schema, pruned to two columns, and read whole and pruned.

Run as `make bench NAME=record`; the last line printed is the figures as JSON.
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from tidemark.record.checks import check_batch
from tidemark.record.envelope import STAMP_BYTES, Codec, stamp
from tidemark.record.payload import build_batch, from_columns, read_batch, reseal, with_offsets
from tidemark.record.typed.batch import build_typed_batch, check_typed, prune, read_pruned, read_typed
from tidemark.record.typed.layout import TypedLayout

from bench.measuring.flags import flags_of

BATCH_BYTES = 64 << 10
VALUE_BYTES = 100
ROUNDS = 7
NOW_US = 1_700_000_000_000_000


def columns() -> tuple[list[bytes | None], list[bytes | None], list[int]]:
    """Records of 100 bytes with a short key that fill a batch of 64 KiB."""
    count = BATCH_BYTES // (VALUE_BYTES + 4 + 3 * 4 + 8)
    keys: list[bytes | None] = [b"%04d" % (i % 97) for i in range(count)]
    values: list[bytes | None] = [(b"%08d" % i) * 12 + b"tail" for i in range(count)]
    return keys, values, [NOW_US + i for i in range(count)]


def best_us(work: Callable[[], object], seconds: float = 0.05) -> float:
    """Microseconds of one call in the best round: the cost without other load."""
    timer = timeit.Timer(work)
    once = timer.timeit(5) / 5
    number = max(5, int(seconds / once))
    return round(min(timer.repeat(ROUNDS, number)) / number * 1e6, 2)


def typed_sample() -> tuple[TypedLayout, pa.RecordBatch]:
    """Rows of about 120 bytes in twelve columns that fill a batch of 64 KiB."""
    count = BATCH_BYTES // 120
    fields: list[pa.Field[Any]] = [pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
    columns: list[Any] = [pa.array([NOW_US + i for i in range(count)], pa.int64()).view(fields[0].type)]
    for index in range(5):
        fields.append(pa.field(f"text{index}", pa.string()))
        columns.append(pa.array([f"{i:08d}{'x' * 4}" for i in range(count)]))
    for index in range(6):
        fields.append(pa.field(f"number{index}", pa.int32(), nullable=False))
        columns.append(pa.array(range(count), pa.int32()))
    schema = pa.schema(fields)
    layout = TypedLayout(1, schema, range(1, len(fields) + 1), event_time="at")
    return layout, pa.RecordBatch.from_arrays(columns, schema=schema)


def typed_figures() -> dict[str, float]:
    layout, rows = typed_sample()
    two = frozenset({2, 9})
    figures: dict[str, float] = {}
    for codec in (Codec.NONE, Codec.LZ4):
        data = build_typed_batch(rows, layout, codec=codec)
        batch = check_batch(data)
        pruned = prune(data, layout, two)
        name = f"typed_{codec.name.lower()}"
        work: dict[str, Callable[[], object]] = {
            "build": lambda codec=codec: build_typed_batch(rows, layout, codec=codec),  # type: ignore[misc]
            "crcs": lambda data=data: check_batch(data),  # type: ignore[misc]
            "check": lambda batch=batch: check_typed(batch, layout),  # type: ignore[misc]
            "read": lambda batch=batch: read_typed(batch, layout),  # type: ignore[misc]
            "prune": lambda data=data: prune(data, layout, two),  # type: ignore[misc]
            "read_pruned": lambda pruned=pruned: read_pruned(pruned, layout, two),  # type: ignore[misc]
        }
        figures |= {f"{name}_bytes": len(data), f"{name}_pruned_bytes": len(pruned)}
        figures |= {f"{name}_{step}_us": best_us(one) for step, one in work.items()}
    return figures


def main() -> None:
    flags_of("record", __doc__).parse_args()
    parts = columns()
    records = from_columns(*parts)
    figures: dict[str, float] = {"columns_us": best_us(lambda: from_columns(*parts))}
    for codec in Codec:
        data = build_batch(records, codec=codec)
        batch = check_batch(data)
        name = codec.name.lower()
        figures[f"{name}_bytes"] = len(data)
        figures[f"{name}_build_us"] = best_us(lambda codec=codec: build_batch(records, codec=codec))  # type: ignore[misc]
        figures[f"{name}_check_us"] = best_us(lambda data=data: check_batch(data))  # type: ignore[misc]
        figures[f"{name}_read_us"] = best_us(lambda batch=batch: read_batch(batch))  # type: ignore[misc]
        figures[f"{name}_offsets_us"] = best_us(lambda batch=batch: with_offsets(batch))  # type: ignore[misc]
    data = build_batch(records)
    figures["stamp_us"] = best_us(
        lambda: (stamp(data, base_offset=1 << 40, leader_epoch=7), memoryview(data)[STAMP_BYTES:])
    )
    figures["reseal_us"] = best_us(lambda: reseal(data, producer_id=1, producer_epoch=0, base_sequence=5))
    figures |= typed_figures()
    for name, value in figures.items():
        print(f"{name:>26} {value:>10,.2f}")
    print(json.dumps({"name": "record", "figures": figures}))


if __name__ == "__main__":
    main()
