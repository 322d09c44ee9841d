# SPDX-License-Identifier: Apache-2.0
"""The imports of a broker's process, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

pytestmark = pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 18, reason="this pyarrow needs numpy")

IMPORTED = """
import gc, sys
import tidemark.broker.__main__
assert "numpy" not in sys.modules
assert gc.isenabled()
import pyarrow as pa
table = pa.table({"number": [1, 2], "text": ["a", None]})
assert table.to_pylist()[1] == {"number": 2, "text": None}
assert "pandas" not in sys.modules
"""


def test_a_broker_imports_no_numpy_and_converts_tables_without_it() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
