# SPDX-License-Identifier: Apache-2.0
"""Settings at the ends of their ranges: a log is cleaned with each, tombstones too (rule L1)."""

from __future__ import annotations

from pathlib import Path

from tidemark.record.envelope import DELETE_HORIZON_MAX_S
from tidemark.runtime.configuration.key import I64_MAX
from tidemark.storage.log.cleaner import CleanerSettings

from tests.unit.storage.batches import lead
from tests.unit.storage.log.test_cleaner import batches_of, clean, keyed, opened, rows_of


def test_a_log_with_unlimited_tombstone_retention_is_cleaned(directory: Path) -> None:
    logs, log = opened(directory)
    for round_ in range(40):
        lead(log, keyed([(b"same", b"%d" % round_ * 100), (b"gone", None)]), epoch=0)

    done = clean(log, CleanerSettings(delete_retention_ms=I64_MAX))

    assert done.clean_point > 0
    assert done.bytes_after < done.bytes_before
    tombstones = [row for row in rows_of(log) if row[0] < done.clean_point and row[2] is None]
    assert len(tombstones) == 1, "the latest of its key, which nothing takes away"
    horizons = {one.envelope.delete_horizon_s for one in batches_of(log) if one.envelope.has_delete_horizon}
    assert horizons == {DELETE_HORIZON_MAX_S}
    logs.close()
