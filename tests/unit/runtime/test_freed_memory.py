# SPDX-License-Identifier: Apache-2.0
"""Memory of a large message is reused for the next one."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import resource, sys
from tidemark.runtime.freed_memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def messages():
    held = [bytearray(1 << 20) for _ in range(8)]
    held.clear()
messages()
before = faults()
for _ in range(20):
    messages()
print(faults() - before)
"""


def _page_faults(how: str) -> int:
    ran = subprocess.run([sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True, timeout=200)
    return int(ran.stdout)


def test_after_the_first_large_messages_the_next_touch_no_new_pages() -> None:
    assert _page_faults("kept") < 200 < 10_000 < _page_faults("not kept")
