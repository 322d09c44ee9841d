# SPDX-License-Identifier: Apache-2.0
"""`python -c` of a script with the client, without the time that the imports take: forked off a process (warm.py).

The script is the process's `__main__`, and its end is that of an interpreter. tests/integration/clients/
test_closing_clients.py starts fresh ones too. Linux only; elsewhere all are fresh.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path

from tests.integration.harness import warm, warm_command


def command(*, fresh: bool = False) -> list[str]:
    """The command that replaces `python -c`; the script and its arguments follow."""
    if fresh or sys.platform != "linux":
        return [sys.executable, "-c"]
    return [sys.executable, "-I", "-S", str(warm_command.LAUNCHER), str(_server())]


@functools.cache
def _server() -> Path:
    """The socket of this worker's server."""
    places = os.pathsep.join([str(warm.ROOT / "services"), str(warm.ROOT), *warm.places(os.environ)])
    return warm.start_server("tests.integration.harness.warm_script", environment={"PYTHONPATH": places})


if __name__ == "__main__":
    for module in ("tidemark.client.aio", "tidemark.client"):
        for name in importlib.import_module(module).__all__:
            getattr(sys.modules[module], name)  # an access imports some of the names
    script, *arguments = warm.serve(sys.argv[1], attend=warm_command.tell_the_end)
    sys.argv = ["-c", *arguments]
    del module, name, arguments
    exec(compile(script, "<string>", "exec"))
