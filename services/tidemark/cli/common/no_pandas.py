# SPDX-License-Identifier: Apache-2.0
"""Keeps pandas out of the command's processes.

Arrow imports it, where it is installed, as soon as a Python value becomes an array: a quarter of a second and 44 MB for
something that no command uses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["keep_pandas_out"]


class _NoPandas:
    """A finder that ends the search; None in sys.modules would do for Python, but not for what Cython compiles."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is kept out of this process", name=name)


def keep_pandas_out() -> None:
    """From now on there is none, unless it is here already. That holds for the whole process: only in those of ours."""
    sys.meta_path.insert(0, _NoPandas())
