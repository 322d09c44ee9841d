# SPDX-License-Identifier: Apache-2.0
"""The CLI does not import pandas, though Arrow would."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from tidemark.cli.common.process import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
print(pa.array([1, None, 3]).null_count, pa.scalar(5).as_py(), "pandas" in sys.modules)
"""


def test_arrays_are_created_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["1", "5", "False"]
