# SPDX-License-Identifier: Apache-2.0
"""The settings of the services, for the chart: `python -m tests.charts.settings_table` writes the file."""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.runtime.configuration.keys import KEYS, ConfigKey

FILE = Path(__file__).parents[2] / "charts" / "tidemark" / "files" / "settings.json"
_TEMPLATES_MAX = 1 << 53
"""Templates read JSON numbers as floats, which cannot represent a larger maximum exactly."""


def settings_table() -> str:
    """The settings of services, without those of topics, as JSON."""
    rows = {name: _row(key) for name, key in sorted(KEYS.items()) if key.owners != ("topic",)}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    return f"{{\n{lines}\n}}\n"


def _row(key: ConfigKey) -> dict[str, object]:
    choices = list(key.choices) or (["true", "false"] if key.kind == "bool" else [])
    row: dict[str, object] = {"owners": list(key.owners), "kind": str(key.kind), "values": key.valid_values}
    if key.kind == "int":
        row |= {"minimum": key.minimum, "maximum": key.maximum if key.maximum < _TEMPLATES_MAX else 0}
        row |= {"unlimited": key.unlimited}
    return row | {"choices": choices}


if __name__ == "__main__":
    FILE.write_text(settings_table())
