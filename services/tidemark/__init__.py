# SPDX-License-Identifier: Apache-2.0
"""Tidemark: a replicated commit log. `read_table` and `scan` read a typed topic as a table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.client import read_table, scan

__all__ = ["read_table", "scan"]


def __getattr__(name: str) -> Any:
    """Import the client at the first use of its names: the services, also below this package, do not need it."""
    if name in __all__:
        return getattr(importlib.import_module("tidemark.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
