# SPDX-License-Identifier: Apache-2.0
"""The table of options in docs/spark-writing.md has every option of the sink, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from tidemark.client.settings import ProducerSettings, producer_settings
from tidemark_spark.sink import options
from tidemark_spark.sink.options import parse_write_options

PAGE = (Path(__file__).parents[3] / "docs" / "spark-writing.md").read_text()
TABLE = PAGE.split("\n## Options\n\n")[1].split("\n\n")[0]


def defaults() -> ProducerSettings:
    settings = parse_write_options({"tidemark.bootstrap": "a:1", "topic": "t"}).settings
    return producer_settings(**{name: value for name, value in settings.items() if name != "delivery_timeout_ms"})


def test_the_table_has_every_option_of_the_sink() -> None:
    cells = " ".join("".join(row.split("|")[1:3]) for row in TABLE.splitlines())
    assert set(options._NAMES) <= set(re.findall(r"`([\w.]+)`", cells))


def test_the_table_has_the_numbers_of_the_producer() -> None:
    rows = dict(re.findall(r"^\| `tidemark\.([\w.]+)` \| `kafka\.[\w.]+` \| (\d+) \|", TABLE, re.MULTILINE))
    expected = defaults()
    found = {name: getattr(expected, options._SETTINGS[name][0]) for name in rows if name in options._SETTINGS}
    assert found == {name: int(rows[name]) for name in found}
    assert len(found) == 4
