"""The `tidemark` command without the time that its imports take.

One process per test worker has imported everything; for each call it forks one that becomes the command, with the
arguments, environment, directory and standard streams of a small launcher that a test starts as it would the command.
The launcher passes signals on and ends as the command did. tests/integration/test_cli.py starts fresh ones too.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tidemark.cli.without_pandas import keep_pandas_out
from tidemark.local.process import ServiceProcess

from tests.integration import patience

ROOT: Final = Path(__file__).resolve().parents[2]
LAUNCHER: Final = Path(__file__).with_name("warm_launcher.py")
READY_TIMEOUT_S: Final = 60.0
STANDARD_STREAMS: Final = (0, 1, 2)


def command() -> list[str]:
    """What to start instead of `python -m tidemark.cli.app`; arguments follow."""
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(_server())]


@functools.cache
def _server() -> Path:
    """The socket of this process's own server, which dies with it."""
    directory = Path(tempfile.mkdtemp(prefix="tidemark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "command"
    log = directory / "log"
    places = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    module = "tests.integration.warm_command"
    server = ServiceProcess("the command's server", module, [str(path)], log=log, environment={"PYTHONPATH": places})
    server.start()
    atexit.register(server.kill)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not path.exists():
        assert server.running, server.tail(50)
        assert time.monotonic() < deadline_s, server.tail(50)
        time.sleep(0.01)
    return path


def serve(path: str) -> None:
    """Fork for every call; returns in the process that is to be the command."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)  # who sees it can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            if _become_the_command(connection):
                return
            os._exit(0)
        connection.close()


def _become_the_command(connection: socket.socket) -> bool:
    """Forks once more: the child is to be the command, we tell the launcher its process id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    beginning, descriptors, _, _ = socket.recv_fds(connection, 1, len(STANDARD_STREAMS))
    call = json.loads(beginning + connection.makefile("rb").readline())
    ended, lives = os.pipe()
    child = os.fork()
    if child == 0:
        connection.close()
        os.close(ended)
        _take_over(call, descriptors)
        return True
    os.close(lives)
    for descriptor in descriptors:
        os.close(descriptor)
    _tell(connection, child, ended)
    return False


def _take_over(call: dict[str, Any], descriptors: list[int]) -> None:
    for target, descriptor in zip(STANDARD_STREAMS, descriptors, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(call["directory"])
    os.environ.clear()
    os.environ.update(call["environment"])
    patience.as_told()
    sys.argv = ["tidemark", *call["arguments"]]
    random.seed()


def _tell(connection: socket.socket, child: int, ended: int) -> None:
    connection.sendall(b"%d\n" % child)
    readable, _, _ = select.select([connection, ended], [], [])
    if ended not in readable:
        os.kill(child, signal.SIGKILL)  # the launcher was killed
    _, status = os.waitpid(child, 0)
    if ended in readable:
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _import_everything() -> None:
    from tidemark.cli.app import app

    for package in ("tidemark.cli", "tidemark.client", "tidemark.client.aio"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    app(["topic", "--help"], standalone_mode=False)  # what is imported on the way


if __name__ == "__main__":
    from tidemark.cli.app import main

    keep_pandas_out()
    _import_everything()
    gc.freeze()
    serve(sys.argv[1])
    main()
