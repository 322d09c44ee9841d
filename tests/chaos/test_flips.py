# SPDX-License-Identifier: Apache-2.0
"""Bits flip only where the scrubber looks, so that each flip is healed within a round."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.disks import _LONG_BYTES, sealed_segments


def test_bits_flip_in_sealed_segments_only(tmp_path: Path) -> None:
    for log, offsets in {"a-0": (0, 10, 20), "b-0": (0,), "c-0.123-stray": (0, 10)}.items():
        (tmp_path / log).mkdir()
        for offset in offsets:
            (tmp_path / log / f"{offset:020}.log").write_bytes(bytes(_LONG_BYTES))
    (tmp_path / "a-0" / f"{10:020}.log").write_bytes(b"short")
    assert sealed_segments(tmp_path) == [tmp_path / "a-0" / f"{0:020}.log"]
