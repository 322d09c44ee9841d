# SPDX-License-Identifier: Apache-2.0
"""Services without batches do not load Arrow."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("service", ["admin", "controller"])
def test_a_service_without_batches_does_not_load_arrow(service: str) -> None:
    program = f"import sys, tidemark.{service}.__main__; print({{'pyarrow', 'numpy', 'pandas'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "set()\n"
