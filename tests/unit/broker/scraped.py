# SPDX-License-Identifier: Apache-2.0
"""The values of a scrape, by name and labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def scraped(text: str | bytes) -> dict[tuple[str, str], float]:
    """Values by name and `label=value,...`, labels in the order of their names; checks that no family occurs twice."""
    found: dict[tuple[str, str], float] = {}
    families = set()
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        assert family.name not in families, f"{family.name} occurs twice"
        families.add(family.name)
        for sample in family.samples:
            key = (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found
