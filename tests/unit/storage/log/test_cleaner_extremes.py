# SPDX-License-Identifier: Apache-2.0
"""Settings at the ends of their ranges, and very many batches: a log is cleaned, tombstones too (rule L1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.broker.logs.directory_threads import Stopped
from tidemark.record.envelope import DELETE_HORIZON_MAX_S, Envelope
from tidemark.runtime.configuration.key import I64_MAX
from tidemark.storage.log import cleaner as cleaner_module
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.segments.segment import walk

from tests.unit.storage.batches import lead
from tests.unit.storage.log.test_cleaner import NOW_US, batches_of, clean, keyed, opened, rows_of


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


def test_a_cleaning_is_paced_and_can_end_while_it_reads_headers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the stop of a broker waited for that, and no throttle held; a log may have 100 million batches."""
    logs, log = opened(directory)
    for _ in range(40):
        lead(log, keyed([(b"same", b"x" * 100)]), epoch=0)
    walked: list[int] = []

    def counted(descriptor: int, start: int, end: int) -> Iterator[tuple[int, Envelope]]:
        for found in walk(descriptor, start, end):
            walked.append(found[1].base_offset)
            yield found

    def pace(size_bytes: int) -> None:
        if walked:
            raise Stopped

    monkeypatch.setattr(cleaner_module, "walk", counted)
    with pytest.raises(Stopped):
        clean_log(log, log.log_end_offset, CleanerSettings(), now_us=NOW_US, pace=pace)
    assert len(walked) == 1
    logs.close()
