# SPDX-License-Identifier: Apache-2.0
"""docs/clients.md names every public method and every setting of the clients, and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tidemark import client
from tidemark.client import aio
from tidemark.client.group.settings import group_settings
from tidemark.client.settings import consumer_settings, producer_settings
from tidemark.errors import ErrorCode, TidemarkError

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()
CLASSES = ("Producer", "Consumer", "Groups", "AdminClient")


def named(heading: str) -> dict[str, str]:
    """Read the first and second column of the table under a heading."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n##")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def public(kind: type) -> set[str]:
    return {name for name, part in inspect.getmembers(kind) if not name.startswith("_") and callable(part)} | {
        name for name, part in inspect.getmembers(kind) if not name.startswith("_") and isinstance(part, property)
    }


@pytest.mark.parametrize("name", CLASSES)
def test_clients_page_names_every_method(name: str) -> None:
    assert set(named(f"Methods of `{name}`")) == public(getattr(client, name)) - {"close"}


@pytest.mark.parametrize("name", CLASSES)
def test_async_clients_have_every_method_of_sync_clients(name: str) -> None:
    assert public(getattr(client, name)) <= public(getattr(aio, name))


@pytest.mark.parametrize(
    ("heading", "check"),
    [
        ("Settings of a producer", producer_settings),
        ("Settings of a consumer", consumer_settings),
        ("Settings of a member of a group", group_settings),
    ],
    ids=["producer", "consumer", "group"],
)
def test_clients_page_names_every_setting_with_its_default(heading: str, check: object) -> None:
    assert callable(check)
    defaults = {
        name: repr(parameter.default)
        for name, parameter in inspect.signature(check).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    told = {name: default.strip("`").replace('"', "'") for name, default in named(heading).items()}
    assert told == defaults


def test_clients_page_names_every_error_class_with_its_codes() -> None:
    section = PAGE.split("\n## Errors\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \| (.*?) \| (.+) \|$", section, re.MULTILINE)
    codes = {kind: set(re.findall(r"`(\w+)`", cell)) for kind, cell, _ in told}
    assert codes == {
        name: {str(code) for code in ErrorCode if type(TidemarkError(code, "")) is kind}
        for name, kind in vars(client).items()
        if isinstance(kind, type) and issubclass(kind, TidemarkError) and kind is not TidemarkError
    }
