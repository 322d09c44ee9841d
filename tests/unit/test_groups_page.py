# SPDX-License-Identifier: Apache-2.0
"""docs/groups.md names only existing things."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest
from tidemark.model import ErrorCode
from tidemark.runtime.configuration.settings import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:core|broker)\.[\w.]+)`", PAGE))))
def test_names_on_the_page_of_groups_exist(name: str) -> None:
    pkgutil.resolve_name(f"tidemark.{name}")


def test_codes_and_settings_on_the_page_of_groups_exist() -> None:
    assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE)) <= {*ErrorCode}
    settings = set(re.findall(r"`((?:group|offsets?)\.[a-z.]+)`", PAGE))
    assert settings
    assert settings <= KEYS.keys()
