# SPDX-License-Identifier: Apache-2.0
"""Commands are built once for all tests: Typer builds every command of the program for each call, which takes 65 ms."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import typer.main
import typer.testing


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield
