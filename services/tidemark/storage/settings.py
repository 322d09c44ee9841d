# SPDX-License-Identifier: Apache-2.0
"""The settings of a topic and the broker that storage uses, by Kafka's dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PRODUCER_ID_EXPIRATION_MS: Final = 24 * 3600 * 1000
_KEYS: Final = frozenset({"segment.bytes", "segment.ms", "index.interval.bytes", "file.delete.delay.ms"})


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Bytes and milliseconds, defaults as Apache Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    file_delete_delay_ms: int = 60_000


def storage_settings(
    configs: Mapping[str, str], *, producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
) -> StorageSettings:
    """The settings of storage in the configuration of a topic; keys of other components are ignored."""
    defaults = _defaults(producer_id_expiration_ms)
    if _KEYS.isdisjoint(configs):
        return defaults
    return StorageSettings(
        segment_bytes=int(configs.get("segment.bytes", defaults.segment_bytes)),
        segment_ms=int(configs.get("segment.ms", defaults.segment_ms)),
        index_interval_bytes=int(configs.get("index.interval.bytes", defaults.index_interval_bytes)),
        producer_id_expiration_ms=producer_id_expiration_ms,
        file_delete_delay_ms=int(configs.get("file.delete.delay.ms", defaults.file_delete_delay_ms)),
    )


@lru_cache
def _defaults(producer_id_expiration_ms: int) -> StorageSettings:
    return StorageSettings(producer_id_expiration_ms=producer_id_expiration_ms)
