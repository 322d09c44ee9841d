# SPDX-License-Identifier: Apache-2.0
"""Settings as rows: those that differ from their defaults, with the source of each value."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.runtime.configuration.entries import ConfigEntry, ConfigSource

_UNCHANGED = (ConfigSource.DEFAULT, ConfigSource.UNKNOWN)


def config_rows(entries: Iterable[ConfigEntry]) -> list[dict[str, object]]:
    """The settings as data, the changed ones first."""
    rows = sorted(entries, key=lambda entry: (entry.source in _UNCHANGED, entry.key))
    return [
        {
            "key": entry.key,
            "value": entry.value,
            "unit": entry.unit,
            "source": str(entry.source),
            "is_default": entry.source in _UNCHANGED,
            "default_value": entry.default_value,
            "documentation": entry.documentation,
        }
        for entry in rows
    ]
