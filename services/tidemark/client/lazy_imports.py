# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported at their first use (PEP 562): Arrow alone takes a tenth of a second."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["on_demand"]


def on_demand(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package.

    Args:
        package: full name of the package.
        homes: names to import, by the module of the package that defines them.
    """
    module_of = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
