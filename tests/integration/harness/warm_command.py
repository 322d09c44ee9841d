# SPDX-License-Identifier: Apache-2.0
"""The `tidemark` command without the time that its imports take: forked off a process that has imported it (warm.py).

`run` has this worker's server fork the command, and waits for its end. A test that signals the command starts a small
launcher instead. The launcher hands its arguments, environment, directory and standard streams to the server, passes
signals on to the process that is forked, and ends as that did. The attendant reports the end.
tests/integration/cli/test_cli.py starts fresh commands too. Linux only; elsewhere all are fresh.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.runtime.collecting import no_collections
from tidemark.runtime.imports import refuse_import

from tests.integration.harness import patience, warm

LAUNCHER: Final = Path(__file__).with_name("warm_launcher.py")


class Ended(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    error: str


def command() -> list[str]:
    """The command that replaces `python -m tidemark.cli.app`; arguments follow."""
    if sys.platform != "linux":
        return [sys.executable, "-m", "tidemark.cli.app"]
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(_server())]


def run(arguments: Sequence[str], *, stdin: str, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run the command to its end, with a pipe for each standard stream.

    Raises:
        TimeoutError: the command has not ended in time; it is killed.
    """
    pipes = [os.pipe() for _ in range(3)]
    theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
    with ThreadPoolExecutor(3) as pool, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(_server()))
        warm.send_call(connection, list(arguments), environment, theirs)
        for end in theirs:
            os.close(end)
        pool.submit(_write, ours[0], stdin)
        out, error = (pool.submit(_read, end) for end in ours[1:])
        with connection.makefile("rb") as answers:
            _, status = answers.readline(), int(answers.readline())
        return Ended(status, out.result(), error.result())


def _write(end: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), open(end, "w", encoding="utf-8") as pipe:
        pipe.write(text)


def _read(end: int) -> str:
    with open(end, encoding="utf-8") as pipe:
        return pipe.read()


@functools.cache
def _server() -> Path:
    """The socket of this worker's server."""
    places = os.pathsep.join([str(warm.ROOT), *warm.places(os.environ)])
    return warm.start_server("tests.integration.harness.warm_command", environment={"PYTHONPATH": places})


def tell_the_end(connection: socket.socket, process: int) -> None:
    """Send the exit status to the launcher, which ends with the same status."""
    ended = os.pidfd_open(process)
    readable, _, _ = select.select([connection, ended], [], [])
    if ended not in readable:
        os.kill(process, signal.SIGKILL)  # the launcher was killed
    _, status = os.waitpid(process, 0)
    if ended in readable:
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _import_everything() -> None:
    import typer.main
    from tidemark.cli.app import app

    # Typer builds every command for each call. The forked processes take over those that the call below has built.
    typer.main.get_command = functools.cache(typer.main.get_command)
    for package in ("tidemark.cli", "tidemark.client"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            if not module.name.startswith("tidemark.client.tables"):  # unused, and a third of the imports
                importlib.import_module(module.name)
    app(["topic", "--help"], standalone_mode=False)  # imports the commands' modules


if __name__ == "__main__":
    from tidemark.cli.app import main

    refuse_import("pandas")
    with no_collections():
        _import_everything()
    sys.argv = ["tidemark", *warm.serve(sys.argv[1], attend=tell_the_end)]
    patience.as_told()
    warm.run_and_end(main)
