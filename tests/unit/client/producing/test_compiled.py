# SPDX-License-Identifier: Apache-2.0
"""The modules of the optional build: this file runs on both the Python modules and the extensions."""

from __future__ import annotations

import importlib
import os

import pytest

from deploy.tools.compiled import MODULES, can_compile


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_an_extension_only_where_the_build_was_asked_for(name: str) -> None:
    compiled = os.environ.get("TIDEMARK_COMPILE") == "1" and can_compile()
    path = importlib.import_module(name).__file__ or ""
    assert path.endswith((".so", ".pyd") if compiled else ".py")
