"""Storage reads a topic's settings as the configuration table means them."""

from __future__ import annotations

from tidemark.runtime.configuration import topic_settings
from tidemark.storage.settings import storage_settings


def test_defaults_and_values_are_those_of_the_configuration_table() -> None:
    for configs in ({}, {"segment.bytes": "4096", "segment.ms": "77", "index.interval.bytes": "512"}):
        ours, table = storage_settings(configs), topic_settings(configs)
        assert ours.segment_bytes == table.segment_bytes
        assert ours.segment_ms == table.segment_ms
        assert ours.index_interval_bytes == table.index_interval_bytes


def test_settings_that_are_not_storages_are_passed_over() -> None:
    assert storage_settings({"retention.ms": "1", "from.a.newer.version": "x"}) == storage_settings({})
