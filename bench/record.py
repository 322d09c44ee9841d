# SPDX-License-Identifier: Apache-2.0
"""Microseconds to build, check, read, stamp and reseal a batch of 64 KiB, best of several rounds.

Run as `make bench NAME=record`; the last line printed is the figures as JSON.
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable

from tidemark.record.checks import check_batch
from tidemark.record.envelope import STAMP_BYTES, Codec, stamp
from tidemark.record.payload import build_batch, from_columns, read_batch, reseal, with_offsets

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


def main() -> None:
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
    for name, value in figures.items():
        print(f"{name:>18} {value:>10,.2f}")
    print(json.dumps({"name": "record", "figures": figures}))


if __name__ == "__main__":
    main()
