# SPDX-License-Identifier: Apache-2.0
"""Storage reads the settings of a topic like the configuration table."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from tidemark.runtime.configuration.settings import topic_settings
from tidemark.storage.settings import storage_settings

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one


def test_defaults_and_values_are_those_of_the_configuration_table() -> None:
    for configs in ({}, {"segment.bytes": "4096", "segment.ms": "77", "index.interval.bytes": "512"}):
        ours, table = storage_settings(configs), topic_settings(configs)
        assert ours.segment_bytes == table.segment_bytes
        assert ours.segment_ms == table.segment_ms
        assert ours.index_interval_bytes == table.index_interval_bytes


def test_settings_of_other_components_are_ignored() -> None:
    assert storage_settings({"retention.ms": "1", "from.a.newer.version": "x"}) == storage_settings({})


def test_changed_settings_apply_to_the_next_roll(tmp_path: Path) -> None:
    logs = open_one(tmp_path)
    log, _ = logs.open(PARTITION, IDENTITY, {})

    def segments() -> int:
        return len(list(tmp_path.rglob("*.log")))

    seconds = count()
    for configs, expected in (({}, 1), ({"segment.bytes": "1024"}, 11), ({}, 11), ({"segment.ms": "1"}, 21)):
        log.configure(configs)
        for _ in range(10):
            lead(log, make_batch(["x" * 600], timestamp_us=next(seconds) * 1_000_000))
        assert segments() == expected
    logs.close()


def test_logs_without_settings_of_their_own_expire_producers_after_their_broker_s_time() -> None:
    assert [storage_settings({}, producer_id_expiration_ms=one).producer_id_expiration_ms for one in (1, 2)] == [1, 2]
