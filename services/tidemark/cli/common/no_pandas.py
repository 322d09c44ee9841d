# SPDX-License-Identifier: Apache-2.0
"""Prevents the import of pandas in a command's process.

Arrow imports an installed pandas as soon as a Python value becomes an array. That import costs a quarter of a second
and 44 MB, and no command uses pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["keep_pandas_out"]


class _NoPandas:
    """A finder that refuses pandas; None in sys.modules would stop Python's import statement, but not Cython's."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"the import of {name} is disabled in this process", name=name)


def keep_pandas_out() -> None:
    """Make `import pandas` fail in this process; no effect after pandas was imported. Only for processes of the CLI."""
    sys.meta_path.insert(0, _NoPandas())
