# SPDX-License-Identifier: Apache-2.0
"""A process that refuses pandas does not import it, though Arrow would."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from tidemark.runtime.imports import refuse_import
refuse_import("pandas")
import pyarrow as pa
print(pa.array([1, None, 3]).null_count, pa.scalar(5).as_py(), "pandas" in sys.modules)
"""


def test_arrow_creates_arrays_without_a_refused_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["1", "5", "False"]
